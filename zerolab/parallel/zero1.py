"""ZeRO-1: the optimizer state is sharded.

                 parameters   gradients   optimizer
    each rank    whole        whole       shard

DDP's all-reduce is cut in two, and the optimizer's step put in between: reduce-scatter the
gradients, update one's own shard, all-gather the parameters. The bytes on the wire stay 2Ψ.
Source: arXiv 1910.02054, section 5.1.
"""

from zerolab.accounting.strategies import SHARDING
from zerolab.parallel.flat import FlatUnit
from zerolab.parallel.strategy import Strategy
from zerolab.runtime.collectives import Work, all_gather, reduce_scatter


class Zero1(Strategy):
    """ZeRO stage 1; see `Strategy` for the arguments."""

    sharding = SHARDING["zero1"]

    def reduce(self, unit: FlatUnit) -> Work:
        return reduce_scatter(unit.complete_gradient(), unit.name, self.group)

    def publish(self, unit: FlatUnit) -> Work:
        return all_gather(unit.parameter, unit.name, self.group)
