"""Where a tensor-parallel computation splits and comes together: Megatron's f and g.

    x (same on all ranks) -> f -> column-parallel -> ... -> row-parallel -> g -> y (same on all)

                 forward        backward
    f            identity       all-reduce        every rank's branch adds to the gradient of x
    g            all-reduce     identity          every rank holds a part of the sum y

With sequence parallelism the tensors between g and f are cut along the sequence, and the two halves
of an all-reduce move to either side:

    f            all-gather     reduce-scatter
    g            reduce-scatter all-gather

Both cost one all-reduce a direction. Unlike ZeRO's traffic it is of activations: it grows with the
tokens, not with the parameters, and nothing can be computed until it is complete.
Sources: arXiv 1909.08053, section 3; arXiv 2205.05198, section 4.2.2.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zerolab.runtime.collectives import all_gather, all_reduce, reduce_scatter

SEQUENCE = -2  # the dimension of tokens in (B, T, C), and in (T, C)


@dataclass(frozen=True)
class Ranks:
    """The ranks that share each layer, and whether the sequence is cut between layers."""

    group: dist.ProcessGroup | None = None
    sequence_parallel: bool = False

    @property
    def count(self) -> int:
        return dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)


def enter(x: Tensor, ranks: Ranks, label: str) -> Tensor:
    """f: what a rank's part of a layer reads."""
    return (
        _GatherSequence.apply(x, ranks, label)
        if ranks.sequence_parallel
        else _F.apply(x, ranks, label)
    )


def leave(x: Tensor, ranks: Ranks, label: str) -> Tensor:
    """g: the sum of what the ranks' parts of a layer give."""
    return (
        _ScatterSequence.apply(x, ranks, label)
        if ranks.sequence_parallel
        else _G.apply(x, ranks, label)
    )


def own_tokens(x: Tensor, ranks: Ranks) -> Tensor:
    """This rank's part of a sequence that is whole on all ranks, (..., T, C) -> (..., T/N, C)."""
    _check_tokens(x, ranks)
    return x.chunk(ranks.count, SEQUENCE)[ranks.rank]


def gather_columns(x: Tensor, ranks: Ranks, label: str) -> Tensor:
    """Whole features from each rank's, (..., C/N) -> (..., C); backward keeps one's own."""
    return _GatherColumns.apply(x, ranks, label)


class _F(torch.autograd.Function):
    """Megatron's f: identity forward, all-reduce backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, label: str) -> Tensor:
        ctx.ranks, ctx.label = ranks, label
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):
        return summed(gradient, ctx.ranks, f"{ctx.label} backward"), None, None


class _G(torch.autograd.Function):
    """Megatron's g: all-reduce forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, label: str) -> Tensor:
        return summed(x, ranks, label)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):
        return gradient, None, None


class _GatherSequence(torch.autograd.Function):
    """f under sequence parallelism: (..., T/N, C) -> (..., T, C)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, label: str) -> Tensor:
        ctx.ranks, ctx.label = ranks, label
        return _gathered(x, ranks, SEQUENCE, label)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):
        label = f"{ctx.label} backward"
        return _summed_part(gradient, ctx.ranks, SEQUENCE, label), None, None


class _ScatterSequence(torch.autograd.Function):
    """g under sequence parallelism: (..., T, C) -> (..., T/N, C)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, label: str) -> Tensor:
        ctx.ranks, ctx.label = ranks, label
        return _summed_part(x, ranks, SEQUENCE, label)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):
        return _gathered(gradient, ctx.ranks, SEQUENCE, f"{ctx.label} backward"), None, None


class _GatherColumns(torch.autograd.Function):
    """Features put side by side; what follows is the same on all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, label: str) -> Tensor:
        ctx.ranks = ranks
        return _gathered(x, ranks, -1, label)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):
        return gradient.chunk(ctx.ranks.count, -1)[ctx.ranks.rank], None, None


def summed(x: Tensor, ranks: Ranks, label: str) -> Tensor:
    """The sum of `x` over the ranks, in memory of its own."""
    size = -(-x.numel() // ranks.count) * ranks.count
    flat = x.new_empty(size)  # padded, where the elements do not divide into chunks
    flat[: x.numel()].view(x.shape).copy_(x)
    flat[x.numel() :].zero_()
    all_reduce(flat, label, ranks.group).wait()
    return flat[: x.numel()].view(x.shape)


def _gathered(x: Tensor, ranks: Ranks, dimension: int, label: str) -> Tensor:
    """The ranks' tensors put together along a dimension."""
    parts = x.new_empty(ranks.count, *x.shape)
    parts[ranks.rank] = x
    all_gather(parts.view(-1), label, ranks.group).wait()
    return torch.cat(parts.unbind(), dimension)


def _summed_part(x: Tensor, ranks: Ranks, dimension: int, label: str) -> Tensor:
    """This rank's part, along a dimension, of the sum over the ranks."""
    _check_tokens(x, ranks)
    parts = torch.stack(x.chunk(ranks.count, dimension))
    reduce_scatter(parts.view(-1), label, ranks.group).wait()
    return parts[ranks.rank].clone()


def _check_tokens(x: Tensor, ranks: Ranks) -> None:
    if x.shape[SEQUENCE] % ranks.count:
        raise ValueError(
            f"a sequence of {x.shape[SEQUENCE]} tokens does not divide into {ranks.count} parts: "
            "cut or pad it, or leave sequence parallelism out"
        )
