"""How far each line of a memory account can be trusted.

exact          what is there, counted: the tests find the same bytes, to the last one, in the
               engine's live tensors or in what autograd saves
formula        follows from sizes and from an assumption, named where it is computed: what is alive
               together, or how an implementation goes about it
rule of thumb  a range of what others have seen; nothing here decides it
"""

from typing import Literal

from zerolab.accounting.models import Shape
from zerolab.accounting.moments import Setup

Mark = Literal["exact", "formula", "rule of thumb"]
MARKS: tuple[Mark, ...] = ("exact", "formula", "rule of thumb")

_STATES = ("parameters", "gradients", "optimizer")
_SAVED = ("activations", "recomputed")
# All parts that a moment can have, in the order in which accounts list them.
PARTS = (
    *_STATES,
    "gathered",
    "prefetched",
    "gradient buffers",
    "communication buffers",
    *_SAVED,
    "logits",
    "gradients of logits",
    "gradients of activations",
    "fp32 copies",
)
FLAT: Mark = "formula"  # of `model_states`: one flat tensor, no padding of units, no counters
BESIDE = ("CUDA context", "fragmentation", "communicator buffers")


def mark(part: str, setup: Setup) -> Mark:
    """The mark of one part of a moment, or of one allowance beside it.

    Only one device's worth is counted to the byte: what tensor parallelism leaves on a rank depends
    on how an implementation cuts. Raises KeyError for a part that has no mark.
    """
    if part in BESIDE:
        return "rule of thumb"
    if part in _STATES:
        return "exact" if setup.batch.tensor_parallel == 1 else "formula"
    if part in _SAVED:
        return "exact" if _saved_is_counted(setup) else "formula"
    if part not in PARTS:
        raise KeyError(part)
    return "formula"


def _saved_is_counted(setup: Setup) -> bool:
    """Whether the tests hold models of this kind to what autograd saves."""
    return (
        setup.batch.tensor_parallel == 1
        and not setup.keeping.dropout
        and _like_gpt2_or_llama(setup.shape)
    )


def _like_gpt2_or_llama(shape: Shape) -> bool:
    """Dense, with two norms in a block; LayerNorm and GELU, or RMSNorm and a gated unit."""
    return (
        shape.exact
        and shape.experts == 1
        and shape.block_norms == 2
        and shape.norm == ("rms" if shape.gated else "layer")
        and shape.query_key_norm in ("none", "head")
        and shape.final_norm
        and not (shape.relu or shape.embedding_norm)
    )
