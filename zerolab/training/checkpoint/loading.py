"""Loading: check everything, then fill what this rank keeps."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zerolab.parallel.cut import Cut
from zerolab.parallel.flat import Run
from zerolab.runtime import memory
from zerolab.training.checkpoint.agreement import first_error
from zerolab.training.checkpoint.checks import check_model, check_optimizer, check_pair
from zerolab.training.checkpoint.contents import persistent_buffers
from zerolab.training.checkpoint.cuts import cuts_of
from zerolab.training.checkpoint.index import CheckpointError
from zerolab.training.checkpoint.reader import Checkpoint
from zerolab.training.checkpoint.sources import MASTER
from zerolab.training.checkpoint.targets import (
    StateTarget,
    fill,
    parameter_targets,
    set_hyperparameters,
    state_targets,
)


@torch.no_grad()
def load(
    folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> Any:
    """Load a model and its optimizer's state; returns the `extra` that was saved.

    model, optimizer: a strategy and its sharded optimizer, or a `TensorParallel` module and a torch
        optimizer, on all ranks; or a plain module and a torch optimizer, in one process. Optimizers
        are of the class that was saved.

    Where an fp32 master copy was saved and the optimizer is loaded too, parameters are rounded from
    that. Raises CheckpointError before anything is changed, on all ranks where one of them finds
    that a file is missing, damaged, foreign or cannot be read, or that names or shapes do not fit.
    """
    check_pair(model, optimizer)
    checkpoint = error = None
    targets: list[StateTarget] = []
    try:
        checkpoint = Checkpoint(folder)
        check_model(checkpoint, model)
        if optimizer is not None:
            targets = state_targets(model, optimizer)
            check_optimizer(checkpoint, model, optimizer, targets)
    except CheckpointError as found:
        error = found
    except Exception as found:  # whatever it is, the other ranks are waiting
        error = CheckpointError(
            f"{folder} could not be read ({type(found).__name__}: {found}): nothing has been "
            "loaded; mend the cause, load again"
        )
    if error := first_error(model, error):
        raise error
    assert checkpoint is not None
    cuts = cuts_of(model)
    _fill_model(checkpoint, model, cuts, with_masters=optimizer is not None)
    if optimizer is not None:
        _fill_optimizer(checkpoint, optimizer, targets, cuts)
    return checkpoint.extra


def _fill_model(
    checkpoint: Checkpoint, model: nn.Module, cuts: dict[str, Cut], with_masters: bool
) -> None:
    for tensor, runs in parameter_targets(model):
        fill(tensor, runs, partial(_parameter, checkpoint, cuts, with_masters))
    for name, buffer in persistent_buffers(model).items():
        buffer.copy_(checkpoint.model.whole(name))


def _fill_optimizer(
    checkpoint: Checkpoint,
    optimizer: torch.optim.Optimizer,
    targets: list[StateTarget],
    cuts: dict[str, Cut],
) -> None:
    assert checkpoint.optimizer_index is not None
    saved, scalars = checkpoint.optimizer, checkpoint.optimizer_index["scalars"]
    for group, settings in zip(
        optimizer.param_groups, checkpoint.optimizer_index["groups"], strict=True
    ):
        set_hyperparameters(group, settings)
    for target in targets:
        if target.has_master:
            fill(target.updated, target.runs, partial(_parameter, checkpoint, cuts, True))
        optimizer.state.pop(target.updated, None)  # before the new one takes memory
        group = optimizer.param_groups[target.group]
        on_device = group.get("fused") or group.get("capturable")  # where torch keeps step counts
        state: dict[str, Tensor] = {}
        for key in checkpoint.state_keys(target.names[0]):
            if key in scalars:
                value = saved.whole(f"{target.names[0]}.{key}").clone()
                state[key] = value.to(target.updated.device) if on_device else value
            elif key != MASTER:
                state[key] = target.updated.new_zeros(target.updated.shape)
                fill(state[key], target.runs, partial(_state, checkpoint, cuts, key))
        if state:
            optimizer.state[target.updated] = state
        for value in state.values():
            memory.tag(value, "optimizer")


def _parameter(
    checkpoint: Checkpoint, cuts: dict[str, Cut], with_masters: bool, run: Run
) -> Tensor:
    """A parameter's elements, as precisely as they were saved."""
    if with_masters and MASTER in checkpoint.state_keys(run.name):
        return _state(checkpoint, cuts, MASTER, run)
    return checkpoint.model.elements(run.name, run.first, run.last, cuts.get(run.name))


def _state(checkpoint: Checkpoint, cuts: dict[str, Cut], key: str, run: Run) -> Tensor:
    name = f"{run.name}.{key}"
    return checkpoint.optimizer.elements(name, run.first, run.last, cuts.get(run.name))
