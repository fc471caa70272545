"""Ours beside the systems themselves: time, CPU, memory and traffic of a step, as ratios.

    zerolab bench --pairs zero3/fsdp2 --ranks 2,4 --tokens 128,512

A machine's seconds say little, and change from minute to minute. So every measurement is made in
fresh processes, a pair takes turns (A B A B ...), and of all rounds the quietest counts. Memory is
metered in a run of its own, because the meter slows what it watches.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from functools import cache
from statistics import fmean, median
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zerolab.runtime import memory
from zerolab.runtime.failure import RankError
from zerolab.runtime.launch import die_with_parent
from zerolab.runtime.wire import own_loopback
from zerolab.runtime.world import World
from zerolab.training.engines import SAME_BATCH, engine
from zerolab.training.gpt import GPT, GPT_34M, GPTShape
from zerolab.training.measure import traffic

WARM_UP = 2  # steps: the first makes the optimizer's state, and learns the order of units
STEPS = 5  # timed
ROUNDS = 3

_CHILD = "from zerolab.training.bench import _measure_here; _measure_here()"


@dataclass(frozen=True)
class Figures:
    """What a step of one engine costs; or one engine's costs over another's; or bars for those."""

    step_seconds: float | None = None  # median, on the slowest rank
    cpu_seconds: float | None = None  # of all threads, mean over the ranks
    peak_bytes: float | None = None  # live at once, on the fullest rank
    wire_bytes: float | None = None  # sent by a rank; None where nothing counts them

    def over(self, other: "Figures") -> "Figures":
        """The ratios of what both have."""
        pairs = zip(asdict(self).items(), asdict(other).values(), strict=True)
        return Figures(**{name: a / b for (name, a), b in pairs if a is not None and b})


# The most that ours may cost, over the peer.
BARS = {
    ("zero3", "fsdp2"): Figures(0.8, None, 0.95, 0.76),
    ("zero2", "fsdp1-grad-op"): Figures(0.9, None, 1.0, 0.68),
    ("zero1", "torch-zero1"): Figures(0.9, None, 0.85, 0.68),
    ("ddp", "torch-ddp"): Figures(1.0, None, 0.9, 1.0),
    ("zero1", "deepspeed1"): Figures(0.75, None, 1.0, 0.68),
    ("zero2", "deepspeed2"): Figures(0.75, None, 1.0, 0.68),
    ("zero3", "deepspeed3"): Figures(0.75, None, 1.0, 1.0),
    ("tensor_parallel", "torch-tp"): Figures(1.0, None, 1.0, 1.0),
}


@dataclass(frozen=True)
class Setup:
    """One engine at one size. `tokens` are those of a rank and step, in sequences of a context."""

    engine: str
    ranks: int
    tokens: int
    shape: GPTShape = GPT_34M
    steps: int = STEPS

    def batch(self, rank: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets (B, T): any will do, the work does not depend on them."""
        draw = torch.Generator().manual_seed(0 if self.engine in SAME_BATCH else rank)
        size = (self.tokens // self.shape.context, self.shape.context + 1)
        text = torch.randint(0, self.shape.vocabulary, size, generator=draw)
        return text[:, :-1], text[:, 1:]


@dataclass(frozen=True)
class Row:
    """One pair at one size. The names are those of `zerolab bench --json`."""

    ours: str
    peer: str
    ranks: int
    tokens: int
    measured: dict[str, Figures]  # by engine
    ratio: Figures
    bar: Figures

    @property
    def missed(self) -> list[str]:
        """The figures whose ratio is above its bar, to the two decimals of the bars."""
        bars, ratios = asdict(self.bar), asdict(self.ratio)
        have = [name for name in bars if None not in (bars[name], ratios[name])]
        return [name for name in have if round(ratios[name], 2) > bars[name]]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**asdict(self), "missed": self.missed}


