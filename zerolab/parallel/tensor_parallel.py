"""Tensor parallelism: every layer's *computation* is split, and with it the storage.

    blocks.0        attention              MLP
                f  qkv → heads → projection  g   f  up → GELU → projection  g
    rank 0         heads 0..H/N-1                   features 0..4C/N-1
    rank 1         heads H/N..                      features 4C/N..

All ranks see the same batch. Twice forward and twice backward, each layer waits for an all-reduce
of batch × sequence × width elements, on the critical path. ZeRO-3 keeps a shard of the *storage*
and gathers the whole layer before computing: its traffic grows with parameters, this one with
tokens. Source: Shoeybi et al., arXiv 1909.08053.

A plan says which module is what, by name, `*` standing for any part of it:

    column         cut by output features; f before it
    column_fused3  the same, for queries, keys and values in one matrix
    column_gather  the same, and every rank gets all features (a head before an ordinary loss)
    row            cut by input features; g after it
    vocabulary     an embedding cut by words; g after it
    cross_entropy  a loss module called with (logits, targets), on logits cut by words
    enter          one f for several column layers inside that read the same input
    own_tokens     whole on all ranks: under sequence parallelism, cut its output along the sequence
    divide         a number that a module keeps of its own width: divided by the ranks
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

import torch
import torch.distributed as dist
from torch import Tensor, nn

import zerolab.parallel.replaced  # noqa: F401 - looks at every optimizer from here on
from zerolab.accounting.errors import unknown_name
from zerolab.parallel.fitting import check_fits
from zerolab.parallel.regions import Ranks, enter, own_tokens, summed
from zerolab.parallel.split_layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabularyParallelCrossEntropy,
    VocabularyParallelEmbedding,
)
from zerolab.runtime.collectives import broadcast, device_of, sum_over_ranks

Plan = Mapping[str, str]

PLANS: dict[str, Plan] = {
    "GPT": {
        "token_embedding": "vocabulary",
        "position_embedding": "own_tokens",
        "blocks.*.attention.qkv": "column_fused3",
        "blocks.*.attention.projection": "row",
        "blocks.*.mlp.up": "column",
        "blocks.*.mlp.projection": "row",
        "head": "column",
        "loss": "cross_entropy",
    },
    "GPT2LMHeadModel": {
        "transformer.h.*.attn.split_size": "divide",
        "transformer.h.*.attn.c_attn": "column_fused3",
        "transformer.h.*.attn.c_proj": "row",
        "transformer.h.*.mlp.c_fc": "column",
        "transformer.h.*.mlp.c_proj": "row",
    },
    "LlamaForCausalLM": {
        "model.embed_tokens": "vocabulary",
        "model.layers.*.self_attn": "enter",
        "model.layers.*.self_attn.[qkv]_proj": "column",
        "model.layers.*.self_attn.o_proj": "row",
        "model.layers.*.mlp": "enter",
        "model.layers.*.mlp.gate_proj": "column",
        "model.layers.*.mlp.up_proj": "column",
        "model.layers.*.mlp.down_proj": "row",
        "lm_head": "column_gather",
    },
}


class TensorParallel(nn.Module):
    """A module whose layers are computed by all ranks of a group together, each a part of them.

    module: changed in place and moved to this rank's device; its parameters become this rank's
        share.
    plan: module names to kinds, as above; found by the class's name (GPT, GPT2LMHeadModel,
        LlamaForCausalLM) where None.
    group: the process group; the default one where None.
    sequence_parallel: cut the activations between layers along the sequence: the same bytes on the
        wire, and 1/N of those activations.

    Every rank needs the same batch, and where there is dropout the same seed. Train it with any
    torch optimizer, or wrap it once more, as in
    `Zero3(TensorParallel(module, group=tensor_group), group=data_group)`.
    """

    def __init__(
        self,
        module: nn.Module,
        plan: Plan | None = None,
        group: dist.ProcessGroup | None = None,
        sequence_parallel: bool = False,
    ) -> None:
        super().__init__()
        if not dist.is_initialized():
            raise RuntimeError(
                "TensorParallel needs a process group: run it inside World(...).run, under "
                "torchrun, or after torch.distributed.init_process_group"
            )
        self.ranks = Ranks(group, sequence_parallel)
        plan = _plan_for(module) if plan is None else plan
        if sequence_parallel and "own_tokens" not in plan.values():
            raise ValueError(
                f"the plan for {type(module).__name__} does not say where its sequence is cut "
                '(kind "own_tokens"): leave sequence_parallel out, or add it to the plan'
            )
        module.to(device_of(group))
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            broadcast(tensor.detach(), 0, name, group).wait()
        self.module = module
        kinds = dict(_matches(module, plan))
        made: dict[nn.Parameter, nn.Parameter] = {}
        for name, kind in kinds.items():
            self._split(name, kind, inside_enter=_has_enter_above(name, kinds), made=made)
        _give_split_parts_their_own_randomness(module, kinds, self.ranks)
        if sequence_parallel:
            self._sum_gradients_of_whole_parameters()

    def forward(self, *args, **kwargs):
        """What the module returns, the same on every rank; but logits that a "column" layer makes,
        as in GPT's plan, are those of this rank's words, (B, T, vocabulary / N)."""
        return self.module(*args, **kwargs)

    def full_state_dict(self) -> dict[str, Tensor]:
        """The whole tensors under the module's own names, on CPU, on every rank."""
        return {
            name: whole_tensor(value, value.detach(), name).cpu()
            for name, value in self.module.state_dict(keep_vars=True).items()
        }

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale all gradients to a global 2-norm of at most `max_norm`; returns the norm.

        What is cut is summed over the ranks; what every rank holds counts once.
        """
        squares = {True: 0.0, False: 0.0}
        gradients = []
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                gradients.append(parameter.grad)
                norm = torch.linalg.vector_norm(parameter.grad, dtype=torch.float32)
                squares[hasattr(parameter, "cut")] += norm.item() ** 2
        group = self.ranks.group
        of_cut = sum_over_ranks(squares[True], device_of(group), "gradient norm", group)
        norm = (of_cut + squares[False]) ** 0.5
        if norm > max_norm:
            for gradient in gradients:
                gradient.mul_(max_norm / norm)
        return norm

    def _split(
        self, name: str, kind: str, inside_enter: bool, made: dict[nn.Parameter, nn.Parameter]
    ) -> None:
        """Replace the module of that name, or hook it, as its kind says."""
        parent = self.module.get_submodule(name.rpartition(".")[0])
        child = name.rpartition(".")[2]
        layer = getattr(parent, child)
        check_fits(kind, layer, parent, name, self.ranks)
        if kind == "divide":
            setattr(parent, child, layer // self.ranks.count)
        elif kind == "enter":
            layer.register_forward_pre_hook(
                lambda _, args, kwargs: self._enter(name, args, kwargs), with_kwargs=True
            )
        elif kind == "own_tokens":
            if self.ranks.sequence_parallel:
                layer.register_forward_hook(lambda *call: own_tokens(call[-1], self.ranks))
        else:
            new = _KINDS[kind](layer, self.ranks, name, inside_enter)
            for own_name, own in new.named_parameters():  # tied parameters stay tied
                whole = getattr(layer, own_name)
                setattr(new, own_name, made.setdefault(whole, own))
                if made[whole] is not whole:  # a summed bias stays as it is
                    whole.cut_as = name
            setattr(parent, child, new)

    def _enter(self, name: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        def through(value):
            differentiable = isinstance(value, Tensor) and value.requires_grad
            return enter(value, self.ranks, name) if differentiable else value

        return tuple(map(through, args)), {key: through(value) for key, value in kwargs.items()}

    def _sum_gradients_of_whole_parameters(self) -> None:
        """What every rank holds sees this rank's tokens only: its gradient is a part of a sum."""

        ranks = self.ranks  # not self: autograd's hooks would keep it alive for good

        def hook(name: str):
            def add_up(parameter: Tensor) -> None:
                assert parameter.grad is not None
                parameter.grad = summed(parameter.grad, ranks, f"{name} gradient")

            return add_up

        for name, parameter in self.module.named_parameters():
            if not hasattr(parameter, "cut") and parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(hook(name))


