"""ZeRO-3 against tensor parallelism, by experiment: both shard the parameters.

The same GPT, the same ranks, the same tokens a step. ZeRO-3 divides the tokens among the ranks and
gathers each layer whole; tensor parallelism shows every rank all tokens and divides each layer.
What a rank computes is the same; what it keeps, sends and waits for is not.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerolab.accounting.errors import InputError
from zerolab.parallel import ShardedAdam, TensorParallel, Zero3
from zerolab.runtime import memory
from zerolab.runtime.ledger import ledger
from zerolab.runtime.world import World
from zerolab.training.gpt import GPT, GPTShape

TIMED_STEPS = 3
SIDES = ("zero3", "tensor_parallel")


@dataclass(frozen=True)
class Side:
    """What one of the two cost rank 0, in bytes and seconds; bytes and messages are of one step."""

    wire_bytes: int
    messages: int
    persistent: int  # parameters, gradients and optimizer, when backward has ended
    activations: int  # alive when forward has ended
    step_seconds: float  # the median
    step_seconds_in_turn: float  # without communicating ahead or in the background
    weight_computed: tuple[int, ...]  # the shape of a block's first weight while it computes
    product: tuple[int, ...]  # and of what it computes: (tokens, features)
    inside_a_layer: int  # collectives that a block's own computation waits for


@dataclass(frozen=True)
class Comparison:
    """Both at one point of a sweep."""

    tokens: int  # a step, all ranks together
    width: int
    parameters: int
    zero3: Side
    tensor_parallel: Side

    def as_dict(self) -> dict:
        return asdict(self)


def sweep(
    world: World,
    tokens: Sequence[int],
    shape: GPTShape,
    on_point: Callable[[int], None] | None = None,
) -> list[Comparison]:
    """Compare at each number of tokens a step; `world`'s link is the one that is emulated."""
    return [compare(world, count, shape, on_point) for count in tokens]


def compare(
    world: World, tokens: int, shape: GPTShape, on_point: Callable[[int], None] | None = None
) -> Comparison:
    """Train both for a few steps of `tokens` tokens and measure the last ones."""
    check(world.ranks, tokens, shape)
    sides = {side: world.run(_measure, world.ranks, side, tokens, shape)[0] for side in SIDES}
    if on_point is not None:
        on_point(tokens)
    return Comparison(tokens, shape.width, shape.parameters, **sides)


def check(ranks: int, tokens: int, shape: GPTShape) -> None:
    """Raise InputError where the two cannot be compared on so many ranks."""
    if shape.heads % ranks or shape.vocabulary % ranks:
        raise InputError(
            "--ranks",
            ranks,
            f"a number that divides the {shape.heads} heads and the vocabulary of "
            f"{shape.vocabulary}",
        )
    if tokens % (ranks * _sequence(tokens, ranks, shape)):
        raise InputError(
            "--tokens", tokens, f"a multiple of {ranks} ranks × {shape.context} tokens, or less"
        )


def crossing(ranks: int, shape: GPTShape) -> float:
    """The tokens a step at which both send the same bytes; more favour ZeRO-3.

    ZeRO-3 sends three times the parameters P, whatever the tokens. Tensor parallelism sends, a
    token, two all-reduces forward and two backward of `width` elements a layer, and one more of
    each for the embedding and the head; an all-reduce counts twice. The loss adds two numbers.
    """
    passes = 2 * (4 * shape.layers + 2) * shape.width + 2 * ranks
    return 3 * shape.parameters / passes


def _sequence(tokens: int, ranks: int, shape: GPTShape) -> int:
    """Tokens in a sequence: the context's, or fewer so that each rank has one sequence."""
    return min(shape.context, max(1, tokens // ranks))


def _measure(rank: int, ranks: int, side: str, tokens: int, shape: GPTShape) -> Side:
    model, optimizer = _build(side, shape)
    sequence = _sequence(tokens, ranks, shape)
    generator = torch.Generator().manual_seed(1)
    batch = torch.randint(0, shape.vocabulary, (tokens // sequence, sequence), generator=generator)
    if side == "zero3":
        batch = batch.chunk(ranks)[rank]
    shapes = _Shapes(model)
    with memory.MemoryMeter() as meter:
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
    sent, messages = ledger.bytes(), ledger.messages()
    inside = sum(event.label.startswith("blocks.0.") for event in ledger.events)
    seconds = {}
    for ahead in (True, False):
        if isinstance(model, Zero3):
            model.overlap = ahead
        seconds[ahead] = statistics.median(
            _timed(model, optimizer, batch) for _ in range(TIMED_STEPS)
        )
    shapes.remove()
    return Side(
        wire_bytes=sent,
        messages=messages,
        persistent=persistent,
        activations=activations,
        step_seconds=seconds[True],
        step_seconds_in_turn=seconds[False],
        weight_computed=shapes.weight,
        product=shapes.product,
        inside_a_layer=inside,
    )


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


def _timed(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> float:
    dist.barrier()
    start = perf_counter()
    model(batch, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.barrier()
    return perf_counter() - start


class _Shapes:
    """Looks at the first block's first layer while it computes."""

    def __init__(self, model: nn.Module) -> None:
        layer = model.get_submodule("module.blocks.0.attention.qkv")
        self.weight: tuple[int, ...] = ()
        self.product: tuple[int, ...] = ()
        self._hook = layer.register_forward_hook(self._look)

    def _look(self, layer, inputs: tuple, output: Tensor) -> None:
        self.weight = tuple(layer.weight.shape)
        self.product = (output.numel() // output.shape[-1], output.shape[-1])

    def remove(self) -> None:
        self._hook.remove()
