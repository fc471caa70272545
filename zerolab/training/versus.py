"""ZeRO-3 against tensor parallelism, by experiment: both shard the parameters.

The same GPT, the same ranks, the same tokens a step. ZeRO-3 divides the tokens among the ranks and
gathers each layer whole; tensor parallelism shows every rank all tokens and divides each layer.
What a rank computes is the same; what it keeps, sends and waits for is not.
"""

import statistics
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import product
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerolab.accounting.activations import Batch, Keeping
from zerolab.accounting.errors import InputError
from zerolab.accounting.links import Link
from zerolab.accounting.links import link as find_link
from zerolab.accounting.traffic import tensor_parallel_traffic, wire_bytes
from zerolab.parallel import ShardedAdam, TensorParallel, Zero3
from zerolab.runtime import memory
from zerolab.runtime.collectives import device_of
from zerolab.runtime.ledger import ledger
from zerolab.runtime.link import emulated
from zerolab.runtime.world import World
from zerolab.training.gpt import GPT, GPTShape

TIMED_STEPS = 3
SIDES = ("zero3", "tensor_parallel")
NO_LINK = "none"  # emulated: the ranks send as fast as this machine can


@dataclass(frozen=True)
class Side:
    """What one of the two cost rank 0, in bytes and seconds; bytes and messages are of one step.
    Seconds are medians."""

    wire_bytes: int
    messages: int
    persistent: int  # parameters, gradients and optimizer, when backward has ended
    activations: int  # alive when forward has ended
    activations_inside: int  # of these, those inside attention and feed-forward of the blocks
    step_seconds: float
    step_seconds_in_turn: float  # without communicating ahead or in the background
    communication_seconds: float  # of all collectives of a step
    waiting_seconds: float  # of a step, in which nothing was computed because of them
    weight_computed: tuple[int, ...]  # the shape of a block's first weight while it computes
    product: tuple[int, ...]  # and of what it computes: (tokens, features)
    between: tuple[int, ...]  # the shape of what goes from block to block: (tokens, features)
    inside_a_layer: int  # collectives that each block's own computation waits for, at least


@dataclass(frozen=True)
class Comparison:
    """Both at one point of a sweep."""

    tokens: int  # a step, all ranks together
    width: int
    link: str
    parameters: int
    crossing_tokens: float  # by the formula
    zero3: Side
    tensor_parallel: Side

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def sweep(
    world: World,
    tokens: Sequence[int],
    shape: GPTShape,
    widths: Sequence[int] = (),
    links: Sequence[str] = (),
    on_point: Callable[[Comparison], None] = lambda _: None,
) -> list[Comparison]:
    """Compare at every combination; tokens change fastest, then links, then widths.

    tokens: of a step, all ranks together.
    widths: of the GPT, otherwise like `shape`; its own where empty.
    links: names of links to emulate, "none" for none; the world's own where empty.
    on_point: called with each comparison as soon as it is made.
    """
    found = []
    for width, link, count in product(widths or (shape.width,), links or (None,), tokens):
        found.append(compare(world, count, replace(shape, width=width), link))
        on_point(found[-1])
    return found


def compare(world: World, tokens: int, shape: GPTShape, link: str | None = None) -> Comparison:
    """Train both for a few steps of `tokens` tokens and measure the last ones.

    link: emulated; "none" for none, None for the world's own.
    """
    check(world.ranks, tokens, shape)
    sides = {side: world.run(_measure, world.ranks, side, tokens, shape, link)[0] for side in SIDES}
    return Comparison(
        tokens=tokens,
        width=shape.width,
        link=link or world.link or NO_LINK,
        parameters=shape.parameters,
        crossing_tokens=crossing(world.ranks, shape),
        **sides,
    )


def check(ranks: int, tokens: int, shape: GPTShape) -> None:
    """Raise InputError where the two cannot be compared on so many ranks."""
    if ranks < 2 or not shape.splits(ranks):
        raise InputError(
            "--ranks",
            ranks,
            f"a number from 2 that divides the {shape.heads} heads and the vocabulary of "
            f"{shape.vocabulary}",
        )
    if tokens % (ranks * _sequence(tokens, ranks, shape)):
        raise InputError(
            "--tokens",
            tokens,
            f"a multiple of {ranks} ranks × {shape.context} tokens, or fewer that divide by "
            f"{ranks}",
        )


def crossing(ranks: int, shape: GPTShape) -> float:
    """The tokens a step at which both send the same bytes; more favour ZeRO-3.

    ZeRO-3 sends three times the parameters, whatever the tokens; tensor parallelism as much for
    every token: `accounting.traffic` has both formulas.
    """
    batch = Batch(size=1, sequence=ranks, element=4, tensor_parallel=ranks)
    of_batch = tensor_parallel_traffic(shape.on_paper, batch, Keeping()).bytes
    return batch.tokens * wire_bytes(shape.parameters, "zero3", ranks, "fp32") / of_batch


