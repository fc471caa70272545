"""Reducing gradients while backward goes on: one unit at a time, in the order they were complete.

Where gradients are sharded, a whole one is to be released before the next is reduced, or more than
one would be alive: backward waits. Where they stay whole there is nothing to release, and backward
goes on: units queue, and whenever a gradient arrives, the next one starts if the last is through.
"""

from collections import deque
from collections.abc import Callable

from zerolab.parallel.flat import FlatUnit
from zerolab.runtime.collectives import Work


class Reductions:
    """The units that are being reduced, and those that wait for it.

    reduce: starts to sum a unit's gradient over the ranks.
    reduced: called with the unit when that is complete.
    queue: whether units may wait while one is under way; otherwise `start` waits for that one.
    overlap: whether `start` may return before the unit is reduced.
    """

    def __init__(
        self,
        reduce: Callable[[FlatUnit], Work],
        reduced: Callable[[FlatUnit], None],
        queue: bool,
        overlap: bool,
    ) -> None:
        self._reduce, self._reduced = reduce, reduced
        self._queue, self._overlap = queue, overlap
        self._waiting: deque[FlatUnit] = deque()
        self._under_way: tuple[FlatUnit, Work] | None = None

    def __contains__(self, unit: FlatUnit) -> bool:
        return unit in self._waiting or (self._under_way is not None and self._under_way[0] is unit)

    def start(self, unit: FlatUnit) -> None:
        """Reduce a unit's gradient, after those that were started before."""
        if not self._queue:
            self.finish()
        self._waiting.append(unit)
        self.go_on()
        if not self._overlap:
            self.finish()

    def go_on(self) -> None:
        """Start the next unit if none is under way any more. Waits for nothing: call it often."""
        if self._under_way is not None and self._under_way[1].is_complete:
            self._end()
        if self._under_way is None and self._waiting:
            unit = self._waiting.popleft()
            self._under_way = unit, self._reduce(unit)

    def finish(self) -> None:
        """Return when all are reduced."""
        self.go_on()
        while self._under_way is not None:
            self._end()
            self.go_on()

    def _end(self) -> None:
        assert self._under_way is not None
        unit, work = self._under_way
        work.wait()
        self._under_way = None
        self._reduced(unit)
