"""Does the peak of a step fit, and if not, what is the least that has to change?

`verdict` judges the model states, which is all that a number of parameters decides. With a shape
and a batch there is a peak to judge, and more that can be changed. In the order of what it costs: a
stage, at most half as many bytes again on the wire; a micro-batch of one sequence, more and smaller
operations for the same tokens; full recomputation, a third more arithmetic; a rank, a GPU.

What a program does not decide (`beside`) is a range. Only what fits with its upper end surely fits:
`plan` has the same rule.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from zerolab.accounting.activations import activations
from zerolab.accounting.beside import Allowance, beside
from zerolab.accounting.memory import persistent_states
from zerolab.accounting.moments import Moment, Setup, peak
from zerolab.accounting.quantities import MOST_RANKS
from zerolab.accounting.strategies import STRATEGIES
from zerolab.accounting.tensor_parallel import unit_sizes

MOST_DOUBLINGS = 10  # of the ranks, when looking for a number of them that fits


@dataclass(frozen=True)
class Fit:
    """A peak held against a GPU's memory, in bytes, and the least change where it is too large."""

    peak: Moment
    beside: list[Allowance]
    memory: int
    change: Setup | None = None  # None where nothing has to change, or no change would do

    @property
    def needed(self) -> int:
        """The peak and the upper end of what lies beside it."""
        return self.peak.total + sum(allowance.high for allowance in self.beside)

    @property
    def spare(self) -> int:
        return self.memory - self.needed

    @property
    def fits(self) -> bool:
        return self.spare >= 0

    @property
    def tight(self) -> bool:
        """The peak fits, but not with the most that may lie beside it."""
        return not self.fits and self.peak.total <= self.memory


def fit(setup: Setup, memory: int) -> Fit:
    """Hold a step's peak against `memory` bytes.

    `change` is the first of `changes` that fits.
    """
    found = _held(setup, memory)
    if found.fits:
        return found
    fitting = (other for other in changes(setup) if _fits(other, memory))
    return replace(found, change=next(fitting, None))


def changes(setup: Setup) -> Iterator[Setup]:
    """What else can be run, cheapest first: of two with as many ranks, the less recomputation; then
    the larger micro-batch; then the lower stage. A rank's sequences in a step stay as many.

    The first one is `setup` itself. Raises InputError where these sequences are more than 10^6.
    """
    stages = STRATEGIES[STRATEGIES.index(setup.strategy) :]
    numbers = (setup.ranks << doublings for doublings in range(MOST_DOUBLINGS + 1))
    for ranks in takewhile(MOST_RANKS.__ge__, numbers):
        for keeping in dict.fromkeys((setup.keeping, replace(setup.keeping, recompute="full"))):
            for size in dict.fromkeys((setup.batch.size, 1)):
                for stage in stages:
                    yield replace(
                        setup,
                        strategy=stage,
                        ranks=ranks,
                        keeping=keeping,
                        batch=replace(setup.batch, size=size),
                        micro_batches=setup.micro_batches * (setup.batch.size // size),
                    )


def _held(setup: Setup, memory: int) -> Fit:
    tightest = peak(setup)
    return Fit(tightest, beside(tightest.total, setup.devices), memory)


def _fits(setup: Setup, memory: int) -> bool:
    """Most of what is tried fails already by what surely is alive together, which is quick."""
    sizes = unit_sizes(setup.shape, setup.batch.tensor_parallel)
    states = persistent_states(sizes, setup.strategy, setup.ranks, setup.precision)
    kept = sum(activations(setup.shape, setup.batch, setup.keeping).values())
    least = max(states.total, states.parameters + states.optimizer + kept)
    return least <= memory and _held(setup, memory).fits
