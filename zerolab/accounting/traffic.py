"""Bytes that each rank sends in one optimizer step.

A ring all-gather or reduce-scatter of a tensor cut into N shards sends N-1 of them from each rank:
(N-1)/N of the tensor, here called one pass. An all-reduce is one of each, so two passes.
Source: arXiv 1910.02054, section 7.
"""

from collections.abc import Sequence
from typing import NamedTuple

from zerolab.accounting.memory import padded_sizes
from zerolab.accounting.precision import Precision, precision_policy
from zerolab.accounting.quantities import MOST_PARAMETERS, check_whole
from zerolab.accounting.strategies import sharding


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
    sharding(strategy)  # for its error
    passes, policy = PASSES[strategy], precision_policy(precision)
    sent = sum(padded_sizes(unit_sizes, ranks)) // ranks * (ranks - 1)  # elements of one pass
    return sent * (passes.gradients * policy.gradient + passes.parameters * policy.parameter)
