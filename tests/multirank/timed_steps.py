"""Steps of a small model, timed from outside and its units from inside; and their prediction.

A unit multiplies matrices, as long as that takes on this machine at this moment, and notes it. The
model of a step's time gets these very seconds. So what is held against the clock is the order of
gathering, computing and reducing, and what the link takes: not how busy the machine is.
"""

from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn

from zerolab import ShardedAdam
from zerolab.accounting import Link
from zerolab.accounting.activations import Batch
from zerolab.accounting.models import Shape
from zerolab.accounting.moments import Setup
from zerolab.accounting.step_time import walk
from zerolab.parallel import STRATEGIES

SHAPE = Shape(layers=4, hidden=64, heads=4, feed_forward=256, vocabulary=400)  # 1 MB in fp32
PRODUCTS = 20  # of matrices, in a block's forward; twice as many in its backward
MATRIX = torch.ones(256, 256)


def busy(products: int) -> float:
    """Multiply; return the seconds that it took."""
    start = perf_counter()
    for _ in range(products):
        torch.mm(MATRIX, MATRIX)
    return perf_counter() - start


class Compute(torch.autograd.Function):
    """The identity, busy in both directions."""

    @staticmethod
    def forward(ctx, x, unit):
        ctx.unit = unit
        unit.forward_seconds = busy(unit.products)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.unit.backward_seconds = busy(2 * ctx.unit.products)
        return gradient, None


class Unit(nn.Module):
    """Some parameters, and some time."""

    def __init__(self, size: int, products: int = 0):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.products = products
        self.forward_seconds = self.backward_seconds = 0.0

    def forward(self, x):
        return Compute.apply(x + self.weight.sum(), self)


class Model(nn.Module):
    """Units of the shape's sizes."""

    def __init__(self, products: int):
        super().__init__()
        self.embedding = Unit(SHAPE.embedding)
        self.blocks = nn.ModuleList(Unit(SHAPE.block, products) for _ in range(SHAPE.layers))
        self.output = Unit(SHAPE.output)

    @property
    def units(self) -> list[Unit]:
        return [self.embedding, *self.blocks, self.output]

    def forward(self, x):
        for unit in self.units:
            x = unit(x)
        return x.sum()


@dataclass
class Step:
    """Seconds of one step on one rank, and of each unit's computing in it."""

    total: float
    forward: list[float]
    backward: list[float]


class Trainer:
    """One strategy on this rank."""

    def __init__(self, strategy: str, products: int = PRODUCTS):
        self.model = Model(products)
        self.sharded = STRATEGIES[strategy](self.model)
        assert self.sharded.unit_sizes == SHAPE.unit_sizes
        self.optimizer = ShardedAdam(self.sharded)

    def step(self) -> Step:
        dist.barrier()
        start = perf_counter()
        self.sharded(torch.zeros(1)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.barrier()
        total = perf_counter() - start
        units = self.model.units
        forward, backward = zip(
            *((unit.forward_seconds, unit.backward_seconds) for unit in units), strict=True
        )
        return Step(total, list(forward), list(backward))


def predicted(strategy: str, link: Link, steps: list[Step]) -> float:
    """Seconds of a step whose units compute as long as in `steps`, one of each rank.

    A collective waits for the last rank, so the slowest rank's prediction is the step's.
    """
    setup = Setup(
        shape=SHAPE,
        strategy=strategy,
        ranks=len(steps),
        precision="fp32",
        batch=Batch(size=1, sequence=1, element=4),
        prefetch=1,
    )
    return max(walk(setup, link, step.forward, step.backward).total for step in steps)
