"""The ledger: every collective that this process took part in, with its bytes.

The ledger counts what the algorithm sends (logical bytes of payload); `wire` counts what really
crossed the loopback interface. Holding the one against the other is how this project knows that a
collective costs what the textbook says.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

MOST_EVENTS = 100_000  # kept, so that a long training does not fill the memory: some 20 MB


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
    """What this process has sent so far, and where it is now."""

    def __init__(self) -> None:
        self.events: list[Event] = []  # in order; after MOST_EVENTS the oldest are dropped
        self.position: str | None = None  # "all-gather of blocks.3" while inside a collective
        self.clear()

    @contextmanager
    def entry(self, operation: str, label: str, bytes: int, messages: int) -> Iterator[Event]:
        """Record one collective around its transfer."""
        event = Event(operation, label, bytes, messages, perf_counter())
        self._record(event)
        self.position = f"{operation} of {label}" if label else operation
        # No `finally`: after a failure the position stays, so that a report can name it.
        yield event
        event.end = perf_counter()
        self._seconds += event.end - event.start
        self.position = None

    def bytes(self, operation: str | None = None) -> int:
        """Bytes that this rank sent, in all or by one operation."""
        return self._bytes.total() if operation is None else self._bytes[operation]

    def messages(self) -> int:
        """Point-to-point messages that this rank sent."""
        return self._messages

    def seconds(self) -> float:
        """How long the complete collectives took, hidden behind computation or not."""
        return self._seconds

    def clear(self) -> None:
        """Forget all events, and count from zero."""
        self.events.clear()
        self._bytes = Counter[str]()  # by operation
        self._messages = 0
        self._seconds = 0.0
        self.waited = 0.0  # seconds that who computes stood still for collectives

    def _record(self, event: Event) -> None:
        if len(self.events) == MOST_EVENTS:
            del self.events[: MOST_EVENTS // 2]  # half at once, because the others move up
        self.events.append(event)
        self._bytes[event.operation] += event.bytes
        self._messages += event.messages


ledger = Ledger()
