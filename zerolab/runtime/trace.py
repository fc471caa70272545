"""A recording of one rank's step: what it computed, sent and discarded, when, and how many bytes.

Two lanes a rank: what the main thread computes, and what the communication thread transfers. Where
the lanes overlap, communication was hidden. Whoever does something notes it, by `begin` and `end`,
`instant` or `queued`, which cost nothing while nobody records.

    with recording() as trace:
        model(tokens, targets).backward()
    json.dump(perfetto([trace.spans]), file)      # then open it at ui.perfetto.dev, or offline

With a `MemoryMeter`, as in `recording(meter)`, each span also says what was alive.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerolab.runtime.memory import MemoryMeter

COMPUTE, COMMUNICATION = "compute", "communication"


@dataclass
class Span:
    """One thing that a rank did. Times are `time.perf_counter` seconds, the same for all ranks of a
    machine; `bytes` is what it sent or discarded.

    Times differ from run to run, and the lanes race. `first` and `last` do not: they number the
    moments at which the main thread came to begin it and to end it. A transfer has one such moment,
    when it is queued.

    live: bytes alive by category, where they are metered: after computing and discarding, and with
        a transfer's buffers in place.
    """

    lane: str
    name: str  # "forward", "all-gather", "discard", ...
    label: str  # of what: a stage or a unit
    start: float
    end: float
    bytes: int = 0
    first: int = 0
    last: int = 0
    live: dict[str, int] = field(default_factory=dict)


class Trace:
    """What has been recorded on this rank."""

    def __init__(self, meter: "MemoryMeter | None" = None) -> None:
        self.spans: list[Span] = []
        self._meter = meter
        self._moments = count()
        self._open: dict[tuple[str, str], Span] = {}

    def add(self, lane: str, name: str, label: str, bytes: int = 0) -> Span:
        now, moment = perf_counter(), next(self._moments)
        span = Span(lane, name, label, now, now, bytes, moment, moment, self._live())
        self.spans.append(span)
        return span

    def begin(self, name: str, label: str) -> None:
        self._open[name, label] = self.add(COMPUTE, name, label)

    def end(self, name: str, label: str) -> None:
        if span := self._open.pop((name, label), None):
            span.end, span.last, span.live = perf_counter(), next(self._moments), self._live()

    def _live(self) -> dict[str, int]:
        return dict(self._meter.live) if self._meter is not None else {}


_active: Trace | None = None


@contextmanager
def recording(meter: "MemoryMeter | None" = None) -> Iterator[Trace]:
    """Record what this rank does within the context; its spans, in order, when the context ends.

    Transfers must have been waited for by then.
    """
    global _active
    trace = Trace(meter)
    outer, _active = _active, trace
    try:
        yield trace
    finally:
        _active = outer
        trace.spans.sort(key=lambda span: span.start)


def begin(name: str, label: str) -> None:
    """The main thread begins to compute something; `end` ends it."""
    if _active is not None:
        _active.begin(name, label)


def end(name: str, label: str) -> None:
    """What `begin` began has ended. Without a `begin` this does nothing."""
    if _active is not None:
        _active.end(name, label)


def instant(name: str, label: str, bytes: int) -> None:
    """Something has happened at once, as a unit's bytes have been discarded."""
    if _active is not None:
        _active.add(COMPUTE, name, label, bytes)


def queued(operation: str, label: str, bytes: int) -> Span | None:
    """A transfer waits for the communication thread, which sets the times of the span returned."""
    return None if _active is None else _active.add(COMMUNICATION, operation, label, bytes)


def perfetto(ranks: Sequence[Sequence[Span]]) -> dict[str, Any]:
    """The ranks' spans as a trace that Perfetto and Chrome read (JSON; times in microseconds)."""
    return {"traceEvents": trace_events(ranks), "displayTimeUnit": "ms"}


def trace_events(
    ranks: Sequence[Sequence[Span]], title: str = "rank", first_process: int = 0
) -> list[dict[str, Any]]:
    """One process a rank, its events in the order in which its main thread came to them.

    Computing is a pair of B and E, a transfer is X, what happens at once is i; C follows what it
    was metered with, wherever a category's bytes have changed.
    """
    begin_of_all = min((span.start for spans in ranks for span in spans), default=0.0)
    events: list[dict[str, Any]] = []

    def microseconds(seconds: float) -> float:
        return round((seconds - begin_of_all) * 1e6, 1)

    for process, spans in enumerate(ranks, first_process):
        name = {"name": f"{title} {process - first_process}"}
        events.append({"ph": "M", "pid": process, "name": "process_name", "args": name})
        counted: dict[str, int] = {}
        moments = sorted(
            (moment, span) for span in spans for moment in sorted({span.first, span.last})
        )
        for moment, span in moments:
            ends = moment == span.last
            event = {"pid": process, "tid": span.lane, "name": f"{span.name} {span.label}".strip()}
            if span.first != span.last:
                time = span.end if ends else span.start
                events.append({"ph": "E" if ends else "B", **event, "ts": microseconds(time)})
            elif span.lane == COMMUNICATION:
                time = span.start
                lasted = {"ts": microseconds(time), "dur": round((span.end - time) * 1e6, 1)}
                events.append({"ph": "X", **event, **lasted, "args": {"bytes": span.bytes}})
            else:
                time = span.start
                at_once = {"s": "t", "ts": microseconds(time), "args": {"bytes": span.bytes}}
                events.append({"ph": "i", **event, **at_once})
            for category, live in span.live.items() if ends else ():
                if counted.get(category) != live:
                    counted[category] = live
                    amount = {"ts": microseconds(time), "args": {"bytes": live}}
                    events.append({"ph": "C", "pid": process, "name": category, **amount})
    return events
