"""The collectives of data parallelism, in place on flat tensors, each counted by the ledger.

A flat tensor of S elements on N ranks is N chunks of S/N; chunk r belongs to rank r. Every rank
sends, in elements:

    all_gather       (N-1)/N x S    chunk r arrives from rank r
    reduce_scatter   (N-1)/N x S    chunk r becomes the sum of all ranks' chunk r, on rank r
    all_reduce     2 (N-1)/N x S    the one after the other
    broadcast        (N-1)   x S    the source only; the others send nothing
    reduce                     S    every rank but the destination

On NCCL these are its own. On gloo they are rings over point-to-point messages: gloo's
reduce-scatter moves as many bytes as its all-reduce, which would make ZeRO cost more than it does.
In a ring, every rank only ever sends to the next one; N-1 steps of S/N elements each. Each step
waits for the one before, so what is small is exchanged directly instead: the same chunks, each sent
straight to the rank that it is for, all at once.

All of them return at once with a `Work`; one communication thread a rank carries them out in the
order in which they were called, as a GPU's communication stream would. On NCCL that thread only
queues them, where the computation is queued too: the bytes are these, but nothing is hidden, and
the ledger's times are those of queueing.
"""

import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from zerolab.runtime import trace
from zerolab.runtime.ledger import ledger
from zerolab.runtime.link import Delivery

# Bytes of a whole tensor up to which the wait for a ring's steps costs more than their transfer. On
# four ranks over loopback a direct exchange took about half a ring's time up to here, and the same
# time at 16 MiB; on a network of machines, all senders at once would crowd the receivers.
DIRECT = 2**20

_communication = ThreadPoolExecutor(max_workers=1, thread_name_prefix="communication")


class Work:
    """A collective under way. Its tensor must not be touched before `wait` returns."""

    def __init__(self, future: "Future[None] | None" = None) -> None:
        self._future = future

    def wait(self) -> None:
        """Return when the collective is complete; raise what it raised."""
        if self._future is not None:
            start = perf_counter()
            self._future.result()
            ledger.waited += perf_counter() - start


def all_gather(full: Tensor, label: str = "", group: dist.ProcessGroup | None = None) -> Work:
    """Fill `full` [S] with every rank's chunk; this rank's chunk is in place already."""
    return _submit("all-gather", _all_gather, 1, full, label, group)


def reduce_scatter(full: Tensor, label: str = "", group: dist.ProcessGroup | None = None) -> Work:
    """Sum this rank's chunk of `full` [S] over the ranks; the other chunks are left undefined."""
    return _submit("reduce-scatter", _reduce_scatter, 1, full, label, group)


def all_reduce(full: Tensor, label: str = "", group: dist.ProcessGroup | None = None) -> Work:
    """Sum `full` [S] over the ranks."""
    return _submit("all-reduce", _all_reduce, 2, full, label, group)


def broadcast(
    tensor: Tensor, source: int = 0, label: str = "", group: dist.ProcessGroup | None = None
) -> Work:
    """Copy `tensor` [S] from the group's rank `source` to all its ranks."""
    _check(tensor, 1, label)
    peers = _Peers(f"broadcast {label} {tensor.numel()} {tensor.dtype}", group)
    messages = peers.ranks - 1 if peers.rank == source else 0

    def transfer() -> None:
        if dist.get_backend(group) == "nccl":
            dist.broadcast(tensor, group=group, group_src=source)
        elif peers.rank == source:
            _wait(peers.send(tensor, to) for to in peers.others())
        else:
            _wait([peers.receive(tensor, source)])

    return _start("broadcast", transfer, messages, messages * _bytes(tensor), label, group)


def reduce(
    tensor: Tensor, destination: int, label: str = "", group: dist.ProcessGroup | None = None
) -> Work:
    """Sum `tensor` [S] over the ranks, on the group's rank `destination`."""
    _check(tensor, 1, label)
    peers = _Peers(f"reduce {label} {tensor.numel()} {tensor.dtype}", group)
    messages = 0 if peers.rank == destination else 1
    incoming = torch.empty_like(tensor) if peers.rank == destination else tensor

    def transfer() -> None:
        if dist.get_backend(group) == "nccl":
            dist.reduce(tensor, group=group, group_dst=destination)
        elif peers.rank == destination:
            for other in peers.others():
                _wait([peers.receive(incoming, other)])
                tensor.add_(incoming)
        else:
            _wait([peers.send(tensor, destination)])

    return _start("reduce", transfer, messages, messages * _bytes(tensor), label, group)


def sum_over_ranks(
    value: float, device: torch.device, label: str = "", group: dist.ProcessGroup | None = None
) -> float:
    """The sum of one number over the ranks, on every rank."""
    # One equal element a rank, because a collective's tensor divides into chunks.
    spread = torch.full((dist.get_world_size(group),), value, dtype=torch.float64, device=device)
    all_reduce(spread, label, group).wait()
    return spread[0].item()


def device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Where the tensors of a group's collectives lie on this rank."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _submit(
    operation: str,
    exchange: Callable[[list[Tensor], Tensor, "_Peers"], None],
    rounds: int,
    full: Tensor,
    label: str,
    group: dist.ProcessGroup | None,
) -> Work:
    ranks = dist.get_world_size(group)
    _check(full, ranks, label)
    if ranks == 1:
        return Work()
    chunks = list(full.chunk(ranks))
    messages = rounds * (ranks - 1)
    if dist.get_backend(group) == "nccl":
        transfer = _native(operation, full, chunks[dist.get_rank(group)], group)
    else:
        # Allocated here, on the thread whose memory is measured.
        incoming = torch.empty_like(chunks[0]) if operation != "all-gather" else full
        peers = _Peers(f"{operation} {label} {full.numel()} {full.dtype}", group)

        def transfer() -> None:
            exchange(chunks, incoming, peers)

    return _start(operation, transfer, messages, messages * _bytes(chunks[0]), label, group)


