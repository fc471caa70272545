"""The flat unit: the parameters of one block of a module, laid end to end in one flat tensor.

    parameters   weight [4, 3]   bias [4]
    flat         w w w w w w w w w w w w b b b b 0 0      numel 16, padded to size 18 for 3 ranks
    chunks       |---- rank 0 ----|-- rank 1 --|-- rank 2 --|

A unit is what is gathered, computed with, reduced and released together. It knows where its bytes
are; *when* they move is the strategy's business. Its tensors, all flat, W = size, S = size/ranks:

    parameter        [W] or [S]   persistent, in the policy's parameter dtype
    gradient         [W]          where backward accumulates, in the policy's gradient dtype
    gradient_shard   [S]          where a strategy that shards gradients keeps the reduced ones
    full             [W]          what the module computes with; its memory is freed by `reshard`

The module's own `nn.Parameter` objects stay the same objects throughout, so tied parameters stay
tied: only their `.data` changes, between a view into `full` and a placeholder. While they are
`Released`, computing with them raises, at the line that does.
"""

from collections.abc import Iterator
from enum import Enum, auto
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from zerolab.parallel.precision import Dtypes
from zerolab.runtime import memory, trace
from zerolab.runtime.collectives import Work, all_gather, broadcast


class State(Enum):
    """Where a unit's parameters are."""

    SHARDED = auto()  # released: the module's parameters are placeholders
    UNSHARDING = auto()  # on their way
    UNSHARDED = auto()  # the module can compute


class Released(nn.Parameter):
    """A parameter without values. Its shape, dtype and gradient may be asked for; whatever would
    make another tensor of it is refused.

    `nn.Parameter` objects become this by their `__class__`, which costs nothing while they are
    whole.
    """

    sharded_as: tuple[str, str]  # its name, and its unit's

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*arguments, **(keywords or {}))
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            used = [leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, cls)]
            name, unit = used[0].sharded_as
            raise RuntimeError(
                f"{name} was used outside the forward of {unit}, where it is not gathered; name "
                "units so that whatever uses it lies inside one, or take its values from "
                "full_state_dict"
            )
        return result


class Run(NamedTuple):
    """An unbroken run of one parameter's elements, in row-major order, within a flat tensor."""

    name: str
    first: int  # of the parameter's elements
    last: int  # the one after the run's last
    at: int  # where in the flat tensor it begins


