"""ZeRO-3, PyTorch's FSDP: parameters are sharded too.

                 parameters   gradients   optimizer
    each rank    shard        shard       shard

Gather, compute, discard: a unit's parameters are whole only while it computes, once in forward and
once more in backward. Each costs an all-gather, Ψ; with the reduce-scatter of gradients that makes
3Ψ. Nothing is published after the step: the next forward gathers what it needs.
Source: arXiv 1910.02054, sections 5.3 and 7.2.2.
"""

from zerolab.accounting.strategies import SHARDING
from zerolab.parallel.flat import FlatUnit
from zerolab.parallel.zero2 import Zero2
from zerolab.runtime.collectives import Work, all_gather


class Zero3(Zero2):
    """ZeRO stage 3; see `Strategy` for the arguments."""

    sharding = SHARDING["zero3"]

    def gather(self, unit: FlatUnit) -> Work:
        unit.allocate()
        return all_gather(unit.gathered, unit.name, self.group)

    def publish(self, unit: FlatUnit) -> Work:
        return Work()
