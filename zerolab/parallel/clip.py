"""Clipping by the global norm, when each rank holds another part of the gradient.

A local norm is wrong twice over: it misses the other ranks' chunks, and it counts what is held
everywhere N times. So every rank sums the squares of its own chunk, and the sums are added up.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from zerolab.parallel.flat import FlatUnit
from zerolab.runtime.collectives import all_reduce


def clip_by_global_norm(
    units: Sequence[FlatUnit], max_norm: float, group: dist.ProcessGroup | None
) -> Tensor:
    """Scale the units' gradients so that their 2-norm over all ranks is at most `max_norm`.

    Returns the norm before scaling, a scalar, the same on every rank.
    """
    gradients = [(unit, unit.kept_gradient) for unit in units]
    # One equal element a rank, because a collective's tensor divides into chunks.
    squares = units[0].parameter.new_zeros(dist.get_world_size(group), dtype=torch.float32)
    for unit, gradient in gradients:
        if gradient is not None:
            squares += unit.own_chunk(gradient).float().square().sum()
    all_reduce(squares, "gradient norm", group).wait()
    norm = squares[0].sqrt()
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)  # the epsilon of torch's own clipping
    for _, gradient in gradients:
        if gradient is not None:
            gradient.mul_(scale)
    return norm
