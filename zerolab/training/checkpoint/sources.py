"""What a rank saves from: a strategy's flat units, or under tensor parallelism alone parameters.

A source goes into one file, and one is whole at a time. What it gives is whole but for the cuts of
tensor parallelism, by the module's own names.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from zerolab.parallel.adam import ShardedOptimizer
from zerolab.parallel.flat import FlatUnit
from zerolab.parallel.strategy import Strategy
from zerolab.parallel.units import natural_units, parameter_owner
from zerolab.runtime import memory
from zerolab.training.checkpoint.cuts import bare

MASTER = "master"


class State(NamedTuple):
    """What an optimizer keeps of one tensor that it updates."""

    names: list[str]  # of the parameters in that tensor
    updated: Tensor
    values: dict[str, Tensor]


class Source(Protocol):
    def parameters(self) -> dict[str, Tensor]:
        """All of its parameters by name. A collective."""

    def states(self) -> Iterator[State]:
        """The optimizer state that this rank keeps of it."""

    def state(self, key: str) -> dict[str, Tensor]:
        """One kind of state, by name of the parameters that have it. A collective."""


def sources_of(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Sequence[Source]:
    """All of a model, in the order of its modules; the same sequence on every rank."""
    if isinstance(model, Strategy):
        assert optimizer is None or isinstance(optimizer, ShardedOptimizer)
        return [_FlatSource(model, unit, optimizer) for unit in model.units]
    module = bare(model)
    units = natural_units(module)
    members: dict[str, dict[str, nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        members.setdefault(parameter_owner(name, units), {})[name] = parameter
    return [_PlainSource(parameters, optimizer) for parameters in members.values()]


class _FlatSource:
    """A flat unit: each rank of the data-parallel group has a chunk of it, or all."""

    def __init__(self, model: Strategy, unit: FlatUnit, optimizer: ShardedOptimizer | None) -> None:
        self.model, self.unit, self.optimizer = model, unit, optimizer

    def parameters(self) -> dict[str, Tensor]:
        whole = self.unit.parameter
        if self.unit.sharded:
            whole = memory.tag(whole.new_zeros(self.unit.size), "gathered")
            whole[self.unit.shard] = self.unit.parameter
            self.unit.gather_chunks(whole, self.model.group).wait()
        return dict(zip(self.unit.names, self.unit.split(whole), strict=True))

    def states(self) -> Iterator[State]:
        for part in self.optimizer.parts if self.optimizer else ():
            if part.unit is self.unit:
                values = _values(self.optimizer, part.updated)
                if part.has_master:
                    values[MASTER] = part.updated
                yield State(part.names, part.updated, values)

    def state(self, key: str) -> dict[str, Tensor]:
        assert self.optimizer is not None
        owned: dict[Tensor, slice] = {p.updated: p.owned for p in self.optimizer.parts}
        having = [state for state in self.states() if key in state.values]
        whole = having[0].values[key].new_zeros(self.unit.size)
        memory.tag(whole, "gathered")
        for state in having:
            whole[owned[state.updated]] = state.values[key]
        if self.model.sharding.optimizer == "shard":
            self.unit.gather_chunks(whole, self.model.group).wait()
        views = dict(zip(self.unit.names, self.unit.split(whole), strict=True))
        return {name: views[name] for state in having for name in state.names}


class _PlainSource:
    """A module's own parameters, with torch's own optimizer: nothing to gather."""

    def __init__(
        self, named_parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer | None
    ) -> None:
        self.named_parameters, self.optimizer = named_parameters, optimizer

    def parameters(self) -> dict[str, Tensor]:
        named = self.named_parameters.items()
        return {name: parameter.detach().contiguous() for name, parameter in named}

    def states(self) -> Iterator[State]:
        if self.optimizer is not None:
            for name, parameter in self.named_parameters.items():
                yield State([name], parameter, _values(self.optimizer, parameter))

    def state(self, key: str) -> dict[str, Tensor]:
        having = (state for state in self.states() if key in state.values)
        return {state.names[0]: state.values[key].contiguous() for state in having}


def _values(optimizer: torch.optim.Optimizer | None, updated: Tensor) -> dict[str, Tensor]:
    state = optimizer.state.get(updated, {}) if optimizer else {}
    return {key: value for key, value in state.items() if value is not None}
