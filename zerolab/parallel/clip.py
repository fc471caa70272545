"""Clipping by the global norm, when each rank holds another part of the gradient.

A local norm is wrong twice over: it misses the other ranks' chunks, and it counts what is held
everywhere N times. So every rank sums the squares of its own chunk, and the sums are added up; what
tensor parallelism has cut is summed over its ranks as well, what it has not counts once.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from zerolab.parallel.flat import FlatUnit
from zerolab.runtime.collectives import sum_over_ranks


def clip_by_global_norm(
    units: Sequence[FlatUnit], max_norm: float, group: dist.ProcessGroup | None
) -> float:
    """Scale the units' gradients so that their 2-norm over all ranks is at most `max_norm`.

    Returns the norm before scaling, the same on every rank.
    """
    gradients = [(unit, unit.kept_gradient) for unit in units]
    device = units[0].parameter.device
    squares = {unit.cut: 0.0 for unit in units}
    for unit, gradient in gradients:
        if gradient is not None:
            own = unit.own_chunk(gradient)
            squares[unit.cut] += torch.linalg.vector_norm(own, dtype=torch.float32).item() ** 2
    total = 0.0
    for cut, square in squares.items():
        square = sum_over_ranks(square, device, "gradient norm", group)
        if cut is not None:
            square = sum_over_ranks(square, device, "gradient norm", cut.ranks.group)
        total += square
    norm = total**0.5
    if norm > max_norm:
        for _, gradient in gradients:
            if gradient is not None:
                gradient.mul_(max_norm / norm)
    return norm
