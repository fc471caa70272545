"""Peak memory is an instant, not a sum: what is alive at each of a step's tight moments.

Adding up "parameters + gradients + optimizer + activations + buffers" counts things that are never
alive together: activations are largest when there are no gradients yet, and gone when the optimizer
steps. So each moment gets its own list, and the peak is the largest moment.

Every list adds up to its total to the byte. What no program decides (CUDA context, communicator
buffers, fragmentation) is no part of it: see `beside`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from zerolab.accounting.activations import (
    FP32,
    Batch,
    Keeping,
    Lines,
    activations,
    block,
    embedding,
)
from zerolab.accounting.memory import padded_sizes, persistent_states
from zerolab.accounting.models import Shape
from zerolab.accounting.precision import Precision, precision_policy
from zerolab.accounting.quantities import MOST_RANKS, check_whole
from zerolab.accounting.strategies import sharding
from zerolab.accounting.tensor_parallel import unit_sizes

CHUNK = 1024  # tokens whose logits a chunked loss computes at once


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One training run, as one rank sees it.

    ranks: data-parallel ranks; tensor parallelism is in `batch`.
    micro_batches: backwards before each step.
    prefetch: units that ZeRO-3 gathers ahead of the one that computes.
    """

    shape: Shape
    strategy: str
    ranks: int
    precision: str | Precision
    batch: Batch
    keeping: Keeping = Keeping()  # noqa: RUF009 - frozen
    micro_batches: int = 1
    prefetch: int = 1

    def __post_init__(self) -> None:
        sharding(self.strategy)
        precision_policy(self.precision)
        check_whole("--ranks", self.ranks, 1, MOST_RANKS)
        check_whole("--micro-batches", self.micro_batches, 1, 10**6)
        check_whole("--prefetch", self.prefetch, 0, 1000)

    @property
    def devices(self) -> int:
        """GPUs in all."""
        return self.ranks * self.batch.tensor_parallel


@dataclass(frozen=True)
class Moment:
    """What is alive at one instant, in bytes by part."""

    name: str
    parts: Lines

    @property
    def total(self) -> int:
        """Bytes alive: the sum of the parts."""
        return sum(self.parts.values())


def peak(setup: Setup) -> Moment:
    """The largest moment of the step."""
    return max(moments(setup), key=lambda moment: moment.total)


def moments(setup: Setup) -> list[Moment]:
    """The tight moments, in the order of a step."""
    run = _Run(setup)
    several = setup.micro_batches > 1
    found = [_loss(run, "end of forward", earlier=False, backward=False)]
    if several:
        found.append(_loss(run, "end of a later forward", earlier=True, backward=False))
    found.append(_loss(run, "backward of the loss", earlier=several, backward=True))
    return [*found, _inside_backward(run), _step(run)]


def _loss(run: "_Run", name: str, earlier: bool, backward: bool) -> Moment:
    """All activations are there, and the logits; gradients only of earlier micro-batches."""
    setup = run.setup
    parts = run.states(gradient_units=len(run.units) if earlier else 0)
    # What backward needs first is gathered ahead, or still: the output unit, then the last blocks.
    parts["prefetched"] = run.prefetched(run.units[:0:-1])
    parts["activations"] = sum(activations(setup.shape, setup.batch, setup.keeping).values())
    parts["gradients of logits" if backward else "logits"] = _logits(setup, backward)
    return Moment(name, parts)


def _inside_backward(run: "_Run") -> Moment:
    """The worst block: its gradients come, activations of later blocks are gone.

    Blocks are alike, so from one to the next everything grows or shrinks by the same bytes: the
    worst is the first or the last, but for the first few, which have less to gather ahead, and the
    last, beside the output unit.
    """
    layers = run.setup.shape.layers
    ends = {*range(min(run.setup.prefetch + 1, layers)), max(layers - 2, 0), layers - 1}
    return max(_blocks_backward(run, sorted(ends)), key=lambda moment: moment.total)


