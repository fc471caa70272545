"""One rank: a process that waits for functions, runs them, and sends back what they return.

Two threads share the work. The main thread runs the functions, one after the other. The control
thread reads the pipe from the caller: it can say where the main thread is while that is stuck, and
it ends the process when the caller has gone.
"""

import faulthandler
import gc
import linecache
import os
import pickle
import shutil
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from zerolab.accounting.links import Link
from zerolab.runtime.launch import die_with_parent
from zerolab.runtime.ledger import ledger
from zerolab.runtime.output import redirect

START = 0  # the number of the "run" in which a rank joins the process group

_reporter: Callable[[object], None] | None = None


def report(value: object) -> None:
    """On a rank: hand a value to the caller's `on_report(rank, value)` at once.

    Raises RuntimeError outside a rank.
    """
    if _reporter is None:
        raise RuntimeError("report() works inside a function that World.run runs on a rank")
    _reporter(value)


def is_rank() -> bool:
    """Is this process a rank of a World?"""
    return _reporter is not None


def set_reporter(reporter: Callable[[object], None] | None) -> None:
    """Make this process a rank, whose reports go to `reporter`; None: it is no rank any more."""
    global _reporter
    _reporter = reporter


@dataclass(frozen=True)
class Assignment:
    """What a rank is told when it starts."""

    rank: int
    ranks: int
    device: str  # "cpu" or "cuda"
    link: Link | None  # to emulate
    timeout: float  # seconds that a collective may take
    threads: int  # that torch may use on this rank
    folder: Path  # for output and rendezvous
    rendezvous: Path  # a file that only these ranks know: no port, so no port can be taken
    environment: dict[str, str]  # the caller's, as it is now


def main(pipe: Connection, assignment: Assignment) -> None:
    """Live as one rank until the caller has no more orders, or has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(assignment.environment)
    _Rank(pipe, assignment).live()


class _Rank:
    def __init__(self, pipe: Connection, assignment: Assignment) -> None:
        self.pipe = pipe
        self.assignment = assignment
        self.sending = threading.Lock()
        self.orders: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self.run = START

    def live(self) -> None:
        threading.Thread(target=self.control, name="zerolab control", daemon=True).start()
        servers_life = forkserver._forkserver._forkserver_alive_fd  # type: ignore[attr-defined]
        if servers_life is not None:
            # Let go of the pipe that keeps the server alive: it then ends with the caller, and
            # takes along a rank whose control thread cannot run.
            os.close(servers_life)
            die_with_parent(True)
        redirect(self.assignment.folder, self.assignment.rank)
        faulthandler.enable()
        set_reporter(self.report)
        self.answer(join, self.assignment)
        gc.freeze()
        while True:
            self.run, order = self.orders.get()
            if order is None:
                break
            self.answer(self.obey, order)
            # A model's hooks refer back to it, so only a collection frees its memory: the next
            # run must not find it there. Quick, since what came before is frozen.
            gc.collect()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # nothing is left to tidy up, and nothing may hold up the caller

    def control(self) -> None:
        while True:
            try:
                run, kind, content = self.pipe.recv()
            except (EOFError, OSError):
                # The caller has gone, and with it everybody who could remove the folder.
                shutil.rmtree(self.assignment.folder, ignore_errors=True)
                os._exit(1)
            if kind == "where":
                self.send(run, "where", where())
            else:
                self.orders.put((run, content))

    def obey(self, order: tuple[list[str], str, dict[str, list[str]], bytes]) -> Any:
        from zerolab.runtime import shipping

        path, directory, sources, body = order
        sys.path[:] = path
        os.chdir(directory)
        shipping.know_sources(sources)
        # Not `unpack`: a class that has been here before is brought up to date.
        function, arguments, named = pickle.loads(body)
        ledger.position = None
        return function(self.assignment.rank, *arguments, **named)

    def answer(self, work: Callable[[Any], Any], order: Any) -> None:
        """Do the work and send its result, or what it raised."""
        from zerolab.runtime import shipping

        try:
            body = shipping.pack(work(order)).body
        except BaseException as error:
            self.send(self.run, "error", describe(error))
        else:
            sys.stdout.flush()
            sys.stderr.flush()
            self.send(self.run, "result", body)

    def report(self, value: object) -> None:
        from zerolab.runtime import shipping

        self.send(self.run, "report", shipping.pack(value).body)

    def send(self, run: int, kind: str, content: object) -> None:
        with self.sending:
            self.pipe.send((run, kind, content))


def join(assignment: Assignment) -> None:
    """Enter the process group of all ranks, over the loopback interface only."""
    import torch
    import torch.distributed as dist

    from zerolab.runtime.link import use_link

    torch.set_num_threads(assignment.threads)
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
    if assignment.device == "cuda":
        torch.cuda.set_device(assignment.rank)
    dist.init_process_group(
        "nccl" if assignment.device == "cuda" else "gloo",
        store=dist.FileStore(str(assignment.rendezvous), assignment.ranks),
        rank=assignment.rank,
        world_size=assignment.ranks,
        timeout=timedelta(seconds=assignment.timeout),
    )
    use_link(assignment.link)


def describe(error: BaseException) -> dict[str, Any]:
    """What the caller is told of an exception."""
    from zerolab.runtime import shipping

    # The frames of this module say nothing to the reader.
    own = f'  File "{__file__}"'
    told = [line for line in traceback.format_exception(error) if not line.startswith(own)]
    try:
        cause = shipping.pack(error).body
    except Exception:
        cause = None
    return {
        "what": f"raised {type(error).__qualname__}: {error}".removesuffix(": "),
        "traceback": "".join(told),
        "position": ledger.position,
        "cause": cause,
    }


def where() -> str:
    """What the main thread is doing: the collective that it waits in, or its line of code."""
    if ledger.position is not None:
        return f"waits in {ledger.position}"
    innermost = frame = sys._current_frames()[threading.main_thread().ident or 0]
    if innermost.f_code.co_filename == __file__:
        return "starting"  # the main thread has not taken up its order yet
    # The reader's own code, rather than the library function that it called.
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    if frame.f_code.co_filename == __file__:
        frame = innermost
    code, line = frame.f_code, frame.f_lineno
    source = linecache.getline(code.co_filename, line).strip()
    return f"at {code.co_filename}:{line} in {code.co_name}: {source}".removesuffix(": ")


_LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")}, "<frozen")
