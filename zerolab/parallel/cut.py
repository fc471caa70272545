"""How tensor parallelism divides a parameter: what a rank takes of it, and the way back.

    3 parts on 2 ranks, along a dimension of 12:     q q q q | k k k k | v v v v
    rank 0 takes                                     q q     | k k     | v v
    rank 1 takes                                         q q |     k k |     v v

Every parameter that is cut says how in its `cut` attribute, so that it can be put together again,
and so that a rank can read its share of a whole one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zerolab.parallel.regions import Ranks
from zerolab.runtime.collectives import broadcast


@dataclass(frozen=True)
class Cut:
    """A parameter is divided over `ranks` along `dimension`, within each of `parts` parts.

    parts is 3 for queries, keys and values in one matrix: a rank has its heads' of each.
    """

    ranks: Ranks
    dimension: int
    parts: int = 1

    def own(self, whole: Tensor, name: str) -> Tensor:
        """This rank's share of a whole tensor."""
        size = whole.shape[self.dimension]
        if size % (self.parts * self.ranks.count):
            parts = f"{self.parts} × " if self.parts > 1 else ""
            raise ValueError(
                f"{name} is {size} wide, which does not divide into {parts}{self.ranks.count} "
                "ranks: choose a number of ranks that divides it"
            )
        pieces = self.pieces(size, self.ranks.rank)
        return torch.cat([self._piece(whole, piece) for piece in pieces], self.dimension)

    def whole(self, own: Tensor, name: str) -> Tensor:
        """The whole tensor, on every rank. The ranks' shares arrive one after the other, so that
        beyond the whole there is never more than one of them."""
        shape, own = self.whole_shape(own.shape), own.contiguous()
        whole, size = own.new_empty(shape), shape[self.dimension]
        arriving = torch.empty_like(own)
        for rank in range(self.ranks.count):
            share = own if rank == self.ranks.rank else arriving
            broadcast(share, rank, name, self.ranks.group).wait()
            parts = share.chunk(self.parts, self.dimension)
            for piece, part in zip(self.pieces(size, rank), parts, strict=True):
                self._piece(whole, piece).copy_(part)
        return whole

    def whole_shape(self, own: Sequence[int]) -> tuple[int, ...]:
        """The whole tensor's shape, from that of a share."""
        return self._scaled(own, own[self.dimension] * self.ranks.count)

    def own_shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """A share's shape, from that of the whole tensor."""
        return self._scaled(whole, whole[self.dimension] // self.ranks.count)

    def pieces(self, size: int, rank: int) -> list[slice]:
        """Where a rank's share lies along the dimension of a whole tensor, which is `size` there:
        a piece for each part."""
        width = size // (self.parts * self.ranks.count)
        starts = [(part * self.ranks.count + rank) * width for part in range(self.parts)]
        return [slice(start, start + width) for start in starts]

    def _piece(self, whole: Tensor, piece: slice) -> Tensor:
        return whole.narrow(self.dimension, piece.start, piece.stop - piece.start)

    def _scaled(self, shape: Sequence[int], size: int) -> tuple[int, ...]:
        return (*shape[: self.dimension], size, *shape[self.dimension + 1 :])


def cut_parameter(parameter: Tensor, cut: Cut, name: str) -> nn.Parameter:
    """A parameter of this rank's share, marked with how it was cut."""
    own = nn.Parameter(cut.own(parameter.detach(), name), parameter.requires_grad)
    own.cut = cut  # type: ignore[attr-defined]
    return own
