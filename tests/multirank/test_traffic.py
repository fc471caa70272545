"""Predicted bytes and messages of tensor parallelism, alone and with ZeRO, against the ledger's."""

import pytest
import torch

from zerolab.accounting import STRATEGIES
from zerolab.accounting.activations import Batch, Keeping
from zerolab.accounting.moments import Setup
from zerolab.accounting.traffic import Traffic, setup_traffic, tensor_parallel_traffic
from zerolab.training.gpt import GPT, GPTShape
from zerolab.training.versus import compare

GPT_SHAPE = GPTShape(vocabulary=64, context=32, layers=2, heads=4, width=32)
SHAPE = GPT_SHAPE.on_paper


@pytest.mark.parametrize(("ranks", "tokens"), [(2, 64), (4, 256)])
def test_tensor_parallelism_sends_what_is_predicted(world_of, ranks, tokens):
    batch = Batch(size=tokens // 32, sequence=32, element=4, tensor_parallel=ranks)
    found = compare(world_of(ranks), tokens, GPT_SHAPE).tensor_parallel
    predicted = tensor_parallel_traffic(SHAPE, batch, Keeping())
    assert Traffic(found.wire_bytes, found.messages) == predicted


def sent_on_a_mesh(rank: int, strategy: str, sequences: int) -> int:
    """Bytes of one step on 2 × 2 ranks: tensor parallel in pairs, data parallel across them."""
    import torch.distributed as dist

    from zerolab import ShardedAdam
    from zerolab.parallel import STRATEGIES, TensorParallel
    from zerolab.runtime.ledger import ledger

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    torch.manual_seed(0)
    split = TensorParallel(GPT(GPT_SHAPE), group=pairs[rank // 2])
    model = STRATEGIES[strategy](split, group=across[rank % 2])
    optimizer = ShardedAdam(model)
    tokens = torch.zeros(sequences, 32, dtype=torch.long)
    ledger.clear()
    model(tokens, tokens).backward()
    optimizer.step()
    return ledger.bytes()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_dimensions_send_what_is_predicted(world_of, strategy):
    setup = Setup(
        shape=SHAPE,
        strategy=strategy,
        ranks=2,
        precision="fp32",
        batch=Batch(size=3, sequence=32, element=4, tensor_parallel=2),
    )
    sent = world_of(4).run(sent_on_a_mesh, strategy, 3)
    assert set(sent) == {setup_traffic(setup).total.bytes}
