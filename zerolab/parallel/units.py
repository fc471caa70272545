"""Finding units: which parts of a module are gathered, computed with and released together.

A good unit is a block: large enough that a message is worth its latency, small enough that one
gathered unit is little beside the shards. Blocks are what models keep in lists:

    GPT
      token_embedding      unit      a child beside the lists
      position_embedding   unit
      blocks               a list
        0                  unit
        1                  unit
      final_norm           unit
      head                 unit

Parameters that a module on the way to a list holds itself form a unit of that module's own.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_LARGE = 0.5  # of all parameters: what is larger is opened up, or warned about


def find_units(module: nn.Module, names: Sequence[str] | None = None) -> dict[str, nn.Module]:
    """The modules that become units, by name, in the order of the module tree.

    names: patterns such as "blocks.*" that name them instead; parameters outside of them form units
    of the modules above.
    """
    if names is not None:
        return _named(module, names)
    found = dict(_open(module, ""))
    _warn_of_giants(module, found)
    return found


def parameter_owner(name: str, units: Iterable[str]) -> str:
    """The innermost unit that a parameter's name lies in; "" is the module as a whole."""
    inside = [unit for unit in units if unit and name.startswith(unit + ".")]
    return max(inside, key=len, default="")


def _named(module: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    modules = dict(module.named_modules())
    found = {
        name: child
        for name, child in modules.items()
        if name and any(fnmatchcase(name, pattern) for pattern in names)
    }
    for pattern in names:
        if not any(fnmatchcase(name, pattern) for name in found):
            raise ValueError(
                f"units: {pattern!r} names no part of {type(module).__name__}; its children are "
                f"{', '.join(name for name, _ in module.named_children())}"
            )
    return {"": module, **found}


def _open(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """A module that is not a unit: itself, for its own parameters, and the units inside it."""
    yield name, module
    total = _count(module)
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        holds_lists = any(isinstance(part, _LISTS) for part in child.modules())
        large = _count(child) > _LARGE * total and len(list(child.children())) > 0
        in_list = isinstance(module, _LISTS) and not isinstance(child, _LISTS)
        if not in_list and (holds_lists or large):
            yield from _open(child, path)
        else:
            yield path, child


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _warn_of_giants(module: nn.Module, units: dict[str, nn.Module]) -> None:
    total = _count(module)
    owned = dict.fromkeys(units, 0)
    for name, parameter in module.named_parameters():
        owned[parameter_owner(name, units)] += parameter.numel()
    giant = max(owned, key=lambda unit: owned[unit])
    if len(owned) > 1 and owned[giant] > _LARGE * total and next(units[giant].children(), None):
        warnings.warn(
            f"unit {giant or type(module).__name__!r} holds {owned[giant] / total:.0%} of all "
            "parameters, so gathering it is nearly gathering the whole model; name smaller units, "
            'as in units=["encoder.layers.*"]',
            stacklevel=4,
        )