class FlatUnit:
    """One unit on this rank.

    named_parameters: original name -> parameter; all of one dtype, all trainable or all frozen.
    sharded: whether the persistent parameters are this rank's chunk only.
    owner: the rank whose chunk is the whole unit, the others' being empty; None cuts it evenly.
    """

    def __init__(
        self,
        name: str,
        named_parameters: dict[str, nn.Parameter],
        dtypes: Dtypes,
        sharded: bool,
        owner: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.name = name
        self.names = list(named_parameters)
        self.parameters = list(named_parameters.values())
        for parameter_name, parameter in named_parameters.items():
            parameter.sharded_as = (parameter_name, name)  # type: ignore[attr-defined]
        self.ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        first = self.parameters[0]
        self.trainable = first.requires_grad
        self.cut = getattr(first, "cut", None)  # how tensor parallelism divided it
        self.original_dtype, self.shapes = first.dtype, [p.shape for p in self.parameters]
        self.offsets = list(accumulate((p.numel() for p in self.parameters[:-1]), initial=0))
        self.numel = sum(p.numel() for p in self.parameters)
        self.owner = owner
        if owner is None:
            self.size = -(-self.numel // self.ranks) * self.ranks
            chunk = self.size // self.ranks
            self.shard = slice(rank * chunk, (rank + 1) * chunk)
        else:
            self.size = self.numel
            self.shard = slice(0, self.size if rank == owner else 0)
        self.sharded = sharded
        self.gradient_dtype, self.master_dtype = dtypes.gradient, dtypes.master

        self.gradient: Tensor | None = None
        self._gradient_views: list[Tensor] = []  # of `gradient`, in the parameters' shapes
        self.gradient_shard: Tensor | None = None
        self._arrived: set[int] = set()  # parameters whose gradient is in `gradient`
        self._reduced = False  # whether `gradient` holds a sum over the ranks already
        self._work = Work()

        stored = dtypes.stored(first.dtype)
        computed = dtypes.compute if first.dtype.is_floating_point else first.dtype
        whole = self._flatten(stored)
        broadcast(whole, 0, self.name, group).wait()
        # Three tensors in general, and one and the same where nothing is sharded or converted.
        self.parameter = whole[self.shard].clone() if sharded else whole
        self.gathered = torch.empty_like(whole) if sharded else whole
        self.full = torch.empty_like(whole, dtype=computed) if computed != stored else self.gathered
        memory.tag(self.parameter, "parameters")
        self._views = self.split(self.full)
        nothing = float("nan") if self.full.dtype.is_floating_point else 0
        self._placeholder = self.full.new_full((), nothing)
        self._expose()
        self.state = State.UNSHARDED  # where nothing is transient it stays so
        for buffer in self._transient():
            memory.tag(buffer, "gathered")
        self.reshard()

    # -- parameters ---------------------------------------------------------------------------

    def allocate(self) -> None:
        """Give `gathered` its memory, with this rank's chunk in place (before an all-gather)."""
        _allocate(self.gathered)
        self.gathered[self.shard].copy_(self.parameter)

    def begin_unshard(self, work: Work) -> None:
        """Parameters are on their way; `work` is complete when `gathered` is."""
        self.state, self._work = State.UNSHARDING, work

    def wait_for_unshard(self) -> None:
        """Return when the module can compute with its parameters."""
        if self.state is not State.UNSHARDING:
            return
        self._work.wait()
        if self.full is not self.gathered:
            _allocate(self.full)
            self.full.copy_(self.gathered)
            if self.sharded:
                _free(self.gathered)
        self._expose()
        self.state = State.UNSHARDED

    def gather_chunks(self, whole: Tensor, group: dist.ProcessGroup | None) -> Work:
        """Fill `whole` [W] with every rank's chunk; this rank's is in place already."""
        if self.owner is None:
            return all_gather(whole, self.name, group)
        return broadcast(whole, self.owner, self.name, group)

    def reshard(self) -> None:
        """Release what is not persistent. Autograd may keep views of it: they are empty until the
        next unshard refills the same storage."""
        if self.state is State.SHARDED or not self._transient():
            return
        self.wait_for_unshard()
        self._conceal()
        held = sum(buffer.untyped_storage().nbytes() for buffer in self._transient())
        for buffer in self._transient():
            _free(buffer)
        self.state = State.SHARDED
        trace.instant("discard", self.name, held)

    def lends(self, tensor: Tensor) -> bool:
        """Whether a tensor is a view of what `reshard` frees."""
        if tensor.layout is not torch.strided or not self._transient():
            return False
        return tensor.untyped_storage()._cdata == self.full.untyped_storage()._cdata

    # -- gradients ----------------------------------------------------------------------------

    def accumulate(self, index: int) -> None:
        """Move a parameter's fresh gradient into `gradient`, divided by the ranks.

        Every gradient is divided before it is summed, so that the sum over ranks is their mean.
        """
        parameter = self.parameters[index]
        fresh = parameter.grad
        if fresh is None:
            return
        if fresh.layout is not torch.strided:
            raise RuntimeError(
                f"{self.names[index]} has a {fresh.layout} gradient; flat gradients are dense: "
                "build the embedding with sparse=False"
            )
        self._prepare_gradient()
        view = self._gradient_views[index]
        if index in self._arrived:
            view.add_(fresh, alpha=1 / self.ranks)
        else:
            torch.mul(fresh, 1 / self.ranks, out=view)
            self._arrived.add(index)
        parameter.grad = None

    def complete_gradient(self) -> Tensor:
        """`gradient` [W] ready to be reduced: zero in the padding, and where none arrived."""
        gradient = self._prepare_gradient()
        for index, view in enumerate(self._gradient_views):
            if index not in self._arrived:
                view.zero_()
                self._arrived.add(index)
        gradient[self.numel :].zero_()
        self._reduced = True
        return gradient

    def keep_gradient_shard(self) -> None:
        """After a reduce-scatter: add this rank's chunk to `gradient_shard`, release the rest."""
        assert self.gradient is not None
        held = self.gradient.nbytes
        if self.gradient_shard is None:
            self.gradient_shard = memory.tag(self.gradient[self.shard].clone(), "gradients")
        else:
            self.gradient_shard.add_(self.gradient[self.shard])
        self._release_gradient()
        trace.instant("release", self.name, held)

    @property
    def has_unreduced_gradient(self) -> bool:
        """Whether a gradient has arrived that is not yet summed over the ranks."""
        return bool(self._arrived) and not self._reduced

    @property
    def kept_gradient(self) -> Tensor | None:
        """The reduced gradient as this rank keeps it, [W] or [S]; None before backward."""
        return self.gradient if self.gradient_shard is None else self.gradient_shard

    def own_chunk(self, flat: Tensor) -> Tensor:
        """This rank's chunk [S] of a tensor that is whole or is that chunk already."""
        return flat[self.shard] if flat.numel() == self.size else flat

    def zero_grad(self) -> None:
        """Forget all gradients and release their memory."""
        self.gradient_shard = None
        self._release_gradient()

    def _release_gradient(self) -> None:
        self.gradient, self._gradient_views = None, []
        self._arrived.clear()
        self._reduced = False

    def _prepare_gradient(self) -> Tensor:
        """`gradient` [W], fit to be added to."""
        if self.gradient is None:
            new = torch.empty(self.size, dtype=self.gradient_dtype, device=self.parameter.device)
            self.gradient = memory.tag(new, "gradients")
            self._gradient_views = self.split(new)
        if self._reduced:
            # Another backward before zero_grad: what is reduced already must count once in the next
            # sum, so it stays on the rank that owns it and is zero everywhere else.
            self.gradient[: self.shard.start].zero_()
            self.gradient[self.shard.stop :].zero_()
            self._reduced = False
        return self.gradient

    # -- layout -------------------------------------------------------------------------------

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat tensor [W] in the parameters' shapes."""
        pieces = flat[: self.numel].split([shape.numel() for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def runs(self, part: slice) -> Iterator[Run]:
        """What lies in a part of the flat tensor; padding belongs to no run."""
        for name, shape, offset in zip(self.names, self.shapes, self.offsets, strict=True):
            start, stop = max(offset, part.start), min(offset + shape.numel(), part.stop)
            if start < stop:
                yield Run(name, start - offset, stop - offset, start - part.start)

    def _transient(self) -> list[Tensor]:
        """The buffers that hold memory only while the unit is unsharded."""
        buffers = [self.gathered] if self.sharded else []
        return buffers if self.full is self.gathered else [*buffers, self.full]

    def _flatten(self, dtype: torch.dtype) -> Tensor:
        whole = torch.zeros(self.size, dtype=dtype, device=self.parameters[0].device)
        for view, parameter in zip(self.split(whole), self.parameters, strict=True):
            view.copy_(parameter.detach())
        return whole

    def _expose(self) -> None:
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if type(parameter) is Released:
                parameter.__class__ = nn.Parameter  # type: ignore[assignment]
            parameter.data = view

    def _conceal(self) -> None:
        for parameter, shape in zip(self.parameters, self.shapes, strict=True):
            parameter.data = self._placeholder.expand(shape)
            if type(parameter) is nn.Parameter:  # other classes have their own say
                parameter.__class__ = Released


def _allocate(tensor: Tensor) -> None:
    storage = tensor.untyped_storage()
    storage.resize_(tensor.numel() * tensor.element_size())
    memory.resized(tensor)


def _free(tensor: Tensor) -> None:
    tensor.untyped_storage().resize_(0)
    memory.resized(tensor)
