"""Laying a module out: its parameters in flat units, and which modules need which of them.

A *stage* is a module that computes with certain units: usually a block with the unit of its own
parameters. A stage has several units where its parameters are of several kinds (trainable and
frozen, 16 and 32 bits), and a unit several stages where modules share a parameter (a tied head).
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from zerolab.parallel.flat import FlatUnit
from zerolab.parallel.units import find_units, parameter_owner


@dataclass(eq=False)
class Stage:
    """A module, and the units that must be whole while it computes."""

    name: str
    module: nn.Module
    units: list[FlatUnit]


def lay_out(
    module: nn.Module,
    names: list[str] | None,
    make_unit: Callable[[str, dict[str, nn.Parameter]], FlatUnit],
) -> tuple[list[FlatUnit], list[Stage]]:
    """The module's units and stages, both in the order of the module tree.

    make_unit: from a name and named parameters, all of one dtype, all trainable or all frozen. A
    tied parameter belongs to the unit where it is first met.
    """
    modules = find_units(module, names)
    members: dict[tuple, dict[str, nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        cut = hasattr(parameter, "cut")  # by tensor parallelism: counted otherwise in a norm
        kind = (parameter_owner(name, modules), parameter.dtype, parameter.requires_grad, cut)
        members.setdefault(kind, {})[name] = parameter
    units = [make_unit(owner or "root", parameters) for (owner, *_), parameters in members.items()]
    unit_of = {parameter: unit for unit in units for parameter in unit.parameters}
    stages = []
    for owner, part in modules.items():
        needed = [
            unit_of[parameter]
            for name, parameter in part.named_parameters(remove_duplicate=False)
            if parameter_owner(f"{owner}.{name}" if owner else name, modules) == owner
        ]
        if needed:
            stages.append(Stage(owner or "root", part, list(dict.fromkeys(needed))))
    return units, stages
