"""World: a function runs on N ranks, from a notebook cell, a script, a test, or under torchrun.

    def where_am_i(rank, word):
        return f"{word} from {rank} of {torch.distributed.get_world_size()}"

    with World(4) as world:
        print(world.run(where_am_i, "hello"))

How ranks come into being is in `launch`, what one does in `rank`, how the caller listens to all of
them in `gather`.
"""

import os
import sys
import weakref
from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import Any, Self

from zerolab.accounting.errors import InputError, unknown_name
from zerolab.accounting.links import link as find_link
from zerolab.accounting.quantities import check_whole
from zerolab.runtime.failure import RankError
from zerolab.runtime.launch import start_server
from zerolab.runtime.rank import is_rank

MOST_RANKS = MOST_THREADS = 256
_DEVICES = ("auto", "cpu", "cuda")
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")


class World:
    """N ranks, started once and kept warm, all in one process group.

    ranks    how many, 1 to 256: the caller holds three open files a rank, and a rank one for every
             other, so that 256 are the most that stay well below the usual limit of 1,024
    device   "cuda": one GPU a rank, over NCCL. "cpu": gloo. "auto": the first if there are enough
             GPUs and no link, else the second
    link     emulate this interconnect on CPUs (a name in `zerolab.accounting.links`), None for none
    timeout  seconds that a rank may wait in a collective for the others
    threads  that torch uses on each rank; None shares the cores out
    live     show what ranks print as the lines come, not when the run ends

    Under torchrun the ranks are those of its environment: nothing is started, `run` calls the
    function on this rank and returns every rank's result, and `threads` is left to torchrun unless
    given. What a rank raises is raised there as it is, and a run that takes too long ends the rank:
    torchrun ends the others.

    Raises InputError for anything else, and RuntimeError on a rank: Worlds do not nest.
    """

    def __init__(
        self,
        ranks: int,
        device: str = "auto",
        link: str | None = None,
        timeout: float = 60.0,
        threads: int | None = None,
        live: bool = False,
    ) -> None:
        if is_rank():
            raise RuntimeError("this is a rank of a World already, and Worlds do not nest")
        under_torchrun = all(name in os.environ for name in _TORCHRUN)
        if under_torchrun and ranks != int(os.environ["WORLD_SIZE"]):
            accepted = f"{os.environ['WORLD_SIZE']}, the WORLD_SIZE that torchrun has set"
            raise InputError("ranks", ranks, accepted)
        self.ranks = ranks if under_torchrun else check_whole("ranks", ranks, 1, MOST_RANKS)
        if device not in _DEVICES:
            raise unknown_name("device", device, _DEVICES)
        self.link, emulated = link, None if link is None else find_link(link)
        if emulated is not None:
            if device == "cuda":
                raise InputError(
                    "link", link, 'None with device="cuda": links are emulated on CPUs'
                )
            device = "cpu"
        _seconds("timeout", timeout)
        if threads is not None:
            check_whole("threads", threads, 1, MOST_THREADS)
        self._running = Lock()
        if under_torchrun:
            from zerolab.runtime.torchrun import TorchrunRanks

            self.device = _device(device, int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))
            self._crew: Any = TorchrunRanks(self.device, emulated, timeout, threads)
        else:
            start_server()
            # Not before: the server now imports torch on one core while this does on another.
            from zerolab.runtime.local import LocalRanks

            self.device = _device(device, self.ranks)
            threads = threads or max(1, _cores() // self.ranks)
            self._crew = LocalRanks(self.ranks, self.device, emulated, timeout, threads, live)
        # Also called when the last reference goes.
        self._close = weakref.finalize(self, self._crew.close)

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        timeout: float | None = None,
        on_report: Callable[[int, Any], None] | None = None,
        **named: Any,
    ) -> list[Any]:
        """Call `function(rank, *arguments, **named)` on every rank; return the results by rank.

        timeout    seconds that the whole run may take, None for no bound
        on_report  called as `on_report(rank, value)` for each `report(value)` on a rank, at once

        Tensors arrive on the CPU, and as leaves. Raises RankError when a rank raises, dies, or
        waits too long in a collective, and RankTimeout after `timeout` seconds; both name what
        every rank was doing. All ranks are then ended, and the next run starts new ones.
        """
        if timeout is not None:
            _seconds("timeout", timeout)
        if not self._running.acquire(blocking=False):
            raise RuntimeError("this World is in a run already: one at a time")
        try:
            return self._crew.run(function, arguments, named, timeout, on_report)
        except RankError as error:
            # How the caller listened is not the reader's concern: the message says what happened.
            raise error.with_traceback(None) from None
        finally:
            self._running.release()

    def close(self) -> None:
        """End the ranks and leave nothing behind. May be called again."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"World({self.ranks}, device={self.device!r})"


def _device(wanted: str, ranks: int) -> str:
    """The device that `ranks` ranks of this machine run on."""
    if wanted == "cpu":
        return wanted
    import torch

    gpus = torch.cuda.device_count()
    if gpus >= ranks:
        return "cuda"
    if wanted == "cuda":
        accepted = f'"auto" or "cpu" here: NCCL needs a GPU for each of {ranks} ranks, not {gpus}'
        raise InputError("device", wanted, accepted)
    if gpus:
        print(
            f"zerolab: NCCL needs a GPU for each of {ranks} ranks, and there are {gpus}: "
            "the ranks run on the CPU, over gloo",
            file=sys.stderr,
        )
    return "cpu"


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _seconds(option: str, given: object) -> None:
    if not isinstance(given, int | float) or isinstance(given, bool) or not given > 0:
        raise InputError(option, given, "a number of seconds above 0")
