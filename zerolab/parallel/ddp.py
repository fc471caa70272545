"""Data parallelism: everything whole on every rank. The measure of the waste.

                 parameters   gradients   optimizer
    each rank    whole        whole       whole

Gradients are all-reduced, then every rank makes the same update. 2Ψ (N-1)/N on the wire: an
all-reduce is a reduce-scatter (Ψ) and an all-gather (Ψ), which is where ZeRO begins.
"""

from zerolab.accounting.strategies import SHARDING
from zerolab.parallel.flat import FlatUnit
from zerolab.parallel.strategy import Strategy
from zerolab.runtime.collectives import Work, all_reduce


class DDP(Strategy):
    """Distributed data parallelism; see `Strategy` for the arguments."""

    sharding = SHARDING["ddp"]

    def reduce(self, unit: FlatUnit) -> Work:
        return all_reduce(unit.complete_gradient(), unit.name, self.group)