def whole_tensor(parameter: Tensor, own: Tensor, name: str) -> Tensor:
    """The whole of a tensor `own` that is cut as `parameter` says; `own` where it is not cut."""
    cut = getattr(parameter, "cut", None)
    return own.clone() if cut is None else cut.whole(own, name)


_KINDS = {
    "column": lambda layer, ranks, name, inside: ColumnParallelLinear(
        layer, ranks, name, shared=inside
    ),
    "column_fused3": lambda layer, ranks, name, inside: ColumnParallelLinear(
        layer, ranks, name, parts=3, shared=inside
    ),
    "column_gather": lambda layer, ranks, name, inside: ColumnParallelLinear(
        layer, ranks, name, shared=inside, gather=True
    ),
    "row": lambda layer, ranks, name, _: RowParallelLinear(layer, ranks, name),
    "vocabulary": lambda layer, ranks, name, _: VocabularyParallelEmbedding(layer, ranks, name),
    "cross_entropy": lambda loss, ranks, name, _: VocabularyParallelCrossEntropy(loss, ranks, name),
}
KINDS = (*_KINDS, "enter", "own_tokens", "divide")


def _plan_for(module: nn.Module) -> Plan:
    name = type(module).__name__
    if name not in PLANS:
        raise ValueError(
            f"there is no plan for {name}, only for {', '.join(PLANS)}: write one, as in "
            'plan={"blocks.*.mlp.up": "column", "blocks.*.mlp.down": "row"}'
        )
    return PLANS[name]