def _start(
    operation: str,
    transfer: Callable[[], None],
    messages: int,
    bytes: int,
    label: str,
    group: dist.ProcessGroup | None,
) -> Work:
    """Queue a transfer for the communication thread."""
    # Taken out to be called, so that its tensors are released before `Work.wait` returns.
    queued = [transfer]
    del transfer
    span = trace.queued(operation, label, bytes)

    def carry_out() -> None:
        with (
            ledger.entry(operation, label, bytes, messages) as event,
            Delivery(messages, bytes, group),
        ):
            queued.pop()()
        if span is not None:
            span.start, span.end = event.start, event.end

    return Work(_communication.submit(carry_out))


class _Peers:
    """The ranks of a group, as this one sends to them and receives from them."""

    def __init__(self, name: str, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        # Messages only match under the same tag: ranks that disagree about what they are doing
        # wait until the time-out, with their positions in the ledger, instead of summing tensors
        # that do not belong together.
        self.tag = zlib.crc32(name.encode()) & 0x7FFFFFFF

    def others(self) -> list[int]:
        """Beginning with the next one, so that not all ranks turn to the same one first."""
        return [(self.rank + step) % self.ranks for step in range(1, self.ranks)]

    def send(self, tensor: Tensor, to: int) -> dist.Work | None:
        return dist.isend(tensor, group=self.group, group_dst=to, tag=self.tag)

    def receive(self, tensor: Tensor, source: int) -> dist.Work | None:
        return dist.irecv(tensor, group=self.group, group_src=source, tag=self.tag)

    def pass_on(self, outgoing: Tensor, incoming: Tensor) -> None:
        """One step of a ring: send to the next rank while receiving from the previous one."""
        received = self.receive(incoming, (self.rank - 1) % self.ranks)
        _wait([received, self.send(outgoing, (self.rank + 1) % self.ranks)])


def _wait(transfers: Iterable[dist.Work | None]) -> None:
    for transfer in list(transfers):  # all of them begin before the first is waited for
        assert transfer is not None  # None is for ranks outside of the group
        transfer.wait()


def _ring_reduce_scatter(chunks: list[Tensor], incoming: Tensor, peers: _Peers) -> None:
    # Chunk c starts at rank c+1 and collects each rank's part on its way to rank c.
    for step in range(1, peers.ranks):
        outgoing = chunks[(peers.rank - step) % peers.ranks]
        peers.pass_on(outgoing, incoming)
        chunks[(peers.rank - step - 1) % peers.ranks].add_(incoming)


def _ring_all_gather(chunks: list[Tensor], _: Tensor, peers: _Peers) -> None:
    # Each rank passes on what it received last, starting with its own chunk.
    for step in range(peers.ranks - 1):
        outgoing = chunks[(peers.rank - step) % peers.ranks]
        peers.pass_on(outgoing, chunks[(peers.rank - step - 1) % peers.ranks])


def _direct_reduce_scatter(chunks: list[Tensor], incoming: Tensor, peers: _Peers) -> None:
    own = chunks[peers.rank]
    sent = [peers.send(chunks[other], other) for other in peers.others()]
    for other in peers.others():  # one at a time, into one chunk's memory
        _wait([peers.receive(incoming, other)])
        own.add_(incoming)
    _wait(sent)


def _direct_all_gather(chunks: list[Tensor], _: Tensor, peers: _Peers) -> None:
    received = [peers.receive(chunks[other], other) for other in peers.others()]
    _wait([*received, *(peers.send(chunks[peers.rank], other) for other in peers.others())])


def _reduce_scatter(chunks: list[Tensor], incoming: Tensor, peers: _Peers) -> None:
    exchange = _direct_reduce_scatter if _is_small(chunks) else _ring_reduce_scatter
    exchange(chunks, incoming, peers)


def _all_gather(chunks: list[Tensor], incoming: Tensor, peers: _Peers) -> None:
    exchange = _direct_all_gather if _is_small(chunks) else _ring_all_gather
    exchange(chunks, incoming, peers)


def _all_reduce(chunks: list[Tensor], incoming: Tensor, peers: _Peers) -> None:
    _reduce_scatter(chunks, incoming, peers)
    _all_gather(chunks, incoming, peers)


def _is_small(chunks: list[Tensor]) -> bool:
    return len(chunks) * _bytes(chunks[0]) <= DIRECT


def _native(
    operation: str, full: Tensor, own: Tensor, group: dist.ProcessGroup | None
) -> Callable[[], None]:
    """NCCL's own collectives: in place, when the small tensor is the rank's chunk of the large."""
    return {
        "all-gather": lambda: dist.all_gather_single(full, own, group=group),
        "reduce-scatter": lambda: dist.reduce_scatter_single(own, full, group=group),
        "all-reduce": lambda: dist.all_reduce(full, group=group),
    }[operation]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _check(tensor: Tensor, ranks: int, label: str) -> None:
    # Gloo takes a tensor with gaps without complaint, and returns a wrong result.
    if not tensor.is_contiguous():
        raise ValueError(f"{label or 'tensor'}: a collective needs a contiguous tensor")
    if tensor.numel() % ranks:
        raise ValueError(
            f"{label or 'tensor'}: {tensor.numel()} elements do not divide into {ranks} chunks; "
            "pad to a multiple of the ranks"
        )
