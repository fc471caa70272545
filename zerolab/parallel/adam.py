"""The optimizer, sharded: each rank keeps state for its own part of every unit, and updates that.

Adam, SGD, Adagrad and their kin are element-wise: what happens to one element does not depend on
any other. So the update of a flat chunk is the chunk of the update, and any element-wise optimizer
of torch's serves, unchanged, on the parts that this rank owns.

The update itself is made in fp32, whatever is stored: handed 16-bit parameters, torch's optimizers
would keep 16-bit moments without a word, and small updates would be lost. A policy with a master
copy keeps the fp32 parameters between steps; one without makes them anew from the rounded ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zerolab.parallel.flat import FlatUnit
from zerolab.parallel.strategy import Strategy
from zerolab.runtime import memory, trace


class ShardedOptimizer(torch.optim.Optimizer):
    """An element-wise torch optimizer over the units of a strategy.

    model: a `DDP`, `Zero1`, `Zero2` or `Zero3`.
    optimizer_class: such as `torch.optim.SGD`; its own arguments follow by keyword.
    groups: parameter groups as torch has them, of the wrapped module's own parameters, each in one
        group at most; parameters in no group are not updated. All in one group where None.

    `loss_scale` is what the loss was multiplied by: gradients are divided by it, in fp32.
    """

    def __init__(
        self,
        model: Strategy,
        optimizer_class: type[torch.optim.Optimizer],
        groups: Sequence[dict[str, Any]] | None = None,
        **arguments: Any,
    ) -> None:
        if not isinstance(model, Strategy):
            raise TypeError(
                f"the sharded optimizer takes the wrapped model, as in ShardedAdam(Zero3(module)); "
                f"got {type(model).__name__}"
            )
        self.model = model
        self.loss_scale = 1.0
        if groups is None:
            groups = [{"params": [p for unit in model.units for p in unit.parameters]}]
        groups = [{**group, "params": _listed(group["params"])} for group in groups]
        _check_groups(model, groups)
        self.parts: list[_Part] = []
        inner_groups = []
        for group in groups:
            parts = list(_parts(model, group["params"]))
            self.parts += parts
            inner_groups.append({**group, "params": [part.updated for part in parts]})
        # The inner optimizer's groups and state are this one's too: a scheduler sets a learning
        # rate here, and it is set there.
        self.inner = optimizer_class(inner_groups, **arguments)
        self._is_built = False
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.state = self.inner.state
        self._is_built = True

    @torch.no_grad()
    def step(self, closure=None):
        """Update this rank's part of every unit, then bring every rank what it needs.

        Unit by unit: a 16-bit gradient is converted for one unit at a time, and the first units are
        on the wire while later ones are computed. Units without a gradient are left as they are.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        published = []
        for unit in self.model.units:
            parts = [part for part in self.parts if part.unit is unit]
            if parts and unit.kept_gradient is not None:
                for part in parts:
                    part.take_gradient(unit.kept_gradient, self.loss_scale)
                trace.begin("step", unit.name)
                self.inner.step()  # torch's optimizers pass over parameters without a gradient
                for part in parts:
                    part.finish()
                trace.end("step", unit.name)
                published.append(self.model.publish(unit))
        for work in published:
            work.wait()
        self._claim_state()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients and release their memory."""
        self.model.zero_grad()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after construction: its parameters have to be found in the units."""
        if self._is_built:
            raise RuntimeError(
                "a sharded optimizer's groups are made with it: name them all in "
                f"{type(self).__name__}(model, ..., groups=[...])"
            )
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refused: it would put other tensors in the place of those that `step` updates."""
        raise RuntimeError(
            "a sharded optimizer's state is read from a checkpoint, which every rank takes its own "
            "part of: use zerolab.training.checkpoint.load(folder, model, optimizer)"
        )

    def _claim_state(self) -> None:
        for state in self.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    memory.tag(value, "optimizer")


class ShardedAdam(ShardedOptimizer):
    """AdamW (decoupled weight decay, torch's defaults) with its moments sharded.

    Fused: the step makes no temporaries. The multi-tensor form would make one as large as the
    parameters.
    """

    def __init__(
        self,
        model: Strategy,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        groups: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            model,
            torch.optim.AdamW,
            groups,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            fused=True,
        )


class _Part:
    """A run of a unit's elements, as far as this rank updates it.

    `updated` is the fp32 tensor that the optimizer sees; it is empty where another rank owns the
    whole run. `names` are the run's parameters, `owned` is where in the unit `updated` lies.
    """

    def __init__(self, unit: FlatUnit, start: int, stop: int, model: Strategy) -> None:
        self.unit = unit
        self._chunk_only = model.sharding.optimizer == "shard"
        owned = unit.shard if self._chunk_only else slice(0, unit.size)
        first = max(start, owned.start)
        last = max(first, min(stop, owned.stop))
        self.owned = slice(first, last)
        self._run = slice(first - owned.start, last - owned.start)
        placed = zip(unit.names, unit.offsets, strict=True)
        self.names = [name for name, offset in placed if start <= offset < stop]
        self._stored = self._run_of(unit.parameter)
        self.has_master = unit.master_dtype is not None and self._stored.dtype != torch.float32
        self.updated = nn.Parameter(self._stored.float())  # fp32 is not copied: updated in place
        if self.has_master:
            memory.tag(self.updated, "optimizer")
        else:
            self._release()

    def take_gradient(self, gradient: Tensor, loss_scale: float) -> None:
        """Hand the run's reduced gradient to the optimizer, in fp32."""
        if not self.has_master:
            self.updated.data = self._stored.float()
        own = self._run_of(gradient).float()
        self.updated.grad = own if loss_scale == 1.0 else own / loss_scale

    def finish(self) -> None:
        """After the update: round it into the stored parameters."""
        self.updated.grad = None
        if self._stored.dtype != torch.float32:
            self._stored.copy_(self.updated)
        if not self.has_master:
            self._release()

    def _release(self) -> None:
        self.updated.data = self.updated.new_zeros(()).expand(self.updated.shape)

    def _run_of(self, flat: Tensor) -> Tensor:
        return (self.unit.own_chunk(flat) if self._chunk_only else flat)[self._run]


def _listed(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """A group's parameters, which torch takes as one, or as anything to go through."""
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def _check_groups(model: Strategy, groups: Sequence[dict[str, Any]]) -> None:
    """Every parameter of the groups must be the model's own, and in one of them only."""
    own = {parameter for unit in model.units for parameter in unit.parameters}
    seen = set[Tensor]()
    for number, group in enumerate(groups):
        for parameter in group["params"]:
            if parameter not in own or parameter in seen:
                wrong = "in another group too" if parameter in own else "not the wrapped model's"
                raise ValueError(
                    f"group {number} has a parameter of shape {tuple(parameter.shape)} that is "
                    f"{wrong}, so it would not be trained as asked: take each from "
                    "model.module.named_parameters() once, after the model is wrapped"
                )
            seen.add(parameter)


def _parts(model: Strategy, parameters: Sequence[nn.Parameter]) -> Iterator[_Part]:
    """One part for each unbroken run of these parameters; padding goes with what precedes it."""
    wanted = set(parameters)
    for unit in model.units:
        if not unit.trainable:
            continue
        ends = [*unit.offsets[1:], unit.size]
        start = None
        for parameter, offset, end in zip(unit.parameters, unit.offsets, ends, strict=True):
            if parameter in wanted:
                start = offset if start is None else start
                if end == unit.size:
                    yield _Part(unit, start, end, model)
            elif start is not None:
                yield _Part(unit, start, offset, model)
                start = None
