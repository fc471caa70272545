"""One training step under any strategy: the hooks that move bytes at the right moment.

A strategy wraps a module and leaves PyTorch's training loop as it is. For each unit:

    forward    pre_forward    unshard, wait; the module computes
               post_forward   reshard
    backward   pre_backward   unshard again, wait; autograd computes
               post_backward  reshard; reduce the gradients over the ranks
               finalize_backward: whatever is left, once, when backward has ended
    step       publish: every rank gets the parameters that the owners have updated

What is sharded decides what these verbs do. A strategy's own file defines three of them:

    gather(unit)    make whole parameters out of what this rank keeps
    reduce(unit)    sum the unit's gradients over the ranks, keep what this rank keeps
    publish(unit)   after the optimizer's step

All ranks must call the same units in the same order. A parameter that gets no gradient, on one
rank or on all, counts as a gradient of zero.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from zerolab.accounting.strategies import SHARDING, Sharding
from zerolab.parallel.clip import clip_by_global_norm
from zerolab.parallel.flat import FlatUnit, State
from zerolab.parallel.layout import Stage, lay_out
from zerolab.parallel.precision import dtypes
from zerolab.parallel.schedule import Schedule
from zerolab.parallel.tensor_parallel import TensorParallel, whole_tensor
from zerolab.runtime.collectives import Work, broadcast


class Strategy(nn.Module):
    """A module whose training state is whole or sharded over the ranks of a process group.

    module: any nn.Module; its parameters become views of flat tensors, in place.
    precision: "fp32", "mixed", "mixed_fp32_grads" or "no_master" (`accounting.precision`).
    half: the 16-bit type of those policies, torch.bfloat16 or torch.float16.
    units: patterns that name the units, as ["blocks.*"]; found by themselves where None.
    overlap: communicate while computing: gather the next stage's units ahead (two stages are whole
        at a time instead of one), reduce gradients while backward goes on.
    group: the process group; the default one where None.
    """

    sharding: Sharding = SHARDING["ddp"]

    def __init__(
        self,
        module: nn.Module,
        precision: str = "fp32",
        half: torch.dtype = torch.bfloat16,
        units: list[str] | None = None,
        overlap: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        if not dist.is_initialized():
            raise RuntimeError(
                f"{type(self).__name__} needs a process group: run it inside World(...).run, under "
                "torchrun, or after torch.distributed.init_process_group"
            )
        self.group = group
        self.ranks = dist.get_world_size(group)
        self.device = _device(group)
        if isinstance(module, TensorParallel):
            module = module.module  # its work is done, in place
        self.module = module.to(self.device)
        self.precision = precision
        self._dtypes = dtypes(precision, self.device, half)
        self.overlap = overlap
        self._synchronize = True  # False within no_sync
        self._in_backward = False
        self._uses: dict[FlatUnit, int] = {}  # forwards whose backward is still to come
        self._reductions: list[tuple[FlatUnit, Work]] = []  # under way
        self._schedule = Schedule()
        self._buffers_seen: dict[str, tuple[int, int]] = {}
        self.units, stages = lay_out(self.module, units, self._make_unit)
        for stage in stages:
            self._hook(stage)
        self._broadcast_buffers()

    # -- what a strategy defines ----------------------------------------------------------------

    def owner_of(self, elements: int) -> int | None:
        """The rank that a new unit of so many elements belongs to; None cuts it into chunks."""
        return None

    def gather(self, unit: FlatUnit) -> Work:
        """Bring the unit's whole parameters into `unit.gathered`. Whole ones are there already."""
        return Work()

    def reduce(self, unit: FlatUnit) -> Work:
        """Sum `unit.complete_gradient()` over the ranks."""
        raise TypeError("Strategy is the shared part: use DDP, Zero1, Zero2 or Zero3")

    def reduced(self, unit: FlatUnit) -> None:
        """Called when `reduce` is complete: release what this rank does not keep."""

    def publish(self, unit: FlatUnit) -> Work:
        """After the optimizer's step, bring the owners' updates to every rank that needs them."""
        return Work()

    # -- what a training loop calls -------------------------------------------------------------

    def forward(self, *args, **kwargs):
        recomputing = torch._C._current_graph_task_id() != -1  # inside a backward
        if not recomputing:
            self._in_backward = False
            self._broadcast_buffers()
        try:
            output = self.module(*args, **kwargs)
        except BaseException:
            self._abandon()
            raise
        if not recomputing:
            self._reshard_all(self.units)  # what was gathered ahead in vain
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients locally: the first backward outside of it reduces them all."""
        if self.sharding.gradients == "shard":
            raise RuntimeError(
                f"{type(self).__name__} keeps a shard of each gradient, so there is nowhere to "
                "accumulate whole ones: every backward reduces. Leave no_sync out (gradients do "
                "accumulate, in the shard), or use DDP or Zero1"
            )
        self._synchronize = False
        try:
            yield
        finally:
            self._synchronize = True

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale all gradients to a global 2-norm of at most `max_norm`; returns the norm."""
        return clip_by_global_norm(self.units, max_norm, self.group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients and release their memory."""
        for unit in self.units:
            unit.zero_grad()

    def full_state_dict(self) -> dict[str, Tensor]:
        """The whole tensors under the module's own names, on CPU, on every rank.

        Gathers unit by unit, so that no more than one is whole on a device at a time.
        """
        whole = {}
        for unit in self.units:
            was_sharded = unit.state is State.SHARDED
            self.unshard(unit)
            unit.wait_for_unshard()
            for name, parameter in zip(unit.names, unit.parameters, strict=True):
                tensor = whole_tensor(parameter, parameter.detach(), name)
                whole[parameter] = tensor.to("cpu", unit.original_dtype)
            if was_sharded:
                unit.reshard()
        state: dict[str, Tensor] = {}
        for name, value in self.module.state_dict(keep_vars=True).items():
            state[name] = whole[value] if value in whole else value.detach().to("cpu", copy=True)
        return state

    @property
    def unit_sizes(self) -> list[int]:
        """Trainable elements of each unit, before padding."""
        return [unit.numel for unit in self.units if unit.trainable]

    # -- the verbs ------------------------------------------------------------------------------

    def unshard(self, unit: FlatUnit) -> None:
        """Start to make the unit's parameters whole; `unit.wait_for_unshard` ends it."""
        if unit.state is State.SHARDED:
            unit.begin_unshard(self.gather(unit))

    def pre_forward(self, stage: Stage, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if not torch.is_grad_enabled() or self._in_backward:
            self._unshard_all(stage.units)
            return args, kwargs
        self._unshard_all(stage.units, ahead=self._schedule.forward(stage))
        for unit in stage.units:
            self._uses[unit] = self._uses.get(unit, 0) + 1
        # The module's backward has ended when the gradients of its inputs are there. A view of each
        # input, which nothing else uses, tells this module's part from everybody else's.
        leaves, structure = tree_flatten((args, kwargs))
        leaves = [leaf.view_as(leaf) if _differentiable(leaf) else leaf for leaf in leaves]
        inputs = [leaf for leaf in leaves if _differentiable(leaf)]
        _when_all_arrived(inputs, lambda: self.post_backward(stage))
        return tree_unflatten(leaves, structure)

    def post_forward(self, stage: Stage, output) -> None:
        if not self._in_backward:
            self._reshard_all(stage.units)
        if torch.is_grad_enabled():
            for leaf in tree_leaves(output):
                if _differentiable(leaf):
                    leaf.register_hook(lambda _: self.pre_backward(stage))

    def pre_backward(self, stage: Stage) -> None:
        self._begin_backward()
        self._unshard_all(stage.units, ahead=self._schedule.backward(stage))

    def post_backward(self, stage: Stage) -> None:
        self._begin_backward()
        self._reshard_all(stage.units)
        for unit in stage.units:
            self._uses[unit] = self._uses.get(unit, 0) - 1
            if self._uses[unit] <= 0:  # else an earlier use of the same unit is still to come
                self._start_reduction(unit)

    def finalize_backward(self) -> None:
        """Reduce what no hook has reduced, in one order on all ranks, and wait for all of it."""
        self._reshard_all(self.units)
        for unit in reversed(self.units):
            if self._uses.pop(unit, 0) > 0 or unit.has_unreduced_gradient:
                self._start_reduction(unit)
        self._finish_reductions()
        self._uses.clear()
        self._schedule.step_ended()
        self._in_backward = False

    # -- how they are wired ---------------------------------------------------------------------

    def _make_unit(self, name: str, parameters: dict[str, nn.Parameter]) -> FlatUnit:
        sharded = self.sharding.parameters == "shard"
        owner = self.owner_of(sum(parameter.numel() for parameter in parameters.values()))
        unit = FlatUnit(name, parameters, self._dtypes, sharded, owner, self.group)
        if unit.trainable:
            self._hook_gradients(unit)
        return unit

    def _hook(self, stage: Stage) -> None:
        stage.module.register_forward_pre_hook(
            lambda _, args, kwargs: self.pre_forward(stage, args, kwargs), with_kwargs=True
        )
        stage.module.register_forward_hook(lambda _, args, out: self.post_forward(stage, out))

    def _hook_gradients(self, unit: FlatUnit) -> None:
        # Autograd holds these hooks where the garbage collector does not look: a strong reference
        # from them would keep a model's memory for good.
        strategy, weak_unit = weakref.proxy(self), weakref.proxy(unit)

        def hook(index: int):
            return lambda _: strategy._gradient_arrived(weak_unit, index)

        for index, parameter in enumerate(unit.parameters):
            parameter.register_post_accumulate_grad_hook(hook(index))
            parameter.sharded_in = unit.name  # type: ignore[attr-defined]

    def _unshard_all(self, units: list[FlatUnit], ahead: Stage | None = None) -> None:
        for unit in units:
            self.unshard(unit)
        for unit in units:
            unit.wait_for_unshard()
        if self.overlap and ahead is not None:
            for unit in ahead.units:
                self.unshard(unit)

    def _reshard_all(self, units: list[FlatUnit]) -> None:
        for unit in units:
            unit.reshard()

    def _begin_backward(self) -> None:
        """Once a backward: have autograd call `finalize_backward` at its end."""
        if not self._in_backward:
            self._in_backward = True
            Variable._execution_engine.queue_callback(self.finalize_backward)

    def _gradient_arrived(self, unit: FlatUnit, index: int) -> None:
        self._begin_backward()
        if unit.state is State.SHARDED:
            raise RuntimeError(
                f"{unit.names[index]} was used outside the forward of {unit.name}, where it is not "
                "gathered; name units so that whatever uses it lies inside one"
            )
        unit.accumulate(index)

    def _start_reduction(self, unit: FlatUnit) -> None:
        """Reduce while backward goes on; one reduction is under way at a time."""
        if not unit.trainable or not self._synchronize:
            return
        self._finish_reductions()
        self._reductions.append((unit, self.reduce(unit)))
        if not self.overlap:
            self._finish_reductions()

    def _finish_reductions(self) -> None:
        for unit, work in self._reductions:
            work.wait()
            self.reduced(unit)
        self._reductions.clear()

    def _abandon(self) -> None:
        """After an exception in forward: no unit is left gathered, no backward is awaited."""
        self._finish_reductions()
        self._reshard_all(self.units)
        self._uses.clear()
        self._schedule.forget()

    def _broadcast_buffers(self) -> None:
        """Give every rank rank 0's buffers, where they have changed (batch norm's statistics)."""
        for name, buffer in self.module.named_buffers():
            seen = (id(buffer), buffer._version)
            if self._buffers_seen.get(name) != seen:
                buffer.data = buffer.contiguous()
                broadcast(buffer, 0, name, self.group).wait()
                self._buffers_seen[name] = (id(buffer), buffer._version)


def _device(group: dist.ProcessGroup | None) -> torch.device:
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _refuse_replaced_parameters(optimizer: torch.optim.Optimizer, *_) -> None:
    """Before any optimizer's step: it must not have been built on parameters that are sharded."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if hasattr(parameter, "sharded_in"):
                raise RuntimeError(
                    f"{type(optimizer).__name__} was built on the parameters of a module that is "
                    f"sharded (unit {parameter.sharded_in!r}), so its step would change nothing: "
                    "build ShardedAdam or ShardedOptimizer on the wrapped model"
                )


register_optimizer_step_pre_hook(_refuse_replaced_parameters)


def _when_all_arrived(tensors: list[Tensor], action: Callable[[], None]) -> None:
    """In each backward, call `action` once the gradients of all tensors are computed.

    torch's own register_multi_grad_hook refers from the graph back to the graph, which only many
    rounds of garbage collection undo. Where one of the tensors gets no gradient, `action` is not
    called: finalize_backward is there for that.
    """
    count, backward, missing = len(tensors), None, 0

    def arrived(_: Tensor) -> None:
        nonlocal backward, missing
        if backward != torch._C._current_graph_task_id():
            backward, missing = torch._C._current_graph_task_id(), count
        missing -= 1
        if missing == 0:
            action()

    for tensor in tensors:
        tensor.register_hook(arrived)


def _differentiable(value) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
