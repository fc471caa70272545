"""ZeRO-2: gradients are sharded too.

                 parameters   gradients   optimizer
    each rank    whole        shard       shard

The same collectives as ZeRO-1. The one difference: as soon as a unit's gradients are reduced, each
rank keeps its own chunk and releases the rest, so whole gradients live for one unit at a time.
Source: arXiv 1910.02054, section 5.2.
"""

from zerolab.accounting.strategies import SHARDING
from zerolab.parallel.flat import FlatUnit
from zerolab.parallel.zero1 import Zero1


class Zero2(Zero1):
    """ZeRO stage 2; see `Strategy` for the arguments."""

    sharding = SHARDING["zero2"]

    def reduced(self, unit: FlatUnit) -> None:
        unit.keep_gradient_shard()
