"""What a training run costs a rank: memory in one step, time and traffic in those after it.

Memory is metered in the second step, the first one that begins with optimizer state. The meter
slows a step by a quarter, so the metered step is not timed.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist

from zerolab.accounting import ModelStates
from zerolab.runtime.ledger import ledger
from zerolab.runtime.memory import MemoryMeter
from zerolab.runtime.wire import loopback_bytes

METERED = 1  # the index of the step whose memory is measured
FEWEST_STEPS = METERED + 2  # so that one step at least is timed


@dataclass(frozen=True)
class Cost:
    """What one rank measured. Bytes are those of one step."""

    persistent: ModelStates  # when backward has ended, before the optimizer's step
    peak: int  # most live bytes at once
    ledger_bytes: float  # payload that this rank's collectives sent
    loopback_bytes: float | None  # all ranks together, by the kernel's counter; None without one
    step_seconds: float  # the median


class Measurement:
    """Wraps the steps of a training loop. Every rank has one: it waits for the others twice.

    for ...:
        with measurement.step():
            loss.backward()
            measurement.backward_ended()
            optimizer.step()
    cost = measurement.finish()
    """

    def __init__(self) -> None:
        self._steps = 0
        self._seconds: list[float] = []
        self._meter: MemoryMeter | None = None  # while the metered step lasts

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step, from forward to zero_grad."""
        if self._steps == METERED:
            with MemoryMeter() as self._meter:
                yield
            self._peak, self._meter = self._meter.peak, None
            self._traffic = traffic()
        else:
            start = _clock()
            yield
            if self._steps > METERED:
                self._seconds.append(_clock() - start)
        self._steps += 1

    def backward_ended(self) -> None:
        """Called between backward and the optimizer's step: what is alive then is persistent."""
        if self._meter is not None:
            live = self._meter.live
            self._persistent = ModelStates(live["parameters"], live["gradients"], live["optimizer"])

    def finish(self) -> Cost:
        """Called after the last step, of FEWEST_STEPS at least."""
        timed = len(self._seconds)
        (first_sent, first_crossed), (sent, crossed) = self._traffic, traffic()
        return Cost(
            persistent=self._persistent,
            peak=self._peak,
            ledger_bytes=(sent - first_sent) / timed,
            loopback_bytes=None if crossed is None else (crossed - (first_crossed or 0)) / timed,
            step_seconds=statistics.median(self._seconds),
        )


def _clock() -> float:
    """Seconds, once a GPU, if there is one, has done what it was given."""
    if dist.get_backend() == "nccl":
        torch.cuda.synchronize()
    return perf_counter()


def traffic() -> tuple[int, int | None]:
    """This rank's ledger and the loopback counter, when all ranks have sent what they had to."""
    dist.barrier()
    # Between GPUs nothing goes over loopback, so there the counter says nothing.
    crossed = loopback_bytes() if dist.get_backend() == "gloo" else None
    dist.barrier()  # nobody sends on before everybody has read
    return ledger.bytes(), crossed
