"""An emulated link: a collective takes as long as it would on a slower interconnect.

The real transfer runs over loopback; then the communication thread sleeps until the modelled link
would have delivered. Sleeping takes no CPU, so what a strategy hides behind communication is
visible on a laptop. A link faster than this machine's loopback cannot be emulated.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, sleep

import torch
import torch.distributed as dist

from zerolab.accounting.links import Link

_link: Link | None = None


def use_link(link: Link | None) -> None:
    """Emulate a link on this rank from now on; None uses the machine's own."""
    global _link
    _link = link


@contextmanager
def emulated(link: Link | None) -> Iterator[None]:
    """Emulate a link on this rank within the context, then again the one before."""
    before = _link
    use_link(link)
    try:
        yield
    finally:
        use_link(before)


class Delivery:
    """Around one collective: from when its last rank arrives until the link has delivered."""

    def __init__(self, messages: int, bytes: int, group: dist.ProcessGroup | None) -> None:
        self.messages, self.bytes, self.group = messages, bytes, group

    def __enter__(self) -> None:
        if _link is None:
            return
        # A ring moves at the pace of the last rank to arrive, and one machine has one clock.
        arrival = torch.tensor([perf_counter()], dtype=torch.float64)
        dist.all_reduce(arrival, dist.ReduceOp.MAX, group=self.group)
        self.deadline = arrival.item() + _link.seconds(self.bytes, self.messages)

    def __exit__(self, *exception) -> None:
        if _link is not None:
            sleep(max(0.0, self.deadline - perf_counter()))
