"""Bytes that each rank sends in one optimizer step.

A ring all-gather or reduce-scatter of a tensor cut into N shards sends N-1 of them from each rank:
(N-1)/N of the tensor, here called one pass. An all-reduce is one of each, so two passes.
Source: arXiv 1910.02054, section 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zerolab.accounting.activations import FP32, Batch, Keeping
from zerolab.accounting.links import Link
from zerolab.accounting.memory import padded_sizes
from zerolab.accounting.models import Shape
from zerolab.accounting.moments import Setup
from zerolab.accounting.precision import Precision, precision_policy
from zerolab.accounting.quantities import MOST_PARAMETERS, check_whole
from zerolab.accounting.strategies import sharding
from zerolab.accounting.tensor_parallel import unit_sizes


class Passes(NamedTuple):
    """How often the whole flat tensor goes round the ring in one step."""

    gradients: int
    parameters: int


PASSES = {
    "ddp": Passes(gradients=2, parameters=0),  # all-reduce of the gradients
    "zero1": Passes(gradients=1, parameters=1),  # reduce-scatter, then all-gather what was updated
    "zero2": Passes(gradients=1, parameters=1),  # the same, each unit as soon as it is ready
    "zero3": Passes(gradients=1, parameters=2),  # all-gather for forward and again for backward
}


def wire_bytes(parameters: int, strategy: str, ranks: int, precision: str | Precision) -> int:
    """The textbook's bytes a rank and step: 2, 2, 2, 3 × parameters × bytes × (N-1)/N.

    Parameters travel in the policy's parameter bytes, gradients in its gradient bytes. One flat
    tensor, shards of ceil(parameters / ranks).
    """
    check_whole("--params", parameters, 1, MOST_PARAMETERS)
    return unit_wire_bytes([parameters], strategy, ranks, precision)


def unit_wire_bytes(
    unit_sizes: Sequence[int], strategy: str, ranks: int, precision: str | Precision
) -> int:
    """The bytes that our engine sends from each rank in one step, padding included.

    unit_sizes: elements of each unit, before padding.
    """
    return step_traffic(unit_sizes, strategy, ranks, precision).bytes


@dataclass(frozen=True)
class Traffic:
    """What one rank sends in one optimizer step."""

    bytes: int
    messages: int

    def seconds(self, link: Link) -> float:
        """How long it takes alone on a link."""
        return link.seconds(self.bytes, self.messages)

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.bytes + other.bytes, self.messages + other.messages)


def step_passes(strategy: str, micro_batches: int = 1) -> Passes:
    """How often everything goes round in a step, with gradients accumulated over micro-batches.

    DDP and ZeRO-1 keep whole gradients, so they add up locally and are reduced once a step. ZeRO-2
    and ZeRO-3 have nowhere to add up whole gradients: every backward reduces them, and ZeRO-3 also
    gathers anew in every forward and backward.
    """
    kept, passes = sharding(strategy), PASSES[strategy]
    check_whole("--micro-batches", micro_batches, 1, 10**6)
    return Passes(
        gradients=passes.gradients * (micro_batches if kept.gradients == "shard" else 1),
        parameters=passes.parameters * (micro_batches if kept.parameters == "shard" else 1),
    )


def step_traffic(
    unit_sizes: Sequence[int],
    strategy: str,
    ranks: int,
    precision: str | Precision,
    micro_batches: int = 1,
) -> Traffic:
    """Bytes and messages of data parallelism: `step_passes` of each unit.

    unit_sizes: elements of each unit, before padding.
    """
    gradients, parameters = step_passes(strategy, micro_batches)
    policy = precision_policy(precision)
    sent = sum(padded_sizes(unit_sizes, ranks)) // ranks * (ranks - 1)  # elements of one pass
    return Traffic(
        bytes=sent * (gradients * policy.gradient + parameters * policy.parameter),
        messages=len(unit_sizes) * (ranks - 1) * (gradients + parameters),
    )


def tensor_parallel_traffic(shape: Shape, batch: Batch, keeping: Keeping) -> Traffic:
    """Bytes and messages of tensor parallelism in one micro-batch: they grow with the tokens.

    Each block all-reduces its residual stream four times: after attention and after the
    feed-forward, in forward and again in backward; full recomputation adds its forward's two. The
    embedding adds one in forward, the head one in backward, and the loss gathers two fp32 numbers a
    token from each rank. With sequence parallelism each all-reduce becomes an all-gather and a
    reduce-scatter: the same bytes. (Megatron then gathers some inputs a second time, beside
    compute; that is not counted.)
    Source: Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3; arXiv 2205.05198, section 4.2.
    """
    ranks = batch.tensor_parallel
    reductions = shape.layers * (6 if keeping.recompute == "full" else 4) + 2
    chunk = -(-batch.element * batch.tokens * shape.hidden // ranks)
    messages = reductions * 2 * (ranks - 1)
    loss = Traffic(bytes=(ranks - 1) * 2 * FP32 * batch.tokens, messages=ranks - 1)
    return Traffic(bytes=messages * chunk, messages=messages) + loss


@dataclass(frozen=True)
class SplitTraffic:
    """What one rank sends in one optimizer step, by the group that it sends to."""

    data: Traffic
    tensor: Traffic

    @property
    def total(self) -> Traffic:
        """To both groups."""
        return self.data + self.tensor


def setup_traffic(setup: Setup) -> SplitTraffic:
    """Data parallelism of what tensor parallelism leaves of each unit, and tensor parallelism."""
    shape, batch = setup.shape, setup.batch
    each = tensor_parallel_traffic(shape, batch, setup.keeping)
    return SplitTraffic(
        data=step_traffic(
            unit_sizes(shape, batch.tensor_parallel),
            setup.strategy,
            setup.ranks,
            setup.precision,
            setup.micro_batches,
        ),
        tensor=Traffic(setup.micro_batches * each.bytes, setup.micro_batches * each.messages),
    )
