"""Does it fit, and if not, what is the least that has to change?

A stage costs at most half as many bytes again on the wire; a rank costs a GPU; a precision costs
accuracy, which no formula weighs against GPUs. So there are two answers: the cheapest change that
keeps the precision and, where that one needs more ranks, the mildest that keeps the ranks.
Model states only: activations, buffers and fragmentation have to fit into what is spare.
"""

from bisect import bisect_left
from dataclasses import dataclass

from zerolab.accounting.memory import model_states
from zerolab.accounting.precision import PRECISIONS
from zerolab.accounting.quantities import MOST_RANKS
from zerolab.accounting.strategies import STRATEGIES


@dataclass(frozen=True)
class Choice:
    """What can be chosen for a model: how its states are spread, and how wide they are."""

    strategy: str
    ranks: int
    precision: str


@dataclass(frozen=True)
class Verdict:
    """Bytes to spare on a rank, negative where it does not fit, and then what would help."""

    spare: int
    keeping_precision: Choice | None = None
    keeping_ranks: Choice | None = None

    @property
    def fits(self) -> bool:
        return self.spare >= 0


def verdict(parameters: int, chosen: Choice, capacity: int) -> Verdict:
    """Hold the model states of a rank against `capacity` bytes.

    `keeping_precision` has the same or a higher stage and the same or more ranks: of all such
    choices that fit, the one with the fewest ranks, and among these with the lowest stage.
    `keeping_ranks` has the same or a higher stage and another precision: of all that fit, the one
    with the most bytes a parameter (16-bit before 32-bit), and among these with the lowest stage.
    It is left out where `keeping_precision` needs no more ranks. Either is None if nothing fits.

    Raises InputError as `model_states` does.
    """
    spare = capacity - _total(parameters, chosen)
    if spare >= 0:
        return Verdict(spare)
    stages = STRATEGIES[STRATEGIES.index(chosen.strategy) :]

    wider = [_fewest_ranks(parameters, stage, chosen, capacity) for stage in stages]
    keeping_precision = min(filter(None, wider), key=lambda choice: choice.ranks, default=None)
    if keeping_precision and keeping_precision.ranks == chosen.ranks:
        return Verdict(spare, keeping_precision)

    others = sorted(
        (policy for policy in PRECISIONS.values() if policy.name != chosen.precision),
        key=lambda policy: (-policy.total, policy.parameter),
    )
    narrower = (Choice(stage, chosen.ranks, other.name) for other in others for stage in stages)
    fitting = (choice for choice in narrower if _total(parameters, choice) <= capacity)
    return Verdict(spare, keeping_precision, next(fitting, None))


def _fewest_ranks(parameters: int, stage: str, chosen: Choice, capacity: int) -> Choice | None:
    """This stage on the fewest ranks, no fewer than chosen, that fits; None where no number does.

    More ranks never raise the total, so the ranks that fit can be found by bisection.
    """
    candidates = range(chosen.ranks, MOST_RANKS + 1)

    def on(ranks: int) -> Choice:
        return Choice(stage, ranks, chosen.precision)

    index = bisect_left(
        candidates, True, key=lambda ranks: _total(parameters, on(ranks)) <= capacity
    )
    return on(candidates[index]) if index < len(candidates) else None


def _total(parameters: int, choice: Choice) -> int:
    return model_states(parameters, choice.strategy, choice.ranks, choice.precision).total
