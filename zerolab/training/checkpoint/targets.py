"""What a rank fills from a checkpoint: flat tensors, or without a strategy parameters."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zerolab.parallel.adam import ShardedOptimizer
from zerolab.parallel.flat import Run
from zerolab.parallel.strategy import Strategy
from zerolab.training.checkpoint.cuts import bare
from zerolab.training.checkpoint.index import CheckpointError

# How an optimizer computes, not what: up to the machine that resumes.
EXECUTION = ("params", "foreach", "fused", "capturable", "differentiable")


def parameter_targets(model: nn.Module) -> Iterator[tuple[Tensor, list[Run]]]:
    """This rank's parameter tensors, and which elements of which parameters they hold.

    A tensor is a unit's flat one, or without a strategy the parameter itself, in its own shape.
    Elements are those of what tensor parallelism leaves on this rank, where it has cut a parameter.
    """
    if isinstance(model, Strategy):
        for unit in model.units:
            unit.reshard()  # what may have been gathered ahead is out of date
            part = unit.shard if unit.sharded else slice(0, unit.size)
            yield unit.parameter, list(unit.runs(part))
    else:
        for name, parameter in bare(model).named_parameters():
            yield parameter, [Run(name, 0, parameter.numel(), 0)]


@dataclass(eq=False)
class StateTarget:
    """A tensor that an optimizer updates: its parameters, and which of their elements are here."""

    updated: Tensor
    group: int
    names: list[str]
    runs: list[Run]
    has_master: bool


def state_targets(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[StateTarget]:
    """What an optimizer updates on this rank, in the order of its groups."""
    part_of = name_of = {}
    if isinstance(optimizer, ShardedOptimizer):
        part_of = {part.updated: part for part in optimizer.parts}
    else:
        name_of = {parameter: name for name, parameter in bare(model).named_parameters()}
    targets = []
    for number, group in enumerate(optimizer.param_groups):
        for updated in group["params"]:
            if part := part_of.get(updated):
                runs = list(part.unit.runs(part.owned))
                targets.append(StateTarget(updated, number, part.names, runs, part.has_master))
            elif name := name_of.get(updated):
                if updated.requires_grad:
                    runs = [Run(name, 0, updated.numel(), 0)]
                    targets.append(StateTarget(updated, number, [name], runs, False))
            else:
                raise CheckpointError(
                    f"{type(optimizer).__name__} updates a tensor of shape {tuple(updated.shape)} "
                    "that is no parameter of the model: build it on the parameters of the model"
                )
    return targets


def fill(tensor: Tensor, runs: list[Run], elements: Callable[[Run], Tensor]) -> None:
    """Copy each run's elements to its place in a flat tensor, or into a parameter's own shape."""
    for run in runs:
        place = tensor[run.at : run.at + run.last - run.first] if tensor.dim() == 1 else tensor
        place.copy_(elements(run).view(place.shape))


def set_hyperparameters(group: dict[str, Any], saved: dict[str, Any]) -> None:
    """Give an optimizer's group the saved settings, in the types that it has them in."""
    for key, value in saved.items():
        if key in EXECUTION:
            continue
        if isinstance(group.get(key), Tensor):
            group[key].fill_(value)
        else:
            group[key] = tuple(value) if isinstance(value, list) else value
