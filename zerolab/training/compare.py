"""The comparison: one model, one text, one seed, trained by each strategy in turn."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from zerolab import accounting
from zerolab.accounting import ModelStates
from zerolab.runtime.world import World
from zerolab.training.corpus import Corpus
from zerolab.training.train import Settings, train

OnStep = Callable[[str, int, float], None]  # strategy, step from 0, loss


@dataclass(frozen=True)
class Row:
    """What one strategy cost, beside what the formulas predict: bytes on the fullest rank, seconds.

    The names are those of `zerolab compare --json`.
    """

    strategy: str
    ranks: int
    precision: str
    parameter_count: int
    padding: int  # elements that make every unit divide by the ranks, all units together
    persistent: ModelStates  # measured when backward has ended
    predicted: ModelStates
    peak: int  # most live bytes at once within a step
    wire_bytes: int | None  # a rank and step, counted by the kernel; None where it has no counter
    ledger_wire_bytes: int  # the same, counted by our collectives
    predicted_wire_bytes: int
    loss: float  # of the last step, the mean of all ranks, nats a byte
    held_out_loss: float
    unigram_entropy: float  # of the held-out text: what a model without context cannot beat
    step_seconds: float  # median, on the slowest rank

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def compare(
    world: World,
    strategies: Sequence[str],
    settings: Settings,
    corpus: Corpus,
    on_step: OnStep | None = None,
) -> list[Row]:
    """Train with each strategy on the same ranks. Steps are reported as they happen."""
    rows = []
    for strategy in strategies:
        rows.append(measure(world, replace(settings, strategy=strategy), corpus, on_step))
    return rows


def measure(world: World, settings: Settings, corpus: Corpus, on_step: OnStep | None = None) -> Row:
    """Train once, and put what was measured beside what was predicted."""
    losses: dict[int, list[float]] = defaultdict(list)  # by step, of the ranks that have reported

    def on_report(_: int, value: tuple[int, float]) -> None:
        step, loss = value
        losses[step].append(loss)
        if on_step is not None and len(losses[step]) == world.ranks:
            on_step(settings.strategy, step, fmean(losses[step]))

    runs = world.run(train, settings, corpus, timeout=None, on_report=on_report)
    costs, units = [run.cost for run in runs], runs[0].unit_sizes
    crossed = costs[0].loopback_bytes
    formula = (units, settings.strategy, world.ranks, settings.precision)
    return Row(
        strategy=settings.strategy,
        ranks=world.ranks,
        precision=settings.precision,
        parameter_count=settings.shape.parameters,
        padding=accounting.padding(units, world.ranks),
        persistent=max((cost.persistent for cost in costs), key=lambda states: states.total),
        predicted=accounting.persistent_states(*formula),
        peak=max(cost.peak for cost in costs),
        wire_bytes=None if crossed is None else round(crossed / world.ranks),
        ledger_wire_bytes=round(max(cost.ledger_bytes for cost in costs)),
        predicted_wire_bytes=accounting.unit_wire_bytes(*formula),
        loss=runs[0].losses[-1],
        held_out_loss=runs[0].held_out_loss,
        unigram_entropy=corpus.unigram_entropy,
        step_seconds=max(cost.step_seconds for cost in costs),
    )
