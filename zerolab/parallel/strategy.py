"""One training step under any strategy: the hooks that move bytes at the right moment.

A strategy wraps a module and leaves PyTorch's training loop as it is. For each unit:

    forward    pre_forward    unshard, wait; the module computes
               post_forward   reshard
    backward   pre_backward   unshard again, wait; autograd computes
               post_backward  reshard; reduce the gradients over the ranks
               finalize_backward: whatever is left, once, when backward has ended
    step       publish: every rank gets the parameters that the owners have updated

What is sharded decides what these verbs do. A strategy's own file defines where it differs:

    gather(unit)    make whole parameters out of what this rank keeps
    reduce(unit)    sum the unit's gradients over the ranks
    reduced(unit)   when that is complete, release what this rank does not keep
    publish(unit)   after the optimizer's step

All ranks must call the same units in the same order. A parameter that gets no gradient, on one
rank or on all, counts as a gradient of zero.
"""

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils._pytree import tree_flatten, tree_unflatten

import zerolab.parallel.replaced  # noqa: F401 - looks at every optimizer from here on
from zerolab.accounting.strategies import SHARDING, Sharding
from zerolab.parallel.autograd import (
    current_backward,
    hides_tensors,
    is_differentiable,
    when_all_arrived,
)
from zerolab.parallel.buffers import Buffers
from zerolab.parallel.clip import clip_by_global_norm
from zerolab.parallel.flat import FlatUnit, State
from zerolab.parallel.layout import Stage, lay_out
from zerolab.parallel.precision import dtypes, tell_of_fp32_arithmetic
from zerolab.parallel.reductions import Reductions
from zerolab.parallel.schedule import Schedule, Use
from zerolab.parallel.tensor_parallel import TensorParallel, whole_tensor
from zerolab.runtime import trace
from zerolab.runtime.collectives import Work, device_of


