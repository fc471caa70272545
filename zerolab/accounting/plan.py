"""Which strategy fits and is fastest, and why the next one lost.

Every strategy × degree of tensor parallelism × micro-batch × recomputation is a candidate. What
does not fit is out; of the rest the shortest predicted step wins. All of it is a prediction: the
peak of `moments`, the upper end of what lies `beside` it, and the walk of `step_time`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from zerolab.accounting.activations import Batch, Keeping
from zerolab.accounting.beside import beside
from zerolab.accounting.errors import InputError
from zerolab.accounting.gpus import GPU, GPUS
from zerolab.accounting.links import Link
from zerolab.accounting.models import Shape
from zerolab.accounting.moments import Moment, Setup, peak
from zerolab.accounting.precision import Precision, precision_policy
from zerolab.accounting.quantities import MOST_RANKS, check_whole, decimal_bytes, gibibytes
from zerolab.accounting.step_time import StepTime, step_time
from zerolab.accounting.strategies import STRATEGIES
from zerolab.accounting.tensor_parallel import splits

# No "selective": where attention never stores its scores it saves next to nothing.
RECOMPUTATIONS: tuple[Literal["none", "full"], ...] = ("none", "full")
MACHINE = 8  # GPUs in one, where nothing is said
# Of a step, for each rank of data parallelism: every micro-batch is walked through. Llama 2 was
# trained with as many in all, 4 million tokens a step.
MOST_SEQUENCES = 1024
MOST_GPUS_TO_SUGGEST = 65_536
SHORTEST_SEQUENCE_TO_SUGGEST = 128


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
        """Whether the GPU has what is needed, overhead at its upper end."""
        return self.needed <= self.memory

    @property
    def kind(self) -> tuple[str, int]:
        """What tells it from its rivals: the strategy, and the degree of tensor parallelism."""
        return self.setup.strategy, self.setup.batch.tensor_parallel

    def as_dict(self) -> dict[str, object]:
        """Bytes as integers, times in seconds, as the command line's JSON and CSV have them."""
        setup = self.setup
        return {
            "strategy": setup.strategy,
            "data_parallel": setup.ranks,
            "tensor_parallel": setup.batch.tensor_parallel,
            "micro_batch": setup.batch.size,
            "micro_batches": setup.micro_batches,
            "recomputation": setup.keeping.recompute,
            "fits": self.fits,
            "needed": self.needed,
            "memory": self.memory,
            "peak": self.peak.total,
            "peak_moment": self.peak.name,
            "step_seconds": self.time.total,
            "compute_seconds": self.time.compute,
            "exposed_seconds": self.time.exposed,
            "tensor_parallel_seconds": self.time.tensor_parallel,
        }

    @property
    def name(self) -> str:
        """In words: strategy, degree, micro-batch, recomputation."""
        setup = self.setup
        recompute = {"none": "no recomputation", "full": "full recomputation"}
        split = f", tensor parallel {self.kind[1]}" if self.kind[1] > 1 else ""
        return (
            f"{setup.strategy}{split}, micro-batch {setup.batch.size}, "
            f"{recompute[setup.keeping.recompute]}"
        )


@dataclass(frozen=True)
class Plan:
    """The candidates, those that fit first and by time; the others by how much they lack.

    border: bytes a second of the data-parallel link below which ZeRO-2 is faster than ZeRO-3, in
    the first candidate's set-up; None where no bandwidth changes their order.
    """

    candidates: list[Candidate]
    advice: str  # one sentence
    border: float | None

    @property
    def best(self) -> Candidate | None:
        """The fastest that fits."""
        return self.candidates[0] if self.candidates[0].fits else None

    @property
    def runner_up(self) -> Candidate | None:
        """The fastest that fits, of another kind than the best."""
        return next((c for c in self.best_of_each[1:] if c.fits), None)

    @property
    def best_of_each(self) -> list[Candidate]:
        """The first candidate of each kind."""
        first: dict[tuple[str, int], Candidate] = {}
        for candidate in self.candidates:
            first.setdefault(candidate.kind, candidate)
        return list(first.values())


