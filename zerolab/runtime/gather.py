"""Listening to all ranks at once until each has answered, failed, died, or run out of time."""

import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any

from zerolab.runtime import shipping
from zerolab.runtime.failure import Failure, death, failed, late

OnReport = Callable[[int, Any], None] | None

GRACE = 0.4  # seconds after a failure in which other ranks may fail too, or finish
ANSWERING = 0.2  # seconds in which a rank can say where it is, unless its main thread holds the GIL
LIVE_PERIOD = 0.1  # seconds between two looks at what ranks print, when it is shown live


@dataclass(frozen=True)
class Member:
    """A rank as the caller sees it."""

    rank: int
    process: BaseProcess
    pipe: Connection

    def tell(self, message: bytes) -> None:
        """Send a pickled message, unless the rank has ended: its process then says why."""
        with suppress(OSError):
            self.pipe.send_bytes(message)

    def has_ended(self) -> bool:
        """Whether the rank is dead, asked between two runs.

        Its pipe ends with it, at once. Its exit code takes a moment: the fork server passes it on.
        """
        try:
            while self.pipe.poll():
                self.pipe.recv_bytes()  # from a thread that outlived its run
        except (EOFError, OSError):
            self.process.join()
        return self.process.exitcode is not None


class Gathering:
    """One run's answers, as they come in."""

    def __init__(self, members: Sequence[Member], run: int, on_report: OnReport) -> None:
        self._run = run
        self._on_report = on_report
        self._pending = {member.rank: member for member in members}
        self._silent: set[int] = set()  # still pending, but their pipe has ended
        self._results: dict[int, bytes] = {}
        self._failures: list[Failure] = []  # in order of arrival
        self._doings: dict[int, str] = {}  # where pending ranks say they are

    def wait(self, timeout: float | None, show: Callable[[], None] | None) -> list[bytes]:
        """The pickled results, by rank. Meanwhile calls `show`, if any, every now and then.

        Raises RankError if a rank failed, RankTimeout if not all answered in `timeout` seconds.
        """
        deadline = inf if timeout is None else monotonic() + timeout
        self._listen(deadline, show, until=lambda: bool(self._failures))
        if not self._pending and not self._failures:
            return [self._results[rank] for rank in sorted(self._results)]

        if self._failures:
            self._listen(monotonic() + GRACE, show, until=lambda: False)
        question = pickle.dumps((self._run, "where", None))
        for member in self._pending.values():
            member.tell(question)
        self._listen(monotonic() + ANSWERING, show, until=self._all_located)
        if self._failures:
            raise failed(self._failures, self._others())
        assert timeout is not None  # without one, listening ends by answers or failures
        raise late(timeout, self._others())

    def _listen(
        self, deadline: float, show: Callable[[], None] | None, until: Callable[[], bool]
    ) -> None:
        """Take in messages until nobody is pending, the deadline has come, or `until` is true."""
        while self._pending and not until():
            left = max(0.0, deadline - monotonic())
            period = min(left, LIVE_PERIOD if show else inf)
            members = list(self._pending.values())
            speaking = {m.pipe: m for m in members if m.rank not in self._silent}
            ending = {m.process.sentinel: m for m in members}
            ready = wait([*speaking, *ending], None if period == inf else period)
            # What a rank still had to say counts before its end does.
            heard = [speaking[source] for source in ready if source in speaking]
            for member in heard:
                self._hear(member)
            for source in ready:
                if source in ending and ending[source] not in heard:
                    self._bury(ending[source])
            if show:
                show()
            if not ready and left == 0.0:
                return

    def _hear(self, member: Member) -> None:
        try:
            run, kind, content = member.pipe.recv()
        except (EOFError, OSError):
            self._silent.add(member.rank)
            return
        if run != self._run:
            return  # from a thread that outlived its run
        if kind == "report":
            if self._on_report is not None:
                self._on_report(member.rank, shipping.unpack(content))
        elif kind == "where":
            self._doings[member.rank] = content
        else:
            del self._pending[member.rank]
            if kind == "result":
                self._results[member.rank] = content
            else:
                self._failures.append(_raised(member.rank, content))

    def _bury(self, member: Member) -> None:
        if member.rank in self._pending:
            del self._pending[member.rank]
            member.process.join()
            self._failures.append(death(member.rank, member.process.exitcode))

    def _all_located(self) -> bool:
        return self._pending.keys() <= self._doings.keys()

    def _others(self) -> dict[int, str]:
        """What each rank was doing that did not fail."""
        doings = {rank: self._doings.get(rank, "no answer") for rank in self._pending}
        return {**dict.fromkeys(self._results, "finished"), **doings}


def _raised(rank: int, told: dict[str, Any]) -> Failure:
    """The failure of a rank whose function raised; `told` as the rank describes it."""
    try:
        cause = shipping.unpack(told.pop("cause"))
    except Exception:  # it could not be pickled there, or cannot be made again here
        cause = None
    return Failure(rank, cause=cause, **told)
