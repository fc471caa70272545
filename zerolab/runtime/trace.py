"""A recording of one rank's step: what it computed, sent and discarded, when, and how many bytes.

Two lanes a rank: what the main thread computes, and what the communication thread transfers. Where
the lanes overlap, communication was hidden. Collectives come from the ledger, everything else from
who did it, by `span` and `instant`, which cost nothing while nobody records.

    with recording() as trace:
        model(tokens, targets).backward()
    json.dump(perfetto([trace.spans]), file)      # then open it at ui.perfetto.dev, or offline
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from zerolab.runtime.ledger import ledger

COMPUTE, COMMUNICATION = "compute", "communication"


@dataclass
class Span:
    """One thing that a rank did. Times are `time.perf_counter` seconds, the same for all ranks of a
    machine; `bytes` is what it sent or discarded."""

    lane: str
    name: str  # "forward", "all-gather", "discard", ...
    label: str  # of what: a stage or a unit
    start: float
    end: float
    bytes: int = 0


class Trace:
    """What has been recorded on this rank."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._open: dict[tuple[str, str], Span] = {}

    def add(self, span: Span) -> None:
        self.spans.append(span)


_active: Trace | None = None


@contextmanager
def recording() -> Iterator[Trace]:
    """Record what this rank does within the context; its spans, in order, when the context ends."""
    global _active
    trace, first = Trace(), len(ledger.events)
    outer, _active = _active, trace
    try:
        yield trace
    finally:
        _active = outer
        trace.spans += [
            Span(COMMUNICATION, e.operation, e.label, e.start, e.end, e.bytes)
            for e in ledger.events[first:]
        ]
        trace.spans.sort(key=lambda span: span.start)


def begin(name: str, label: str) -> None:
    """The main thread begins to compute something; `end` ends it."""
    if _active is not None:
        now = perf_counter()
        _active._open[name, label] = span = Span(COMPUTE, name, label, now, now)
        _active.add(span)


def end(name: str, label: str) -> None:
    """What `begin` began has ended. Without a `begin` this does nothing."""
    if _active is not None and (span := _active._open.pop((name, label), None)):
        span.end = perf_counter()


def instant(name: str, label: str, bytes: int) -> None:
    """Something happened at once, as a unit's bytes are discarded."""
    if _active is not None:
        now = perf_counter()
        _active.add(Span(COMPUTE, name, label, now, now, bytes))


def perfetto(ranks: Sequence[Sequence[Span]]) -> dict[str, Any]:
    """The ranks' spans as a trace that Perfetto and Chrome read (JSON; times in microseconds)."""
    begin_of_all = min((span.start for spans in ranks for span in spans), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, spans in enumerate(ranks):
        events.append(
            {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
        )
        for span in spans:
            events.append(
                {
                    "ph": "X",
                    "pid": rank,
                    "tid": span.lane,
                    "name": f"{span.name} {span.label}".strip(),
                    "ts": round((span.start - begin_of_all) * 1e6, 3),
                    "dur": round((span.end - span.start) * 1e6, 3),
                    "args": {"bytes": span.bytes},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
