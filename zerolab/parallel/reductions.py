"""Reducing gradients while backward goes on, in the order they were complete.

Where gradients are sharded, a whole one is to be released before the next is reduced, or more than
one would be alive: backward waits for it. Where they stay whole anyway, the next is queued behind
it, so that communication does not pause where backward is late, nor backward where communication
is. All ranks queue in the same order, whatever has arrived: else each could wait for another.
"""

from collections import deque
from collections.abc import Callable

from zerolab.parallel.flat import FlatUnit
from zerolab.runtime.collectives import Work


class Reductions:
    """The units that are being reduced.

    reduce: starts to sum a unit's gradient over the ranks.
    reduced: called with the unit when that is complete.
    at_once: how many units may be under way; 0 waits for each before `start` returns.
    """

    def __init__(
        self,
        reduce: Callable[[FlatUnit], Work],
        reduced: Callable[[FlatUnit], None],
        at_once: int,
    ) -> None:
        self._reduce, self._reduced = reduce, reduced
        self._at_once = at_once
        self._under_way: deque[tuple[FlatUnit, Work]] = deque()

    def __contains__(self, unit: FlatUnit) -> bool:
        return any(unit is other for other, _ in self._under_way)

    def start(self, unit: FlatUnit) -> None:
        """Reduce a unit's gradient, after those that were started before."""
        self._wait_until_left(max(0, self._at_once - 1))
        self._under_way.append((unit, self._reduce(unit)))
        self._wait_until_left(self._at_once)

    def finish(self) -> None:
        """Return when all are reduced."""
        self._wait_until_left(0)

    def _wait_until_left(self, count: int) -> None:
        while len(self._under_way) > count:
            unit, work = self._under_way.popleft()
            work.wait()
            self._reduced(unit)
