"""The ledger: every collective that this process took part in, with its bytes.

The ledger counts what the algorithm sends (logical bytes of payload); `wire` counts what really
crossed the loopback interface. Holding the one against the other is how this project knows that a
collective costs what the textbook says.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter


@dataclass
class Event:
    """One collective on this rank. Times are `time.perf_counter` seconds."""

    operation: str  # "all-gather", "reduce-scatter", ...
    label: str  # what it was for, e.g. "blocks.3"
    bytes: int  # payload bytes that this rank sent
    messages: int  # point-to-point messages that this rank sent
    start: float
    end: float = 0.0


class Ledger:
    """All events of this process, in order, and where it is now."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.position: str | None = None  # "all-gather of blocks.3" while inside a collective
        self.waited = 0.0  # seconds that who computes stood still for collectives

    @contextmanager
    def entry(self, operation: str, label: str, bytes: int, messages: int) -> Iterator[Event]:
        """Record one collective around its transfer."""
        event = Event(operation, label, bytes, messages, perf_counter())
        self.events.append(event)
        self.position = f"{operation} of {label}" if label else operation
        # No `finally`: after a failure the position stays, so that a report can name it.
        yield event
        event.end = perf_counter()
        self.position = None

    def bytes(self, operation: str | None = None) -> int:
        """Bytes that this rank sent, in all or by one operation."""
        return sum(e.bytes for e in self.events if operation in (None, e.operation))

    def messages(self) -> int:
        """Point-to-point messages that this rank sent."""
        return sum(e.messages for e in self.events)

    def seconds(self) -> float:
        """How long the complete collectives took, hidden behind computation or not."""
        return sum(e.end - e.start for e in self.events if e.end)

    def clear(self) -> None:
        self.events.clear()
        self.waited = 0.0


ledger = Ledger()
