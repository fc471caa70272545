"""Ranks that torchrun has started already: this process is one of them."""

import faulthandler
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from zerolab.accounting.links import Link
from zerolab.runtime import shipping
from zerolab.runtime.gather import OnReport
from zerolab.runtime.link import use_link
from zerolab.runtime.rank import set_reporter


class TorchrunRanks:
    """The process group of the environment, entered unless the script has done so."""

    def __init__(self, device: str, link: Link | None, timeout: float, threads: int | None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        self._entered = not dist.is_initialized()
        if self._entered:
            backend = "nccl" if device == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        use_link(link)

    def run(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        timeout: float | None,
        on_report: OnReport,
    ) -> list[Any]:
        """The function on this rank; every rank's result. An exception is this rank's alone.

        After `timeout` seconds the process writes where it is and ends, and torchrun the others.
        """
        rank = dist.get_rank()
        set_reporter(lambda value: on_report(rank, value) if on_report else None)
        if timeout is not None:
            faulthandler.dump_traceback_later(timeout, exit=True)
        try:
            body = shipping.pack(function(rank, *arguments, **named)).body
            bodies: list[bytes] = [b""] * dist.get_world_size()
            dist.all_gather_object(bodies, body)
        finally:
            faulthandler.cancel_dump_traceback_later()
            set_reporter(None)
        return [shipping.unpack(body) for body in bodies]

    def close(self) -> None:
        """Leave the process group, if we entered it."""
        if self._entered and dist.is_initialized():
            dist.destroy_process_group()
