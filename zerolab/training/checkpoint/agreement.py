"""The ranks that hold one model together, and how they come to one mind.

Data parallelism has one group of ranks, tensor parallelism another. On a mesh of both, a rank is in
two groups, and what goes through the one and then through the other reaches every rank of the mesh.
"""

import torch.distributed as dist
from torch import nn

from zerolab.parallel.strategy import Strategy
from zerolab.runtime.collectives import sum_over_ranks
from zerolab.training.checkpoint.cuts import cuts_of
from zerolab.training.checkpoint.index import CheckpointError


def is_first(model: nn.Module) -> bool:
    """Whether this is the one rank of the model's that writes."""
    return all(dist.get_rank(group) == 0 for group in _groups(model))


def first_error(model: nn.Module, error: CheckpointError | None) -> CheckpointError | None:
    """This rank's error, else that of the lowest rank that has one, else None. All of the model's
    ranks call it, and either all get an error or none does."""
    for group in _groups(model):
        device = next(model.parameters()).device
        if sum_over_ranks(error is not None, device, "checkpoint", group):
            errors: list[CheckpointError | None] = [None] * dist.get_world_size(group)
            dist.all_gather_object(errors, error, group)
            error = error or next(filter(None, errors))
    return error


def _groups(model: nn.Module) -> list[dist.ProcessGroup | None]:
    """The groups that this rank shares a model with; none for a plain module in one process."""
    groups = [model.group] if isinstance(model, Strategy) else []
    cuts = list(cuts_of(model).values())
    return [*groups, cuts[0].ranks.group] if cuts else groups
