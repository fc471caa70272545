"""Predicted step times against measured ones, on emulated links.

Compute is emulated as well: a unit sleeps for as long as it would compute. So what is measured is
the order of gathering, computing and reducing, and not how busy this machine is.
"""

from statistics import median
from time import perf_counter, sleep

import pytest
import torch
from torch import nn

from zerolab import ShardedAdam
from zerolab.accounting import STRATEGIES, Link
from zerolab.accounting.activations import Batch
from zerolab.accounting.models import Shape
from zerolab.accounting.moments import Setup
from zerolab.accounting.step_time import walk
from zerolab.parallel import STRATEGIES as CLASSES
from zerolab.runtime.link import use_link

RANKS = 2
SHAPE = Shape(layers=4, hidden=64, heads=4, feed_forward=256, vocabulary=400)
FORWARD, BACKWARD = 0.02, 0.04  # seconds a block
LINKS = {
    "hidden behind compute": Link("fast", 1e-4, 20e6, "test"),
    "about as long as compute": Link("even", 1e-3, 3e6, "test"),
    "longer than compute": Link("slow", 5e-3, 1e6, "test"),
}


class Sleep(torch.autograd.Function):
    """The identity, taking its time in both directions."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.seconds = backward
        sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        sleep(ctx.seconds)
        return gradient, None, None


class Unit(nn.Module):
    """Some parameters, and some time."""

    def __init__(self, size, forward=0.0, backward=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.seconds = (forward, backward)

    def forward(self, x):
        return Sleep.apply(x + self.weight.sum(), *self.seconds)


class Model(nn.Module):
    """Units of the shape's sizes."""

    def __init__(self):
        super().__init__()
        self.embedding = Unit(SHAPE.embedding)
        self.blocks = nn.ModuleList(
            Unit(SHAPE.block, FORWARD, BACKWARD) for _ in range(SHAPE.layers)
        )
        self.output = Unit(SHAPE.output)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.output(x).sum()


def measured_steps(rank, strategy):
    """Seconds of one step on each link, after one to warm up."""
    model = CLASSES[strategy](Model())
    optimizer = ShardedAdam(model)
    found = {}
    for name, link in LINKS.items():
        use_link(link)
        for _ in range(2):
            torch.distributed.barrier()
            start = perf_counter()
            model(torch.zeros(1)).backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.distributed.barrier()
            found[name] = perf_counter() - start
    use_link(None)
    return model.unit_sizes, found


def predicted_step(strategy, link):
    setup = Setup(
        shape=SHAPE,
        strategy=strategy,
        ranks=RANKS,
        precision="fp32",
        batch=Batch(size=1, sequence=1, element=4),
        prefetch=1,
    )
    forward, backward = ([0.0, *[seconds] * SHAPE.layers, 0.0] for seconds in (FORWARD, BACKWARD))
    return walk(setup, link, forward, backward).total


@pytest.fixture(scope="module")
def measured(world_of):
    found = {}
    for strategy in STRATEGIES:
        sizes, seconds = world_of(RANKS).run(measured_steps, strategy)[0]
        assert sizes == SHAPE.unit_sizes
        found |= {(strategy, name): time for name, time in seconds.items()}
    return found


def test_median_error_is_at_most_15_percent(measured):
    errors = {
        (strategy, name): predicted_step(strategy, LINKS[name]) / seconds - 1
        for (strategy, name), seconds in measured.items()
    }
    report = {key: f"{error:+.0%}" for key, error in errors.items()}
    assert median(map(abs, errors.values())) <= 0.15, report


def test_no_step_is_shorter_than_predicted(measured):
    # Sleeping and delivering never end early; what this machine adds only makes steps longer.
    for (strategy, name), seconds in measured.items():
        assert seconds >= 0.97 * predicted_step(strategy, LINKS[name]), (strategy, name)
