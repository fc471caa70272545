"""The predicted moments of a step against live bytes, measured on the engine."""

import gc

import pytest
import torch

from zerolab import MemoryMeter, ShardedAdam
from zerolab.accounting import STRATEGIES
from zerolab.accounting.activations import INDEX, Batch
from zerolab.accounting.memory import STEP_COUNTER
from zerolab.accounting.moments import Setup, moments, peak
from zerolab.parallel import STRATEGIES as CLASSES
from zerolab.training.gpt import GPT, GPTShape

GPT_SHAPE = GPTShape(layers=4, width=64, heads=4, vocabulary=256, context=64)
SHAPE = GPT_SHAPE.on_paper


def peaks_of_a_step(rank, strategy, size, sequence, overlap=True):
    """The most bytes alive in forward, in backward and in the optimizer's step, on rank 0."""
    gc.collect()  # models of earlier runs
    model = CLASSES[strategy](GPT(GPT_SHAPE), overlap=overlap)
    optimizer = ShardedAdam(model)
    tokens, targets = (torch.zeros(size, sequence, dtype=torch.long) for _ in range(2))
    model(tokens, targets).backward()
    optimizer.step()
    optimizer.zero_grad()
    with MemoryMeter() as meter:
        meter.reset_peak()
        loss = model(tokens, targets)
        forward = meter.peak
        meter.reset_peak()
        loss.backward()
        backward = meter.peak
        del loss
        meter.reset_peak()
        optimizer.step()
        return forward, backward, meter.peak, len(model.unit_sizes)


def setup(strategy, size, sequence, prefetch=0):
    return Setup(
        shape=SHAPE,
        strategy=strategy,
        ranks=2,
        precision="fp32",
        batch=Batch(size=size, sequence=sequence, element=4),
        prefetch=prefetch,
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_moments_are_what_is_alive(world_of, strategy):
    size, sequence = 4, 64  # activations outweigh the states
    measured = world_of(2).run(peaks_of_a_step, strategy, size, sequence)[0]
    forward, backward, step, units = measured
    predicted = {m.name: m.total for m in moments(setup(strategy, size, sequence))}
    # The GPT has more units than the accounting's three kinds, each with a step counter.
    counters = STEP_COUNTER * (units - len(SHAPE.unit_sizes))
    ids, number = INDEX * size * sequence, 4
    # The token ids were there before, and the loss is a number of its own. Under ZeRO-3 the padding
    # of released parameters is: one number a unit.
    placeholders = number * units if strategy == "zero3" else 0
    extra = counters + placeholders
    assert forward == predicted["end of forward"] - ids + number + extra
    if strategy != "zero3":  # there a block's backward is the larger one
        assert backward == predicted["backward of the loss"] - ids + number + extra
    # Watched from the forward on: the targets, and what the fused step was given.
    assert step - predicted["optimizer step"] - extra in range(ids, ids + 100)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("size", "sequence"), [(4, 64), (1, 8)])
def test_predicted_peak_of_a_step_is_near_the_measured_one(world_of, strategy, size, sequence):
    # With overlap the engine gathers the next unit while the last one is still there. Where whole
    # gradients stay, it also queues a second reduction, with a buffer that the accounting leaves
    # out: how long both are alive depends on the network.
    overlap = strategy in ("zero2", "zero3")
    *measured, _ = world_of(2).run(peaks_of_a_step, strategy, size, sequence, overlap)[0]
    predicted = peak(setup(strategy, size, sequence, prefetch=1))
    assert max(measured) == pytest.approx(predicted.total, rel=0.06)
