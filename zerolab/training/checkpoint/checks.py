"""Whether a checkpoint fits a model and its optimizer: asked before anything is changed."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from zerolab.parallel.adam import ShardedOptimizer
from zerolab.parallel.strategy import Strategy
from zerolab.training.checkpoint.contents import persistent_buffers
from zerolab.training.checkpoint.cuts import bare, cuts_of
from zerolab.training.checkpoint.index import CheckpointError
from zerolab.training.checkpoint.reader import Checkpoint
from zerolab.training.checkpoint.targets import StateTarget


def check_pair(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """The optimizer is the model's own."""
    if isinstance(optimizer, ShardedOptimizer):
        fits = optimizer.model is model
    else:
        fits = optimizer is None or not isinstance(model, Strategy)
    if not fits:
        raise CheckpointError(
            f"{type(optimizer).__name__} does not update this {type(model).__name__}: give a "
            "strategy with the sharded optimizer built on it, or a plain module with torch's own"
        )


def check_model(checkpoint: Checkpoint, model: nn.Module) -> None:
    """The same names, in the same shapes; numbers of the same kind."""
    expected = _shapes(model)
    saved = checkpoint.model
    if missing := expected.keys() - set(saved.names()):
        raise CheckpointError(
            f"{checkpoint.folder} holds no {_some(missing)}, which the model has: build the model "
            "that was saved"
        )
    if unknown := set(saved.names()) - expected.keys():
        raise CheckpointError(
            f"{checkpoint.folder} holds {_some(unknown)}, which the model has not: build the model "
            "that was saved"
        )
    for name, (shape, is_floating_point) in expected.items():
        if saved.shape(name) != shape:
            raise CheckpointError(
                f"{name} has the shape {saved.shape(name)} in {checkpoint.folder} and {shape} in "
                "the model: build the model that was saved"
            )
        if saved.is_floating_point(name) != is_floating_point:
            raise CheckpointError(
                f"{name} is of integers in one of {checkpoint.folder} and the model, and of "
                "floating-point numbers in the other: build the model that was saved"
            )


def check_optimizer(
    checkpoint: Checkpoint,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    targets: list[StateTarget],
) -> None:
    """The same class and groups; state in the parameters' shapes, alike within one target."""
    index, saved, folder = checkpoint.optimizer_index, checkpoint.optimizer, checkpoint.folder
    if index is None:
        raise CheckpointError(
            f"{folder} was saved without an optimizer: load it without one, or another checkpoint"
        )
    name = type(getattr(optimizer, "inner", optimizer)).__name__
    if index["class"] != name:
        raise CheckpointError(
            f"{folder} holds the state of {index['class']}, not of {name}: build {index['class']}"
        )
    if len(index["groups"]) != len(optimizer.param_groups):
        raise CheckpointError(
            f"{folder} was saved with {len(index['groups'])} parameter groups, and the optimizer "
            f"has {len(optimizer.param_groups)}: build the groups that were saved"
        )
    for number, group in enumerate(index["groups"]):
        names = {name for target in targets if target.group == number for name in target.names}
        if different := names ^ set(group["params"]):
            raise CheckpointError(
                f"{_some(different)} is in another parameter group in {folder} than in the "
                "optimizer, or frozen in one of them: build the groups that were saved"
            )
    shapes = _shapes(model)
    for target in targets:
        keys = checkpoint.state_keys(target.names[0])
        for name in target.names:
            if set(checkpoint.state_keys(name)) != set(keys):
                raise _unlike(checkpoint, target.names[0], name)
            for key in keys:
                state = f"{name}.{key}"
                shape = () if key in index["scalars"] else shapes[name][0]
                if saved.shape(state) != shape:
                    raise CheckpointError(
                        f"{state} has the shape {saved.shape(state)} in {folder} instead of "
                        f"{shape}: load an earlier checkpoint"
                    )
                first = f"{target.names[0]}.{key}"
                if key in index["scalars"] and saved.whole(state) != saved.whole(first):
                    raise _unlike(checkpoint, target.names[0], name)


def _unlike(checkpoint: Checkpoint, one: str, other: str) -> CheckpointError:
    return CheckpointError(
        f"{one} and {other} lie in one unit and have been updated a different number of times in "
        f"{checkpoint.folder}: use the units that the checkpoint was saved with"
    )


def _shapes(model: nn.Module) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Each whole tensor's shape, and whether it is of floating-point numbers."""
    if isinstance(model, Strategy):
        found = {
            name: (tuple(shape), unit.original_dtype.is_floating_point)
            for unit in model.units
            for name, shape in zip(unit.names, unit.shapes, strict=True)
        }
    else:
        found = {name: _shape(parameter) for name, parameter in bare(model).named_parameters()}
    for name, cut in cuts_of(model).items():
        own, is_floating_point = found[name]
        found[name] = cut.whole_shape(own), is_floating_point
    return found | {name: _shape(buffer) for name, buffer in persistent_buffers(model).items()}


def _shape(tensor: Tensor) -> tuple[tuple[int, ...], bool]:
    return tuple(tensor.shape), tensor.is_floating_point()


def _some(names: Collection[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return min(names) + more
