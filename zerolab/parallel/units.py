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

Parameters that a module on the way to a list holds itself form a unit of that module's own. A unit
must be called as a module, because that is when it is gathered: lists of parameters belong to
whoever reads them, and torch's own layers, which read their children's weights past them, stay
whole.
"""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from zerolab.parallel.notices import warn

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_LARGE = 0.5  # of all parameters: what is larger is opened up, or warned about


def find_units(module: nn.Module, names: Sequence[str] | None = None) -> dict[str, nn.Module]:
    """The modules that become units, by name, in the order of the module tree.

    names: patterns such as "blocks.*" that name them instead, where * stands for one part of a
    name; parameters outside of them form units of the modules above.
    """
    if names is not None:
        return _named(module, names)
    found = natural_units(module)
    _warn_of_giants(module, found)
    return found


def natural_units(module: nn.Module) -> dict[str, nn.Module]:
    """The units that a module's own structure suggests."""
    return dict(_open(module, "")) if _may_be_opened(module) else {"": module}


def parameter_owner(name: str, units: Iterable[str]) -> str:
    """The innermost unit that a parameter's name lies in; "" is the module as a whole."""
    inside = [unit for unit in units if unit and name.startswith(unit + ".")]
    return max(inside, key=len, default="")


def _named(module: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    found = {
        name: child
        for name, child in module.named_modules()
        if name and any(_matches(name, pattern) for pattern in names)
    }
    for pattern in names:
        if not any(_matches(name, pattern) for name in found):
            raise ValueError(
                f"units: {pattern!r} names no part of {type(module).__name__}; its children are "
                f"{', '.join(name for name, _ in module.named_children())}"
            )
    for name, child in found.items():
        if not _is_called(child):
            raise ValueError(
                f"units: {name!r} is a {type(child).__name__}, which is not called itself; name "
                f'what it holds, as in units=["{name}.*"], or what it lies in'
            )
    return {"": module, **found}


def _matches(name: str, pattern: str) -> bool:
    """Whether a dotted name matches part by part: a * stops at a dot, or all of a block's layers
    would be units as well."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _open(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """A module that is not a unit: itself, for its own parameters, and the units inside it."""
    yield name, module
    total = _count(module)
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        in_list = isinstance(module, _LISTS) and not isinstance(child, _LISTS)
        large = _count(child) > _LARGE * total and len(list(child.children())) > 0
        if not in_list and _may_be_opened(child) and (large or _holds_lists(child)):
            yield from _open(child, path)
        elif _is_called(child):
            yield path, child


def _may_be_opened(module: nn.Module) -> bool:
    """Whether a module calls its children, instead of reading their parameters past them."""
    own = type(module).__module__.startswith("torch.nn.modules.")
    return not is_parametrized(module) and (not own or _holds_lists(module))


def _is_called(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward


def _holds_lists(module: nn.Module) -> bool:
    return any(isinstance(part, _LISTS) for part in module.modules())


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _warn_of_giants(module: nn.Module, units: dict[str, nn.Module]) -> None:
    total = _count(module)
    owned = dict.fromkeys(units, 0)
    for name, parameter in module.named_parameters():
        owned[parameter_owner(name, units)] += parameter.numel()
    giant = max(owned, key=lambda unit: owned[unit])
    smaller = _smaller_units(units[giant], giant)
    if owned[giant] > _LARGE * total and smaller:
        warn(
            f"unit {giant or type(module).__name__!r} holds {owned[giant] / total:.0%} of all "
            "parameters, so gathering it is nearly gathering the whole model; name smaller units, "
            f'as in units=["{smaller}"]'
        )


def _smaller_units(module: nn.Module, name: str) -> str | None:
    """A pattern that names the parts of a module; None where it has none that may be units."""
    if not _may_be_opened(module):
        return None
    for child_name, child in module.named_children():
        if _count(child) == _count(module) and next(child.children(), None):  # a list of one, say
            return _smaller_units(child, f"{name}.{child_name}" if name else child_name)
    parts = list(module.children())
    if not parts or not all(map(_is_called, parts)):
        return None
    return f"{name}.*" if name else "*"
