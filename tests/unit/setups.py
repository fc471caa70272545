"""Set-ups that several accounting tests start from: one fixed, and any, for hypothesis."""

from hypothesis import strategies as st

from zerolab.accounting import PRECISIONS, STRATEGIES
from zerolab.accounting.activations import Batch, Keeping
from zerolab.accounting.catalogue import MODELS, model
from zerolab.accounting.moments import Setup

LLAMA = Setup(
    shape=model("llama-2-7b"),
    strategy="zero3",
    ranks=8,
    precision="mixed",
    batch=Batch(size=1, sequence=4096),
)

setups = st.builds(
    Setup,
    shape=st.sampled_from(sorted(MODELS)).map(model),
    strategy=st.sampled_from(STRATEGIES),
    ranks=st.integers(1, 512),
    precision=st.sampled_from(sorted(PRECISIONS)),
    batch=st.builds(
        Batch,
        size=st.integers(1, 16),
        sequence=st.integers(1, 16_384),
        tensor_parallel=st.sampled_from([1, 2, 4, 8]),
        sequence_parallel=st.booleans(),
    ),
    keeping=st.builds(
        Keeping,
        recompute=st.sampled_from(["none", "selective", "full"]),
        loss=st.sampled_from(["eager", "fused", "chunked"]),
    ),
    micro_batches=st.integers(1, 4),
    prefetch=st.integers(0, 3),
)