def _blocks_backward(run: "_Run", indices: Iterable[int]) -> Iterator[Moment]:
    """The moment at which each of these blocks is in backward."""
    setup = run.setup
    shape, batch, keeping = setup.shape, setup.batch, setup.keeping
    one_block = sum(block(shape, batch, keeping).values())
    before = sum(embedding(shape, batch, keeping).values())
    recomputed = _recomputed(setup)
    for index in indices:
        # Units after this block, which have their gradients; all of them from the second
        # micro-batch on.
        done = len(run.units) if setup.micro_batches > 1 else shape.layers - index
        parts = run.states(gradient_units=done)
        current = run.units[1 + index]
        parts["gathered"] = run.gathered(current)
        parts["prefetched"] = run.prefetched(run.units[index:0:-1])
        parts["gradient buffers"] = current * run.policy.gradient
        parts["communication buffers"] = run.being_reduced(run.units[2 + index])
        parts["activations"] = before + (index + 1) * one_block
        parts["recomputed"] = recomputed
        parts["gradients of activations"] = _activation_gradients(setup)
        yield Moment(f"backward of block {index + 1} of {shape.layers}", parts)


def _step(run: "_Run") -> Moment:
    """No activations; one unit's gradient at a time is converted for the update."""
    parts = run.states(gradient_units=len(run.units))
    parts["fp32 copies"] = run.update_copies()
    return Moment("optimizer step", parts)


class _Run:
    """A set-up's units and the bytes that follow from them."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.policy = precision_policy(setup.precision)
        self.sharding = sharding(setup.strategy)
        sizes = unit_sizes(setup.shape, setup.batch.tensor_parallel)
        self.units = list(padded_sizes(sizes, setup.ranks))
        # Once, not for every block: calculators ask for many peaks at each change.
        self.whole = persistent_states(sizes, setup.strategy, setup.ranks, self.policy)

    def states(self, gradient_units: int) -> Lines:
        """Persistent bytes; gradients of that many units, from the last one backwards."""
        there = sum(self.units[len(self.units) - gradient_units :])
        kept = there if self.sharding.gradients == "whole" else there // self.setup.ranks
        return {
            "parameters": self.whole.parameters,
            "gradients": kept * self.policy.gradient,
            "optimizer": self.whole.optimizer,
        }

    def gathered(self, unit: int) -> int:
        """Whole parameters of the unit that computes, where ranks keep shards only."""
        return self.policy.parameter * unit if self.sharding.parameters == "shard" else 0

    def prefetched(self, next_ones: list[int]) -> int:
        """Whole parameters of the units that are gathered ahead."""
        return self.gathered(sum(next_ones[: self.setup.prefetch]))

    def being_reduced(self, unit: int) -> int:
        """Whole gradients of the unit before, while they are reduced into shards.

        Where gradients stay whole, a ring still needs memory for a chunk or two: it is left out.
        """
        return self.policy.gradient * unit if self.sharding.gradients == "shard" else 0

    def update_copies(self) -> int:
        """What the update of the largest unit needs beside the states."""
        largest = max(self.units)
        part = largest if self.sharding.optimizer == "whole" else largest // self.setup.ranks
        copies = (self.policy.gradient < FP32) + (
            self.policy.parameter < FP32 and not self.policy.master
        )
        return FP32 * part * copies


def _logits(setup: Setup, backward: bool) -> int:
    """Alive while the loss or its gradient is computed, beside what autograd keeps of it.

    Forward has the logits, and their fp32 copy where they are 16-bit; backward has the gradients of
    the log-probabilities and of the logits, in fp32. A fused loss writes the gradient over the
    logits, which are among what is kept. A chunked one does all of it for one chunk at a time.
    """
    batch, element = setup.batch, setup.batch.element
    forward = element + (FP32 if element < FP32 else 0)
    gradients = 2 * FP32
    match setup.keeping.loss:
        case "eager":
            tokens, each = batch.tokens, gradients if backward else forward
        case "chunked":
            tokens = min(batch.tokens, CHUNK)
            each = FP32 + (max(gradients, forward) if backward else forward)
        case "fused":
            return 0
    return -(-tokens * setup.shape.vocabulary * each // batch.tensor_parallel)


def _recomputed(setup: Setup) -> int:
    """What recomputation brings back for the block that is in backward."""
    keeping = setup.keeping
    if keeping.recompute == "none":
        return 0
    everything = replace(keeping, recompute="none")
    kept = sum(block(setup.shape, setup.batch, keeping).values())
    whole = sum(block(setup.shape, setup.batch, everything).values())
    return whole - kept


def _activation_gradients(setup: Setup) -> int:
    """The gradient of the residual stream, and of the widest tensors inside a block.

    A formula: which others are alive for how long is the implementation's business.
    """
    shape, batch = setup.shape, setup.batch
    inner = (2 if shape.gated else 1) * shape.feed_forward * shape.active_experts
    residual = batch.outside(batch.element * batch.tokens * shape.hidden)
    return residual + batch.inside(inner)
