"""Bytes of training state that each rank keeps: parameters, gradients, optimizer.

Two counts of the same thing. `model_states` is the textbook's: one flat tensor of all parameters,
cut into `ranks` shards. `persistent_states` is what the engine of this project holds, to the byte.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from zerolab.accounting.precision import Precision, precision_policy
from zerolab.accounting.quantities import MOST_PARAMETERS, MOST_RANKS, check_whole
from zerolab.accounting.strategies import sharding

STEP_COUNTER = 4  # bytes: torch's AdamW counts its steps in one fp32 number for each tensor


@dataclass(frozen=True)
class ModelStates:
    """Bytes on one rank."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Bytes of all three."""
        return self.parameters + self.gradients + self.optimizer

    def as_dict(self) -> dict[str, int]:
        """The three states and their total, as the command line's JSON has them."""
        return {**asdict(self), "total": self.total}


def model_states(
    parameters: int, strategy: str, ranks: int, precision: str | Precision
) -> ModelStates:
    """The textbook's bytes on the fullest rank; a shard is ceil(parameters / ranks) elements.

    Source: arXiv 1910.02054, section 5, Table 1 and Figure 1.
    """
    check_whole("--params", parameters, 1, MOST_PARAMETERS)
    check_whole("--ranks", ranks, 1, MOST_RANKS)
    return _states(parameters, -(-parameters // ranks), strategy, precision_policy(precision))


def persistent_states(
    unit_sizes: Sequence[int], strategy: str, ranks: int, precision: str | Precision
) -> ModelStates:
    """The bytes that our engine keeps on every rank between backward and the optimizer's step.

    Each unit is a flat tensor, padded to a multiple of `ranks` so that all shards are equal; a
    unit that is kept whole keeps its padding too. The optimizer has one shard of each unit, and
    for it `STEP_COUNTER` bytes.

    unit_sizes: elements of each unit, before padding.
    """
    padded = sum(padded_sizes(unit_sizes, ranks))
    states = _states(padded, padded // ranks, strategy, precision_policy(precision))
    counters = STEP_COUNTER * len(unit_sizes)
    return ModelStates(states.parameters, states.gradients, states.optimizer + counters)


def padding(unit_sizes: Sequence[int], ranks: int) -> int:
    """Elements that padding adds: less than `ranks` for each unit."""
    return sum(padded_sizes(unit_sizes, ranks)) - sum(unit_sizes)


def padded_sizes(unit_sizes: Sequence[int], ranks: int) -> Iterator[int]:
    """Each unit's elements, rounded up to a multiple of `ranks`."""
    check_whole("--ranks", ranks, 1, MOST_RANKS)
    return (-(-size // ranks) * ranks for size in unit_sizes)


def largest_model(capacity: int, strategy: str, ranks: int, precision: str | Precision) -> int:
    """The most parameters whose states fit into `capacity` bytes a rank; 0 where none do.

    Model states only: no activations, buffers or fragmentation. Source: arXiv 1910.02054, Table 2,
    which multiplies this by the degree of model parallelism.
    """
    check_whole("--capacity", capacity, 0, 10**18)
    sizes = range(1, MOST_PARAMETERS + 1)
    return bisect_right(
        sizes, capacity, key=lambda size: model_states(size, strategy, ranks, precision).total
    )


def _states(whole: int, shard: int, strategy: str, policy: Precision) -> ModelStates:
    kept = sharding(strategy)
    elements = {"whole": whole, "shard": shard}
    return ModelStates(
        parameters=policy.parameter * elements[kept.parameters],
        gradients=policy.gradient * elements[kept.gradients],
        optimizer=policy.optimizer * elements[kept.optimizer],
    )