def plan(
    shape: Shape,
    gpu: GPU,
    gpus: int,
    link: Link,
    global_batch: int | None = None,
    sequence: int = 4096,
    precision: str | Precision = "mixed",
    machine: int = MACHINE,
    machine_link: Link | None = None,
) -> Plan:
    """Compare all candidates for one step over `global_batch` sequences; default: 4 a GPU.

    link: what each GPU has for its data-parallel ring; a ring is paced by its slowest link.
    machine: GPUs in one machine, where tensor parallelism stays, over `machine_link`; the same link
    where None. A job that fits into one machine uses `machine_link` for both.

    Raises InputError where the batch does not divide by the data-parallel ranks of any candidate,
    or is more than 1,024 sequences for each of the fewest.
    """
    check_whole("--gpus", gpus, 1, MOST_RANKS)
    check_whole("--machine", machine, 1, MOST_RANKS)
    batch = 4 * gpus if global_batch is None else global_batch
    degrees = _degrees(shape, gpus, machine)
    fewest = gpus // degrees[-1]  # data-parallel ranks
    check_whole("--batch", batch, 1, MOST_SEQUENCES * fewest)
    if batch % fewest:
        divisor = f"a multiple of {fewest}"
        split = f", in groups of at most {degrees[-1]}" if degrees[-1] > 1 else ""
        raise InputError("--batch", batch, f"{divisor}: of the {gpus} GPUs{split}")
    data_link = machine_link if machine_link and gpus <= machine else link
    tensor_link = machine_link or link
    found = [
        _candidate(setup, gpu, data_link, tensor_link)
        for degree in degrees
        if batch % (gpus // degree) == 0
        for setup in _setups(
            shape, gpus // degree, batch // (gpus // degree), sequence, precision, degree
        )
    ]
    # Of two that take as long, the one that needs less memory.
    fitting = sorted(
        (c for c in found if c.fits), key=lambda c: (float(f"{c.time.total:.6g}"), c.needed)
    )
    lacking = sorted((c for c in found if not c.fits), key=lambda c: c.needed)
    first = [*fitting, *lacking][0]
    return Plan(
        [*fitting, *lacking],
        _why(fitting) if fitting else _what_would_help(first, gpu),
        crossover(first.setup, gpu, data_link.latency, tensor_link),
    )


def _degrees(shape: Shape, gpus: int, machine: int) -> list[int]:
    """Degrees of tensor parallelism: powers of two that divide the GPUs and the model's heads."""
    powers = (2**power for power in range(min(gpus, machine).bit_length()))
    return [degree for degree in powers if gpus % degree == 0 and splits(shape, degree)]


def _setups(
    shape: Shape,
    ranks: int,
    sequences: int,
    sequence: int,
    precision: str | Precision,
    degree: int,
) -> Iterator[Setup]:
    """Every way to compute `sequences` sequences on each data-parallel rank."""
    sizes = [size for size in range(1, min(sequences, 64) + 1) if sequences % size == 0]
    for strategy in STRATEGIES if ranks > 1 else ("ddp",):  # one rank has nothing to shard with
        for recompute in RECOMPUTATIONS:
            for size in sizes:
                yield Setup(
                    shape=shape,
                    strategy=strategy,
                    ranks=ranks,
                    precision=precision,
                    batch=Batch(
                        size=size,
                        sequence=sequence,
                        element=precision_policy(precision).parameter,
                        tensor_parallel=degree,
                        sequence_parallel=degree > 1,  # costs no bytes more, and saves memory
                    ),
                    keeping=Keeping(recompute=recompute),
                    micro_batches=sequences // size,
                )


def _candidate(setup: Setup, gpu: GPU, link: Link, tensor_link: Link) -> Candidate:
    tightest = peak(setup)
    time = step_time(setup, gpu, link, tensor_link)
    return Candidate(setup, tightest, _needed(tightest, setup), gpu.memory, time)


def _needed(tightest: Moment, setup: Setup) -> int:
    return tightest.total + sum(a.high for a in beside(tightest.total, setup.devices))


def _why(fitting: list[Candidate]) -> str:
    """What the best has over the fastest of another kind."""
    best = fitting[0]
    other = next((c for c in fitting if c.kind != best.kind), None)
    if other is None:
        return f"{best.name}: nothing else fits."
    longer = other.time.total / best.time.total - 1
    lost = {
        "waiting for data parallelism": other.time.exposed - best.time.exposed,
        "waiting for tensor parallelism": other.time.tensor_parallel - best.time.tensor_parallel,
        "arithmetic": other.time.compute - best.time.compute,
    }
    reason = max(lost, key=lambda cause: lost[cause])
    if longer < 0.005:
        return f"{best.name}; {other.name} takes as long within 0.5 %."
    return f"{best.name}; {other.name} takes {longer:.0%} longer, by more {reason}."


def _what_would_help(nearest: Candidate, gpu: GPU) -> str:
    """By how much nothing fits, and each single change with which some strategy would."""
    lacks = nearest.needed - gpu.memory
    short = f"nothing fits: {nearest.name} lacks {decimal_bytes(lacks)} ({gibibytes(lacks)}) a GPU"
    setup = nearest.setup

    def fits(memory: int = gpu.memory, **changes: Any) -> bool:
        changed = (replace(setup, strategy=strategy, **changes) for strategy in STRATEGIES)
        return any(_needed(peak(other), other) <= memory for other in changed)

    helps = []
    ranks = setup.ranks
    while ranks < MOST_GPUS_TO_SUGGEST and not fits(ranks=ranks):
        ranks *= 2
    if fits(ranks=ranks):
        helps.append(f"on {ranks * setup.batch.tensor_parallel:,} of them")
    larger = [other for other in GPUS.values() if fits(other.memory)]
    if larger:
        smallest = min(larger, key=lambda other: other.memory)
        helps.append(f"on {setup.devices:,} {smallest.name}")
    shorter = setup.batch
    while shorter.sequence > SHORTEST_SEQUENCE_TO_SUGGEST and not fits(batch=shorter):
        shorter = replace(shorter, sequence=shorter.sequence // 2)
    if fits(batch=shorter):
        helps.append(f"with sequences of {shorter.sequence:,} tokens")
    if fits(keeping=replace(setup.keeping, loss="chunked")):
        helps.append("with the loss computed in chunks")
    if not helps:
        return f"{short}; neither more of them, nor larger ones, nor shorter sequences would do."
    return f"{short}; it would fit {', or '.join(helps)}."


def crossover(
    setup: Setup, gpu: GPU, latency: float, tensor_link: Link | None = None
) -> float | None:
    """The bandwidth, in bytes a second, below which ZeRO-2's step is shorter than ZeRO-3's.

    ZeRO-3 sends half as much again, but hides more of it: the gather of each unit runs beside
    compute, while what ZeRO-2 publishes after the optimizer's step has nothing beside it. None
    where one of them is shorter from 1 MB/s to 10 TB/s.

    The bandwidth is that of the data-parallel link; `tensor_link` stays as it is.
    """

    def lead(bandwidth: float) -> float:
        wire = Link("any", latency, bandwidth, "searched")
        second, third = (
            step_time(replace(setup, strategy=strategy), gpu, wire, tensor_link).total
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