def _matches(module: nn.Module, plan: Plan) -> Iterator[tuple[str, str]]:
    """(name, kind) of every module, or attribute to divide, that the plan speaks of."""
    names = [name for name, _ in module.named_modules() if name]
    for pattern, kind in plan.items():
        if kind not in KINDS:
            raise unknown_name(f"plan[{pattern!r}]", kind, KINDS)
        if kind == "divide":
            owner, _, attribute = pattern.rpartition(".")
            found = [f"{name}.{attribute}" for name in names if fnmatchcase(name, owner)]
        else:
            found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise ValueError(f"plan[{pattern!r}] names no part of {type(module).__name__}")
        yield from ((name, kind) for name in found)


def _has_enter_above(name: str, kinds: dict[str, str]) -> bool:
    return any(kind == "enter" and name.startswith(f"{above}.") for above, kind in kinds.items())


def _give_split_parts_their_own_randomness(
    module: nn.Module, kinds: dict[str, str], ranks: Ranks
) -> None:
    """Dropout between a column and a row layer acts on each rank's own features, so it must differ
    between ranks; everywhere else it acts on the same tensor, so it must not.

    Ranks share their random numbers, up to a split part: there they draw one seed together, and go
    on from it each in its own way. What is recomputed in backward draws the same again.
    """
    shared: list[list[Tensor]] = []  # the states of the common generators, inside a split part
    on_gpu = device_of(ranks.group).type == "cuda"

    def begin(layer: nn.Module, *_) -> None:
        if layer.training and not shared:
            seed = int(torch.randint(2**62, ()))
            states = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if on_gpu else [])]
            shared.append(states)
            torch.manual_seed(seed + ranks.rank)

    def end(*_) -> None:
        if shared:
            of_cpu, *of_gpu = shared.pop()
            torch.set_rng_state(of_cpu)
            for state in of_gpu:
                torch.cuda.set_rng_state(state)

    module.register_forward_pre_hook(end)  # of a forward that failed inside a split part
    rows = {name.rpartition(".")[0] for name, kind in kinds.items() if kind == "row"}
    for name, kind in kinds.items():
        if kind == "row":
            module.get_submodule(name).register_forward_pre_hook(end)
        elif kind.startswith("column") and name.rpartition(".")[0] in rows:
            module.get_submodule(name).register_forward_hook(begin)
