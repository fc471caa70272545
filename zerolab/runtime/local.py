"""Ranks as processes on this machine: started, given work, ended.

Importing this module imports torch. Start the fork server first: both then import it at once.
"""

import atexit
import os
import pickle
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch.multiprocessing

from zerolab.accounting.links import Link
from zerolab.runtime import launch, shipping
from zerolab.runtime.failure import death
from zerolab.runtime.gather import Gathering, Member, OnReport
from zerolab.runtime.output import Output
from zerolab.runtime.rank import START, Assignment, main

LEAVING = 2.0  # seconds that idle ranks get to leave by themselves


class LocalRanks:
    """N warm processes. A failed run ends them all; the next run starts new ones."""

    def __init__(
        self, ranks: int, device: str, link: Link | None, timeout: float, threads: int, live: bool
    ) -> None:
        self._ranks = ranks
        self._folder = Path(tempfile.mkdtemp(prefix="zerolab-"))
        self._assignment = partial(
            Assignment,
            ranks=ranks,
            device=device,
            link=link,
            timeout=timeout,
            threads=threads,
            folder=self._folder,
        )
        self._output = Output(self._folder, ranks)
        self._show = partial(self._output.show, whole_lines=True) if live else None
        self._members: list[Member] = []
        self._run = START
        self._starts = 0
        self._closed = False
        _all.add(self)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def run(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        timeout: float | None,
        on_report: OnReport,
    ) -> list[Any]:
        """`function(rank, *arguments, **named)` on every rank; the results by rank."""
        if self._closed:
            raise RuntimeError("this World is closed: make a new one")
        parcel = shipping.pack((function, arguments, named))
        parcel.warn_if_large("world.run sends to every rank", stacklevel=3)
        self._replace_dead()
        self._run += 1
        order = (sys.path, os.getcwd(), parcel.sources, parcel.body)
        try:
            self._tell(order)
            bodies = Gathering(self._members, self._run, on_report).wait(timeout, self._show)
        except BaseException:  # a failed rank, an interrupt, an error in on_report
            self._end()
            raise
        finally:
            self._output.show()
        largest = max(range(self._ranks), key=lambda rank: len(bodies[rank]))
        received = shipping.Parcel(bodies[largest])
        received.warn_if_large(f"world.run receives from rank {largest}", stacklevel=3)
        return [shipping.unpack(body) for body in bodies]

    def close(self) -> None:
        """End the ranks, show what they printed late, and leave nothing behind."""
        if self._closed:
            return
        self._closed = True
        self._tell(None)
        until = monotonic() + LEAVING
        for member in self._members:
            member.process.join(max(0.0, until - monotonic()))
        self._end()
        self._output.show()
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self) -> None:
        """In a fork of the caller: these ranks are not ours, and must see the caller end."""
        self._closed = True
        for member in self._members:
            member.pipe.close()
        self._members.clear()

    def _start(self) -> None:
        launch.start_server()  # a no-op, unless somebody has ended it
        self._starts += 1
        self._run = START
        rendezvous = self._folder / f"rendezvous{self._starts}"
        processes: Any = torch.multiprocessing.get_context(launch.START_METHOD)
        try:
            for rank in range(self._ranks):
                ours, theirs = processes.Pipe()
                assignment = self._assignment(
                    rank=rank, rendezvous=rendezvous, environment=dict(os.environ)
                )
                process = processes.Process(target=main, args=(theirs, assignment))
                with launch.environment():
                    process.start()
                theirs.close()
                self._members.append(Member(rank, process, ours))
            Gathering(self._members, START, None).wait(None, self._show)
        except BaseException:
            self._end()
            self._output.show()
            raise

    def _replace_dead(self) -> None:
        for member in self._members:
            if member.has_ended():
                end = death(member.rank, member.process.exitcode)
                print(f"zerolab: since the last run, rank {end.rank} {end}", file=sys.stderr)
                self._end()
                break
        if not self._members:
            self._start()

    def _tell(self, order: object) -> None:
        message = pickle.dumps((self._run, "run", order))
        for member in self._members:
            member.tell(message)

    def _end(self) -> None:
        """Kill every rank, wait for its end, and let go of its pipe."""
        # Ours no more, whatever interrupts the rest: a rank ends by itself when its pipe does.
        members, self._members = self._members, []
        for member in members:
            member.process.kill()
        for member in members:
            member.process.join()
            member.process.close()
            member.pipe.close()


_all: "weakref.WeakSet[LocalRanks]" = weakref.WeakSet()


def _close_all() -> None:
    for ranks in list(_all):
        ranks.close()


def _forget_all() -> None:
    for ranks in list(_all):
        ranks.forget()


# Registered after multiprocessing's own handler, so called before it: that one waits for processes.
atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
