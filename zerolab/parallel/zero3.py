"""ZeRO-3, PyTorch's FSDP: parameters are sharded too.

                 parameters   gradients   optimizer
    each rank    shard        shard       shard

Gather, compute, discard: a unit's parameters are whole only while it computes, once in forward and
once more in backward. Each costs an all-gather, Ψ; with the reduce-scatter of gradients that makes
3Ψ. Nothing is published after the step: the next forward gathers what it needs.
Source: arXiv 1910.02054, sections 5.3 and 7.2.2.

A shard can be cut in two ways:

    flat     every unit is cut into N chunks: all ranks send and keep the same
    owner    every unit belongs to one rank, which broadcasts it and to which gradients are reduced:
             easier to tell, but one rank sends while the others wait, and shares are uneven
"""

from typing import Literal

from torch import nn

from zerolab.accounting.errors import unknown_name
from zerolab.accounting.strategies import SHARDING
from zerolab.parallel.flat import FlatUnit
from zerolab.parallel.zero2 import Zero2
from zerolab.runtime.collectives import Work, reduce

LAYOUTS = ("flat", "owner")


class Zero3(Zero2):
    """ZeRO stage 3; see `Strategy` for the other arguments.

    layout: "flat" or "owner".
    """

    sharding = SHARDING["zero3"]

    def __init__(
        self, module: nn.Module, *, layout: Literal["flat", "owner"] = "flat", **arguments
    ) -> None:
        if layout not in LAYOUTS:
            raise unknown_name("layout", layout, LAYOUTS)
        self.layout = layout
        self._owned: dict[int, int] = {}  # elements that each rank owns so far
        super().__init__(module, **arguments)

    def owner_of(self, elements: int) -> int | None:
        if self.layout == "flat":
            return None
        rank = min(range(self.ranks), key=lambda rank: self._owned.get(rank, 0))
        self._owned[rank] = self._owned.get(rank, 0) + elements
        return rank

    def gather(self, unit: FlatUnit) -> Work:
        unit.allocate()
        return unit.gather_chunks(unit.gathered, self.group)

    def reduce(self, unit: FlatUnit) -> Work:
        if unit.owner is None:
            return super().reduce(unit)
        return reduce(unit.complete_gradient(), unit.owner, unit.name, self.group)

    def publish(self, unit: FlatUnit) -> Work:
        return Work()
