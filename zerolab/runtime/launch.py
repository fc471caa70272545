"""How rank processes come into being: from a server that has torch loaded, or afresh.

A fork server is a small process that imports torch once and forks a ready rank in milliseconds.
It never computes, so what it forks is clean; forking the caller itself is not safe once the caller
has used OpenMP or CUDA. macOS does not support forking with its frameworks loaded, and Windows
cannot fork: there, every rank is spawned and imports torch by itself.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, util
from threading import Lock
from types import ModuleType
from typing import Any

START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"

CALLER = "ZEROLAB_CALLER"  # environment variable: the process that starts the server

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def start_server() -> None:
    """Start the fork server unless it runs. Returns at once: it imports torch on another core."""
    if START_METHOD == "forkserver":
        forkserver.set_forkserver_preload(["zerolab.runtime.server"])
        with environment(), _groups_of_their_own():
            forkserver.ensure_running()


@contextmanager
def environment() -> Iterator[None]:
    """Around every start of a process: what it must and must not see of this one.

    - One OpenMP thread: the library reads the variable as it is loaded, and torch changes the
      number later, on each rank.
    - The same import path, in the same order, so that it finds this package where we found it.
    - Our process number: whoever has another parent came too late, and its caller has gone.
    - No `__main__`: multiprocessing would run the caller's script again on every rank.
    """
    seen = {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(str(entry) or os.getcwd() for entry in sys.path),
        "PYTHONSAFEPATH": "1",
        CALLER: str(os.getpid()),
    }
    with _one_at_a_time:
        main = sys.modules["__main__"]
        before = {name: os.environ.get(name) for name in seen}
        try:
            os.environ.update(seen)
            sys.modules["__main__"] = ModuleType("__main__")
            yield
        finally:
            sys.modules["__main__"] = main
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@contextmanager
def _groups_of_their_own() -> Iterator[None]:
    """Put the server, with its ranks, and multiprocessing's resource tracker in process groups.

    A terminal sends Ctrl-C to the whole group of its job. A Jupyter kernel that shuts down ends its
    group and waits for it; but the tracker ignores that, so Jupyter would lose patience after 5 s
    and kill the kernel before it could tidy up.
    """
    spawn = util.spawnv_passfds

    def spawn_apart(path: Any, args: Any, passfds: Any) -> int:
        *python, code = args
        return spawn(path, [*python, f"import os; os.setpgrp(); {code}"], passfds)

    util.spawnv_passfds = spawn_apart
    try:
        yield
    finally:
        util.spawnv_passfds = spawn


_one_at_a_time = Lock()  # the environment and `__main__` are the whole process's


def die_with_parent(wanted: bool) -> None:
    """Ask Linux to kill this process the moment its parent ends, however it ends; or not to."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if wanted else 0)
