"""What a checkpoint holds of a model and its optimizer: whole tensors, by the module's own names.

How a strategy cuts them does not show: a parameter `head.weight` is that tensor in its full shape,
and its state is `head.weight.exp_avg`, `head.weight.step`, ..., as plain torch would keep it, and
`head.weight.master` where the policy keeps an fp32 copy. Frozen parameters have no state.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zerolab.parallel.adam import ShardedOptimizer
from zerolab.parallel.flat import FlatUnit
from zerolab.parallel.strategy import Strategy
from zerolab.runtime import memory
from zerolab.training.checkpoint.index import CheckpointError

MASTER = "master"
# How an optimizer computes, not what: up to the machine that resumes.
EXECUTION = ("params", "foreach", "fused", "capturable", "differentiable")


class Content(NamedTuple):
    """What goes into one file. All ranks call `tensors`, a collective: whole tensors by name."""

    kind: str  # "model" or "optimizer"
    tensors: Callable[[], dict[str, Tensor]]


def contents(model: Strategy, optimizer: ShardedOptimizer | None) -> list[Content]:
    """A model's files, then its optimizer's. Each but those of buffers and of scalars holds one
    flat tensor, so that one is whole at a time."""
    found = [Content("model", partial(_parameters, model, unit)) for unit in model.units]
    if buffers := persistent_buffers(model):
        found.append(Content("model", partial(_copies, buffers)))
    if optimizer is None:
        return found
    scalars: dict[str, Tensor] = {}
    for unit in model.units:
        keys: dict[str, None] = {}  # a set in order
        for part, state in _states(optimizer, unit):
            for key, value in state.items():
                if _is_scalar(value):
                    scalars |= {f"{name}.{key}": value for name in part.names}
                else:
                    keys[key] = None
        found += [Content("optimizer", partial(_state, optimizer, unit, key)) for key in keys]
    if scalars:
        found.append(Content("optimizer", partial(_copies, scalars)))
    return found


def optimizer_index(optimizer: ShardedOptimizer) -> dict[str, Any]:
    """An optimizer's class, its groups with their hyperparameters, and which state is one number a
    tensor instead of one an element."""
    names = {part.updated: part.names for part in optimizer.parts}
    groups = []
    for group in optimizer.param_groups:
        settings = {
            key: value.item() if isinstance(value, Tensor) else value
            for key, value in group.items()
            if key not in EXECUTION
        }
        groups.append({"params": [n for p in group["params"] for n in names[p]], **settings})
    states = (state for unit in optimizer.model.units for _, state in _states(optimizer, unit))
    scalars = {key for state in states for key, value in state.items() if _is_scalar(value)}
    return {"class": type(optimizer.inner).__name__, "groups": groups, "scalars": sorted(scalars)}


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file holds tensors without gaps, no two of which share memory."""
    layout = torch.contiguous_format
    return {name: tensor.detach().clone(memory_format=layout) for name, tensor in tensors.items()}


def _is_scalar(state: Tensor) -> bool:
    return state.dim() == 0  # a part's other state is flat


def _parameters(model: Strategy, unit: FlatUnit) -> dict[str, Tensor]:
    whole = unit.parameter
    if unit.sharded:
        whole = memory.tag(unit.parameter.new_zeros(unit.size), "gathered")
        whole[unit.shard] = unit.parameter
        unit.gather_chunks(whole, model.group).wait()
    return dict(zip(unit.names, unit.split(whole), strict=True))


def _state(optimizer: ShardedOptimizer, unit: FlatUnit, key: str) -> dict[str, Tensor]:
    """One kind of state, whole, of the unit's parameters that have it."""
    having = [(part, state[key]) for part, state in _states(optimizer, unit) if key in state]
    whole = memory.tag(having[0][1].new_zeros(unit.size), "gathered")
    for part, value in having:
        whole[part.owned] = value
    if optimizer.model.sharding.optimizer == "shard":
        unit.gather_chunks(whole, optimizer.model.group).wait()
    views = dict(zip(unit.names, unit.split(whole), strict=True))
    return {f"{name}.{key}": views[name] for part, _ in having for name in part.names}


def _states(optimizer: ShardedOptimizer, unit: FlatUnit) -> Iterator[tuple[Any, dict[str, Tensor]]]:
    """Each part of the unit with its state, the master copy included."""
    for part in optimizer.parts:
        if part.unit is unit:
            state = {
                k: v for k, v in optimizer.state.get(part.updated, {}).items() if v is not None
            }
            for key, value in state.items():
                if not isinstance(value, Tensor) or value.shape not in ((), part.updated.shape):
                    raise CheckpointError(
                        f"state {key!r} of {type(optimizer.inner).__name__} is neither one value "
                        "an element nor one a tensor, so it cannot be saved by parameter: use an "
                        "element-wise optimizer, as AdamW or SGD"
                    )
            yield part, {**state, MASTER: part.updated} if part.has_master else state


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that belong in a checkpoint, each under the first of its names."""
    module = module.module if isinstance(module, Strategy) else module
    saved = module.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in module.named_buffers() if name in saved}