def _sequence(tokens: int, ranks: int, shape: GPTShape) -> int:
    """Tokens in a sequence: the context's, or fewer so that each rank has one sequence."""
    return min(shape.context, max(1, tokens // ranks))


def _measure(
    rank: int, ranks: int, side: str, tokens: int, shape: GPTShape, link: str | None
) -> Side:
    """One side, on one rank: memory and traffic of the second step, then time."""
    with nullcontext() if link is None else emulated(_named(link)):
        model, optimizer = _build(side, shape)
        sequence = _sequence(tokens, ranks, shape)
        draw = torch.Generator().manual_seed(1)
        batch = torch.randint(0, shape.vocabulary, (tokens // sequence, sequence), generator=draw)
        if side == "zero3":
            batch = batch.chunk(ranks)[rank]
        batch = batch.to(device_of(None))
        with memory.MemoryMeter() as meter, _watching(model, meter) as seen:
            for _ in range(2):  # the second begins with optimizer state
                ledger.clear()
                loss = model(batch, batch)
                activations = meter.live[memory.ACTIVATIONS]
                loss.backward()
                persistent = _persistent(meter, model, optimizer)
                optimizer.step()
                optimizer.zero_grad()
                _claim(model, optimizer)
                del loss
        labels = [event.label for event in ledger.events]
        sent, messages = ledger.bytes(), ledger.messages()
        ahead = _timed(model, optimizer, batch)
        if isinstance(model, Zero3):
            model.overlap = False
        in_turn = _timed(model, optimizer, batch)
    return Side(
        wire_bytes=sent,
        messages=messages,
        persistent=persistent,
        activations=activations,
        activations_inside=seen.inside,
        step_seconds=ahead.step,
        step_seconds_in_turn=in_turn.step,
        communication_seconds=ahead.communication,
        waiting_seconds=ahead.waiting,
        weight_computed=seen.weight,
        product=seen.product,
        between=seen.between,
        inside_a_layer=min(
            sum(label.startswith(f"blocks.{layer}.") for label in labels)
            for layer in range(shape.layers)
        ),
    )


def _named(link: str) -> Link | None:
    return None if link == NO_LINK else find_link(link)


def _build(side: str, shape: GPTShape) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    if side == "zero3":
        sharded = Zero3(GPT(shape))
        return sharded, ShardedAdam(sharded)
    split = TensorParallel(GPT(shape))
    for parameter in split.parameters():
        memory.tag(parameter, "parameters")
    return split, torch.optim.AdamW(split.parameters(), fused=True)


def _persistent(
    meter: memory.MemoryMeter, model: nn.Module, optimizer: torch.optim.Optimizer
) -> int:
    """Parameters, gradients and optimizer state that are alive now."""
    _claim(model, optimizer)
    kept = ("parameters", "gradients", "optimizer")
    return sum(meter.live[category] for category in kept)


def _claim(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Tell the meter what plain torch's optimizer does not: which tensors are state."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            memory.tag(parameter.grad, "gradients")
    for state in optimizer.state.values():
        for value in state.values():
            memory.tag(value, "optimizer")


class _Seconds(NamedTuple):
    """Of one step."""

    step: float
    communication: float
    waiting: float


def _timed(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> _Seconds:
    """Medians of a few steps."""
    steps = []
    for _ in range(TIMED_STEPS):
        dist.barrier()
        ledger.clear()
        start = perf_counter()
        model(batch, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        waited, communicated = ledger.waited, ledger.seconds()
        dist.barrier()
        steps.append(_Seconds(perf_counter() - start, communicated, waited))
    return _Seconds(*map(statistics.median, zip(*steps, strict=True)))


class _Seen:
    """What a forward of the GPT showed."""

    weight: tuple[int, ...]
    product: tuple[int, ...]
    between: tuple[int, ...]
    inside = 0


@contextmanager
def _watching(model: nn.Module, meter: memory.MemoryMeter):
    """Look at shapes in the first block, and at what becomes alive between the first and the last
    layer of each block's attention and feed-forward; of the last forward within the context."""
    seen, blocks = _Seen(), model.get_submodule("module.blocks")
    hooks: list[Any] = []

    def begin(*_) -> None:
        seen.inside -= meter.live[memory.ACTIVATIONS]

    def end(*_) -> None:
        seen.inside += meter.live[memory.ACTIVATIONS]

    def anew(*_) -> None:
        seen.inside = 0

    def look(layer: nn.Module, _, output: Tensor) -> None:
        seen.weight = tuple(layer.weight.shape)  # type: ignore[arg-type]
        seen.product = _tokens_and_features(output)

    def look_between(_, __, output: Tensor) -> None:
        seen.between = _tokens_and_features(output)

    hooks.append(model.register_forward_pre_hook(anew))
    for name, first, last in (("attention", "qkv", "projection"), ("mlp", "up", "projection")):
        for block in blocks.children():
            part = block.get_submodule(name)
            hooks.append(part.get_submodule(first).register_forward_pre_hook(begin))
            hooks.append(part.get_submodule(last).register_forward_pre_hook(end))
    block = blocks.get_submodule("0")
    hooks.append(block.get_submodule("attention.qkv").register_forward_hook(look))
    hooks.append(block.register_forward_hook(look_between))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _tokens_and_features(output: Tensor) -> tuple[int, int]:
    return output.numel() // output.shape[-1], output.shape[-1]
