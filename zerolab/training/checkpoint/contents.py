"""What a checkpoint holds of a model and its optimizer: whole tensors, by the module's own names.

How a strategy cuts them does not show: a parameter `head.weight` is that tensor in its full shape,
and its state is `head.weight.exp_avg`, `head.weight.step`, ..., as plain torch would keep it, and
`head.weight.master` where the policy keeps an fp32 copy. Frozen parameters have no state.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zerolab.parallel.cut import Cut
from zerolab.runtime import memory
from zerolab.training.checkpoint.cuts import bare, cuts_of
from zerolab.training.checkpoint.index import CheckpointError
from zerolab.training.checkpoint.sources import Source, sources_of
from zerolab.training.checkpoint.targets import EXECUTION, state_targets


class Content(NamedTuple):
    """What goes into one file. All ranks call `tensors`, a collective: whole tensors by name."""

    kind: str  # "model" or "optimizer"
    tensors: Callable[[], dict[str, Tensor]]


def contents(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> list[Content]:
    """A model's files, then its optimizer's. Each but those of buffers and of scalars holds one
    source, so that one is whole at a time."""
    sources, cuts = sources_of(model, optimizer), cuts_of(model)
    found = [Content("model", partial(_parameters, source, cuts)) for source in sources]
    if buffers := persistent_buffers(model):
        found.append(Content("model", partial(_copies, buffers)))
    if optimizer is None:
        return found
    one_a_tensor, scalars = scalar_keys(sources, optimizer), dict[str, Tensor]()
    for source in sources:
        keys: dict[str, None] = {}  # a set in order
        for state in source.states():
            for key, value in state.values.items():
                if key in one_a_tensor:
                    scalars |= {f"{name}.{key}": value for name in state.names}
                else:
                    keys[key] = None
        found += [Content("optimizer", partial(_state, source, cuts, key)) for key in keys]
    if scalars:
        found.append(Content("optimizer", partial(_copies, scalars)))
    return found


def optimizer_index(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's class, its groups with their hyperparameters, and which state is one number a
    tensor instead of one an element."""
    targets = state_targets(model, optimizer)
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        settings = {
            key: value.item() if isinstance(value, Tensor) else value
            for key, value in group.items()
            if key not in EXECUTION
        }
        names = [name for target in targets if target.group == number for name in target.names]
        groups.append({"params": names, **settings})
    scalars = scalar_keys(sources_of(model, optimizer), optimizer)
    name = type(getattr(optimizer, "inner", optimizer)).__name__
    return {"class": name, "groups": groups, "scalars": sorted(scalars)}


def scalar_keys(sources: Sequence[Source], optimizer: torch.optim.Optimizer) -> set[str]:
    """The kinds of state that are one number a tensor, not one an element."""
    found = set()
    for state in (state for source in sources for state in source.states()):
        for key, value in state.values.items():
            if not isinstance(value, Tensor) or value.shape not in ((), state.updated.shape):
                raise CheckpointError(
                    f"state {key!r} of {type(getattr(optimizer, 'inner', optimizer)).__name__} is "
                    "neither one value an element nor one a tensor, so it cannot be saved by "
                    "parameter: use an element-wise optimizer, as AdamW or SGD"
                )
            if value.dim() < state.updated.dim():  # a parameter may be a single number itself
                found.add(key)
    return found


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file holds tensors without gaps, no two of which share memory."""
    layout = torch.contiguous_format
    return {name: tensor.detach().clone(memory_format=layout) for name, tensor in tensors.items()}


def _parameters(source: Source, cuts: Mapping[str, Cut]) -> dict[str, Tensor]:
    return _put_together(source.parameters(), cuts)


def _state(source: Source, cuts: Mapping[str, Cut], key: str) -> dict[str, Tensor]:
    whole = _put_together(source.state(key), cuts)
    return {f"{name}.{key}": value for name, value in whole.items()}


def _put_together(own: dict[str, Tensor], cuts: Mapping[str, Cut]) -> dict[str, Tensor]:
    """Whole tensors, where tensor parallelism has cut them."""
    return {
        name: memory.tag(cuts[name].whole(value, name), "gathered") if name in cuts else value
        for name, value in own.items()
    }


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that belong in a checkpoint, each under the first of its names."""
    module = bare(model)
    saved = module.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in module.named_buffers() if name in saved}
