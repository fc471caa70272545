"""Predicted bytes and messages of tensor parallelism against what the engine sends."""

import pytest

from zerolab.accounting.activations import Batch, Keeping
from zerolab.accounting.models import Shape
from zerolab.accounting.traffic import Traffic, tensor_parallel_traffic
from zerolab.training.gpt import GPTShape
from zerolab.training.versus import compare

GPT = GPTShape(vocabulary=64, context=32, layers=2, heads=4, width=32)
SHAPE = Shape(
    layers=2, hidden=32, heads=4, feed_forward=128, vocabulary=64, positions=32, tied=False
)


@pytest.mark.parametrize(("ranks", "tokens"), [(2, 64), (4, 256)])
def test_tensor_parallelism_sends_what_is_predicted(world_of, ranks, tokens):
    batch = Batch(size=tokens // 32, sequence=32, element=4, tensor_parallel=ranks)
    found = compare(world_of(ranks), tokens, GPT).tensor_parallel
    predicted = tensor_parallel_traffic(SHAPE, batch, Keeping())
    assert Traffic(found.wire_bytes, found.messages) == predicted