class Strategy(nn.Module):
    """A module whose training state is whole or sharded over the ranks of a process group.

    module: any nn.Module; its parameters become views of flat tensors, in place.
    precision: "fp32", "mixed", "mixed_fp32_grads" or "no_master" (`accounting.precision`).
    half: the 16-bit type of those policies, torch.bfloat16 or torch.float16.
    units: patterns that name the units, as ["blocks.*"]; found by themselves where None.
    overlap: communicate while computing: gather the next stage's units ahead (two stages are whole
        at a time instead of one), reduce gradients while backward goes on. Over gloo; on NCCL the
        order is the same, and one stream does both in turn.
    group: the process group; the default one where None.
    """

    sharding: Sharding = SHARDING["ddp"]

    def __init__(
        self,
        module: nn.Module,
        *,
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
        self.device = device_of(group)
        if isinstance(module, TensorParallel):
            module = module.module  # its work is done, in place
        self.module = module.to(self.device)
        self.precision = precision
        self._dtypes = dtypes(precision, self.device, half)
        if self._dtypes.compute != self._dtypes.parameter and dist.get_rank() == 0:
            tell_of_fp32_arithmetic()
        self.overlap = overlap
        self._synchronize = True  # False within no_sync
        self._in_backward = False
        self._uses: Counter[FlatUnit] = Counter()  # forwards whose backward is still to come
        self._holders: Counter[FlatUnit] = Counter()  # stages that compute with it now
        self._owed: set[FlatUnit] = set()  # to be reduced before backward ends
        at_once = (1 if self.sharding.gradients == "shard" else 2) if overlap else 0
        self._reductions = Reductions(self.reduce, self.reduced, at_once)
        self._schedule = Schedule()
        self._synced_buffers = Buffers(self.module, group)
        self.units, stages = lay_out(self.module, units, self._make_unit)
        for stage in stages:
            self._hook(stage)
        self._synced_buffers.follow_rank_0()

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
        """What the module returns for this rank's part of the batch."""
        recomputing = current_backward() is not None
        if not recomputing:
            if self._in_backward:  # still: the last one has failed
                self._abandon()
            self._synced_buffers.follow_rank_0()
            self._schedule.forward_begins()
        try:
            output = self.module(*args, **kwargs)
        except BaseException:
            self._abandon()
            raise
        if not recomputing:
            self._release_all()  # what was gathered ahead in vain
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
        self._reductions.finish()  # of a backward that has failed
        for unit in self.units:
            unit.zero_grad()

    def full_state_dict(self) -> dict[str, Tensor]:
        """The whole tensors under the module's own names, on CPU, on every rank.

        Gathers unit by unit, so that no more than one is whole on a device at a time.
        """
        self._synced_buffers.follow_rank_0()
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
        """Make the stage's units whole, start on those of the next, and watch for its backward."""
        if self._in_backward:  # recomputing: what is unsharded now is released when backward ends
            self._unshard_all(stage.units)
            trace.begin("recompute", stage.name)
            return args, kwargs
        self._holders.update(stage.units)
        if not torch.is_grad_enabled():
            self._unshard_all(stage.units)
            trace.begin("forward", stage.name)
            return args, kwargs
        use, ahead = self._schedule.begin(stage)
        self._unshard_all(stage.units, ahead)
        trace.begin("forward", stage.name)
        # The module's backward has ended when the gradients of its inputs are there. A view of each
        # input, which nothing else uses, tells this module's part from everybody else's.
        leaves, structure = tree_flatten((args, kwargs))
        leaves = [leaf.view_as(leaf) if is_differentiable(leaf) else leaf for leaf in leaves]
        use.inputs = [leaf for leaf in leaves if is_differentiable(leaf)]
        when_all_arrived(use.inputs, lambda: self._backward_comes_to(use, False))
        return tree_unflatten(leaves, structure)

    def post_forward(self, stage: Stage, output):
        """Release what no other stage computes with; the output stays valid without it."""
        trace.end("recompute" if self._in_backward else "forward", stage.name)
        leaves, structure = tree_flatten(output)
        borrowed = [
            isinstance(leaf, Tensor) and any(unit.lends(leaf) for unit in stage.units)
            for leaf in leaves
        ]
        if any(borrowed):  # a parameter, or a view of one: it would not outlive the module's turn
            leaves = [
                leaf.clone() if lent else leaf for leaf, lent in zip(leaves, borrowed, strict=True)
            ]
            output = tree_unflatten(leaves, structure)
        if not self._in_backward:
            self._release(stage.units)
        if torch.is_grad_enabled():
            use = None if self._in_backward else self._schedule.latest(stage)
            self._watch_output(stage, use, leaves)
        return output

    def pre_backward(self, use: Use) -> None:
        """Backward has come to a stage's outputs: make its units whole once more."""
        use.begun = True
        self._holders.update(use.stage.units)
        self._unshard_all(use.stage.units, ahead=self._schedule.next_backward())
        trace.begin("backward", use.stage.name)

    def post_backward(self, use: Use) -> None:
        """Backward has left a stage: release its units, reduce those whose gradients are there."""
        trace.end("backward", use.stage.name)
        if use.begun:
            self._release(use.stage.units)
        for unit in use.stage.units:
            self._uses[unit] -= 1
            self._owed.add(unit)
            if self._uses[unit] == 0:  # else an earlier use of the same unit is still to come
                self._start_reduction(unit)

    def finalize_backward(self) -> None:
        """Do what no hook has done, in one order on all ranks, and wait for all of it."""
        self._replay(None)
        self._release_all()
        for unit in reversed(self.units):
            if unit in self._owed or unit.has_unreduced_gradient:
                self._start_reduction(unit)
        self._reductions.finish()
        self._uses.clear()
        self._owed.clear()
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
        strategy, weak_unit = weakref.proxy(self), weakref.ref(unit)

        def hook(index: int):
            return lambda _: strategy._gradient_arrived(weak_unit(), index)

        for index, parameter in enumerate(unit.parameters):
            parameter.register_post_accumulate_grad_hook(hook(index))

    def _unshard_all(self, units: list[FlatUnit], ahead: Stage | None = None) -> None:
        for unit in units:
            self.unshard(unit)
        for unit in units:
            unit.wait_for_unshard()
        if self.overlap and ahead is not None:
            for unit in ahead.units:
                self.unshard(unit)

    def _release(self, units: list[FlatUnit]) -> None:
        """A stage is through with its units: whatever no other stage holds is resharded."""
        self._holders.subtract(units)
        for unit in units:
            if self._holders[unit] <= 0:
                unit.reshard()

    def _release_all(self) -> None:
        self._holders.clear()
        for unit in self.units:
            unit.reshard()

    def _watch_output(self, stage: Stage, use: Use | None, leaves: list) -> None:
        """Have autograd say when it comes to these outputs of a stage, to the end of its `use`."""
        inputs = use.inputs if use else []
        outputs = [leaf for leaf in leaves if is_differentiable(leaf)]
        if use is not None:
            self._schedule.end(use, differentiable=bool(outputs))
            use.inputs = []
        if outputs:
            self._uses.update(stage.units if use else [])
        elif any(unit.sharded for unit in stage.units) and any(map(hides_tensors, leaves)):
            kinds = ", ".join(sorted({type(leaf).__name__ for leaf in leaves}))
            raise TypeError(
                f"{stage.name} returns {kinds}, in which no tensor is found: return tensors, in "
                "tuples, lists or dicts, or make the class known to torch.utils._pytree"
            )
        for leaf in outputs:
            # An input that is passed through comes back when the stage's backward is over.
            if not any(leaf is one for one in inputs):
                leaf.register_hook(lambda _: self._backward_comes_to(use, True, stage))

    def _backward_comes_to(self, use: Use | None, end: bool, stage: Stage | None = None) -> None:
        self._begin_backward()
        if use is not None:
            self._replay((use, end))
        if stage is not None:  # also where the tape no longer knows: a graph kept for longer
            self._unshard_all(stage.units)

    def _replay(self, to: tuple[Use, bool] | None) -> None:
        for use, end in self._schedule.rewind(to):
            if end:
                self.pre_backward(use)
            else:
                self.post_backward(use)

    def _begin_backward(self) -> None:
        """Once a backward: have autograd call `finalize_backward` at its end."""
        if not self._in_backward:
            self._in_backward = True
            Variable._execution_engine.queue_callback(self.finalize_backward)

    def _gradient_arrived(self, unit: FlatUnit, index: int) -> None:
        self._begin_backward()
        if unit in self._reductions:
            # Whole parameters may be used outside of their module as well, earlier than inside it.
            self._reductions.finish()
        unit.accumulate(index)

    def _start_reduction(self, unit: FlatUnit) -> None:
        self._owed.discard(unit)
        if unit.trainable and self._synchronize:
            self._reductions.start(unit)

    def _abandon(self) -> None:
        """After an exception: no unit is left gathered, no backward is awaited."""
        self._in_backward = False
        self._reductions.finish()
        self._release_all()
        self._uses.clear()
        self._owed.clear()
        self._schedule.forget()
