"""The optimizer, sharded: each rank keeps state for its own part of every unit, and updates that.

Adam, SGD, Adagrad and their kin are element-wise: what happens to one element does not depend on
any other. So the update of a flat chunk is the chunk of the update, and any element-wise optimizer
of torch's serves, unchanged, on the parts that this rank owns.

The update itself is made in fp32, whatever is stored: handed 16-bit parameters, torch's optimizers
would keep 16-bit moments without a word, and small updates would be lost. A policy with a master
copy keeps the fp32 parameters between steps; one without makes them anew from the rounded ones.
"""

from typing import Any

import torch
from torch import Tensor, nn

from zerolab.parallel.flat import FlatUnit
from zerolab.parallel.strategy import Strategy
from zerolab.runtime import memory


class ShardedOptimizer(torch.optim.Optimizer):
    """An element-wise torch optimizer over the units of a strategy.

    model: a `DDP`, `Zero1`, `Zero2` or `Zero3`.
    optimizer_class: such as `torch.optim.SGD`; its own arguments follow by keyword.
    """

    def __init__(
        self, model: Strategy, optimizer_class: type[torch.optim.Optimizer], **arguments: Any
    ) -> None:
        if not isinstance(model, Strategy):
            raise TypeError(
                f"the sharded optimizer takes the wrapped model, as in ShardedAdam(Zero3(module)); "
                f"got {type(model).__name__}"
            )
        self.model = model
        self._parts = [_Part(unit, model) for unit in model.units if unit.trainable]
        # The inner optimizer's groups and state are this one's too: a scheduler sets a learning
        # rate here, and it is set there.
        self.inner = optimizer_class([part.updated for part in self._parts], **arguments)
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.state = self.inner.state

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
        for part in self._parts:
            if part.take_gradient():
                self.inner.step()  # torch's optimizers pass over parameters without a gradient
                part.finish()
                published.append(self.model.publish(part.unit))
        for work in published:
            work.wait()
        self._claim_state()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients and release their memory."""
        self.model.zero_grad()

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
    ) -> None:
        super().__init__(
            model,
            torch.optim.AdamW,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            fused=True,
        )


class _Part:
    """What this rank updates of one unit: all of it, or its own chunk."""

    def __init__(self, unit: FlatUnit, model: Strategy) -> None:
        self.unit = unit
        self._chunk_only = model.sharding.optimizer == "shard"
        self._stored = self._part_of(unit.parameter)
        self._has_master = unit.master_dtype is not None and self._stored.dtype != torch.float32
        self.updated = nn.Parameter(self._stored.float())  # fp32 is not copied: updated in place
        if self._has_master:
            memory.tag(self.updated, "optimizer")
        else:
            self._release()

    def take_gradient(self) -> bool:
        """Hand the reduced gradient to the optimizer, in fp32; False where there is none."""
        gradient = self.unit.kept_gradient
        if gradient is None:
            return False
        if not self._has_master:
            self.updated.data = self._stored.float()
        self.updated.grad = self._part_of(gradient).float()
        return True

    def finish(self) -> None:
        """After the update: round it into the stored parameters."""
        self.updated.grad = None
        if self._stored.dtype != torch.float32:
            self._stored.copy_(self.updated)
        if not self._has_master:
            self._release()

    def _release(self) -> None:
        self.updated.data = self.updated.new_zeros(()).expand(self.updated.shape)

    def _part_of(self, flat: Tensor) -> Tensor:
        return self.unit.own_chunk(flat) if self._chunk_only else flat
