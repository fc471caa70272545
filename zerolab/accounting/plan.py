"""Which strategy fits and is fastest, and why the next one lost.

Every strategy × micro-batch × recomputation is a candidate. What does not fit is out; of the rest
the shortest predicted step wins. All of it is a prediction: the peak of `moments`, the upper end of
what lies `beside` it, and the walk of `step_time`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from zerolab.accounting.activations import Batch, Keeping
from zerolab.accounting.beside import beside
from zerolab.accounting.errors import InputError
from zerolab.accounting.gpus import GPU
from zerolab.accounting.links import Link
from zerolab.accounting.models import Shape
from zerolab.accounting.moments import Moment, Setup, peak
from zerolab.accounting.precision import Precision
from zerolab.accounting.quantities import MOST_RANKS, check_whole, gibibytes
from zerolab.accounting.step_time import StepTime, step_time
from zerolab.accounting.strategies import STRATEGIES

RECOMPUTATIONS: tuple[Literal["none", "full"], ...] = ("none", "full")
MOST_GPUS_TO_SUGGEST = 65_536


@dataclass(frozen=True)
class Candidate:
    """One way to run the job, with its predicted memory and time."""

    setup: Setup
    peak: Moment
    needed: int  # bytes: the peak and the upper end of what lies beside it
    memory: int  # bytes: the GPU's
    time: StepTime

    @property
    def fits(self) -> bool:
        return self.needed <= self.memory

    def as_dict(self) -> dict[str, object]:
        """Bytes as integers, times in seconds, as the command line's JSON has them."""
        setup = self.setup
        return {
            "strategy": setup.strategy,
            "micro_batch": setup.batch.size,
            "recomputation": setup.keeping.recompute,
            "fits": self.fits,
            "needed": self.needed,
            "memory": self.memory,
            "peak": self.peak.total,
            "peak_moment": self.peak.name,
            "step_seconds": self.time.total,
            "compute_seconds": self.time.compute,
            "exposed_seconds": self.time.exposed,
        }

    @property
    def name(self) -> str:
        setup = self.setup
        recompute = {"none": "no recomputation", "full": "full recomputation"}
        return (
            f"{setup.strategy}, micro-batch {setup.batch.size}, "
            f"{recompute[setup.keeping.recompute]}"
        )


@dataclass(frozen=True)
class Plan:
    """The candidates, those that fit first and by time; the others by how much they lack."""

    candidates: list[Candidate]
    advice: str  # one sentence

    @property
    def best(self) -> Candidate | None:
        return self.candidates[0] if self.candidates[0].fits else None

    @property
    def runner_up(self) -> Candidate | None:
        """The fastest that fits, of another strategy than the best."""
        if self.best is None:
            return None
        others = (c for c in self.candidates if c.setup.strategy != self.best.setup.strategy)
        return next((c for c in others if c.fits), None)


def plan(
    shape: Shape,
    gpu: GPU,
    gpus: int,
    link: Link,
    global_batch: int | None = None,
    sequence: int = 4096,
    precision: str | Precision = "mixed",
) -> Plan:
    """Compare all candidates for one step over `global_batch` sequences; default: 4 a GPU.

    Data parallelism over all `gpus`, each with a `link` of its own. Raises InputError where the
    batch does not divide by the GPUs.
    """
    check_whole("--gpus", gpus, 1, MOST_RANKS)
    batch = 4 * gpus if global_batch is None else global_batch
    check_whole("--batch", batch, 1, 10**9)
    if batch % gpus:
        raise InputError("--batch", batch, f"a multiple of the {gpus} GPUs")
    found = list(_candidates(shape, gpu, gpus, link, batch // gpus, sequence, precision))
    # Of two that take as long, the one that needs less memory.
    fitting = sorted(
        (c for c in found if c.fits), key=lambda c: (float(f"{c.time.total:.6g}"), c.needed)
    )
    lacking = sorted((c for c in found if not c.fits), key=lambda c: c.needed)
    advice = _why(fitting) if fitting else _what_would_help(lacking[0], shape, gpu)
    return Plan([*fitting, *lacking], advice)


def _candidates(
    shape: Shape,
    gpu: GPU,
    gpus: int,
    link: Link,
    sequences: int,
    sequence: int,
    precision: str | Precision,
) -> Iterator[Candidate]:
    """Every way to compute `sequences` sequences on each GPU."""
    sizes = [size for size in range(1, min(sequences, 64) + 1) if sequences % size == 0]
    for strategy in STRATEGIES:
        for recompute in RECOMPUTATIONS:
            for size in sizes:
                setup = Setup(
                    shape=shape,
                    strategy=strategy,
                    ranks=gpus,
                    precision=precision,
                    batch=Batch(size=size, sequence=sequence),
                    keeping=Keeping(recompute=recompute),
                    micro_batches=sequences // size,
                )
                yield _candidate(setup, gpu, link)


def _candidate(setup: Setup, gpu: GPU, link: Link) -> Candidate:
    tightest = peak(setup)
    needed = tightest.total + sum(a.high for a in beside(tightest.total, setup.ranks))
    return Candidate(setup, tightest, needed, gpu.memory, step_time(setup, gpu, link))


def _why(fitting: list[Candidate]) -> str:
    """What the best has over the fastest of another strategy."""
    best = fitting[0]
    other = next((c for c in fitting if c.setup.strategy != best.setup.strategy), None)
    if other is None:
        return f"{best.name}: no other strategy fits."
    longer = other.time.total / best.time.total - 1
    lost = {
        "waiting for communication": other.time.exposed - best.time.exposed,
        "arithmetic": other.time.compute - best.time.compute,
    }
    reason = max(lost, key=lambda cause: lost[cause])
    if longer < 0.005:
        return f"{best.name}; {other.name} takes as long within 0.5 %."
    return f"{best.name}; {other.name} takes {longer:.0%} longer, by more {reason}."


def _what_would_help(nearest: Candidate, shape: Shape, gpu: GPU) -> str:
    """By how much nothing fits, and the fewest GPUs with which the nearest would."""
    short = f"nothing fits: {nearest.name} lacks {gibibytes(nearest.needed - nearest.memory)}"
    setup = nearest.setup
    ranks = setup.ranks
    while ranks < MOST_GPUS_TO_SUGGEST:
        ranks *= 2
        more = replace(setup, ranks=ranks)
        needed = peak(more).total
        needed += sum(a.high for a in beside(needed, ranks))
        if needed <= gpu.memory:
            return f"{short} a GPU; it would fit on {ranks} of them."
    return f"{short} a GPU; no number of them would do: cut the sequence or use tensor parallelism."


def crossover(setup: Setup, gpu: GPU, latency: float) -> float | None:
    """The bandwidth, in bytes a second, below which ZeRO-2's step is shorter than ZeRO-3's.

    ZeRO-3 sends half as much again, but hides more of it: the gather of each unit runs beside
    compute, while what ZeRO-2 publishes after the optimizer's step has nothing beside it. None
    where one of them is shorter from 1 MB/s to 10 TB/s.
    """

    def lead(bandwidth: float) -> float:
        wire = Link("any", latency, bandwidth, "searched")
        second, third = (
            step_time(replace(setup, strategy=strategy), gpu, wire).total
            for strategy in ("zero2", "zero3")
        )
        return third - second

    low, high = 1e6, 1e13
    if lead(low) <= 0 or lead(high) > 0:
        return None
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if lead(middle) > 0 else (low, middle)
    return high