def bench(
    pairs: Sequence[tuple[str, str]],
    ranks: Sequence[int],
    tokens: Sequence[int],
    rounds: int = ROUNDS,
    shape: GPTShape = GPT_34M,
    steps: int = STEPS,
    on_measurement: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """A row for each pair (ours, peer) at each size, as soon as it is measured.

    tokens: of a rank and step, multiples of the shape's context.
    on_measurement: called after each of the `2 * rounds + 2` measurements of a row.
    """

    @cache
    def peak(setup: Setup) -> float:
        return _measure("peak", setup)

    for pair in pairs:
        for n in ranks:
            for count in tokens:
                setups = [Setup(name, n, count, shape, steps) for name in pair]
                timed: dict[str, list[Figures]] = {name: [] for name in pair}
                for _ in range(rounds):
                    for setup in setups:
                        timed[setup.engine].append(Figures(**_measure("time", setup)))
                        on_measurement()
                measured = {}
                for setup in setups:
                    measured[setup.engine] = _quietest(timed[setup.engine], peak(setup))
                    on_measurement()
                ratio = measured[pair[0]].over(measured[pair[1]])
                yield Row(*pair, n, count, measured, ratio, BARS.get(pair, Figures()))


def _quietest(rounds: Sequence[Figures], peak: float) -> Figures:
    """Each figure of time from the round where it was least: noise only ever adds."""

    def least(name: str) -> float | None:
        found = [getattr(figures, name) for figures in rounds]
        return None if None in found else min(found)

    return Figures(least("step_seconds"), least("cpu_seconds"), peak, least("wire_bytes"))


def _measure(what: str, setup: Setup) -> Any:
    """Measure in fresh processes, with a loopback interface of their own if the system lets us."""
    order = json.dumps({"what": what, "setup": asdict(setup)})
    command = [*own_loopback(), sys.executable, "-c", _CHILD, order]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if child.returncode:
        raise RankError(f"{setup.engine} on {setup.ranks} ranks failed; its own words stand above")
    return json.loads(child.stdout)


def _measure_here() -> None:
    """In a fresh process: obey the order on the command line, answer in JSON."""
    die_with_parent(True)
    order = json.loads(sys.argv[1])
    shape = GPTShape(**order["setup"].pop("shape"))
    setup = Setup(**order["setup"], shape=shape)
    with redirect_stdout(sys.stderr), World(setup.ranks, device="cpu", threads=1) as world:
        answers = world.run({"time": _time, "peak": _peak}[order["what"]], setup)
    print(json.dumps(max(answers) if order["what"] == "peak" else answers[0]))


def _time(rank: int, setup: Setup) -> dict[str, float | None]:
    """Time and traffic of a step, the same on every rank."""
    torch.manual_seed(0)
    step, batch = engine(setup.engine, GPT(setup.shape), lr=1e-3), setup.batch(rank)
    for _ in range(WARM_UP):
        step(*batch)
    _, crossed_before = traffic()
    cpu_before, seconds = process_time(), []
    for _ in range(setup.steps):
        start = perf_counter()
        step(*batch)
        dist.barrier()  # a step has ended when it has ended everywhere
        seconds.append(perf_counter() - start)
    cpu = (process_time() - cpu_before) / setup.steps
    _, crossed = traffic()
    by_rank: list[float] = [0.0] * setup.ranks
    dist.all_gather_object(by_rank, cpu)
    return {
        "step_seconds": median(seconds),
        "cpu_seconds": fmean(by_rank),
        "wire_bytes": None
        if crossed is None or crossed_before is None
        else (crossed - crossed_before) / setup.ranks / setup.steps,
    }


def _peak(rank: int, setup: Setup) -> int:
    """Most live bytes at once in the step after the warm-up, on this rank."""
    torch.manual_seed(0)
    with memory.MemoryMeter() as meter, _resizes_seen():
        step, batch = engine(setup.engine, GPT(setup.shape), lr=1e-3), setup.batch(rank)
        for _ in range(WARM_UP):
            step(*batch)
        meter.reset_peak()
        step(*batch)
        return meter.peak


@contextmanager
def _resizes_seen() -> Iterator[None]:
    """FSDP frees and refills its storages in place, and says so to nobody: tell the meter."""
    resize = torch.UntypedStorage.resize_

    def resize_and_tell(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        resize(storage, size)
        memory.resized(torch.empty(0, dtype=torch.uint8).set_(storage))
        return storage

    torch.UntypedStorage.resize_ = resize_and_tell  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
