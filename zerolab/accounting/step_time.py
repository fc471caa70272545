"""How long a step takes: α-β communication, arithmetic, and how much of the one hides the other.

A GPU computes on one stream and communicates on another. `step_time` walks through a step unit by
unit: a unit of ZeRO-3 computes when it is gathered, the next ones are gathered meanwhile, and a
unit's gradients are reduced as soon as they are there. What compute has to wait for is exposed.

Left out: the optimizer's own time, kernels' launch times, and whatever shares the link.

`walk` is held against measured steps in tests/multirank/test_step_time.py, given how long each unit
computed: four strategies on two and four ranks of two busy cores were off by 2 % in the median on a
network that the kernel throttled, and by 5 % on emulated links, nearly always towards too short.
"""

from dataclasses import dataclass

from zerolab.accounting.gpus import GPU
from zerolab.accounting.links import Link
from zerolab.accounting.memory import padded_sizes
from zerolab.accounting.moments import Setup
from zerolab.accounting.precision import precision_policy
from zerolab.accounting.strategies import sharding
from zerolab.accounting.tensor_parallel import unit_sizes
from zerolab.accounting.traffic import PASSES, tensor_parallel_traffic

EFFICIENCY = 0.5  # of the data sheet's rate, while it computes: a rule of thumb


def pass_seconds(link: Link, size: float, ranks: int) -> float:
    """One ring all-gather or reduce-scatter of `size` bytes: N-1 messages of size/N, in turn."""
    return link.seconds(size * (ranks - 1) / ranks, messages=ranks - 1)


def ring_all_reduce_seconds(link: Link, size: float, ranks: int) -> float:
    """A reduce-scatter and an all-gather. Source: Patarasuk and Yuan 2009, section 3."""
    return 2 * pass_seconds(link, size, ranks)


def tree_all_reduce_seconds(link: Link, size: float, ranks: int) -> float:
    """Up and down a pair of binary trees: every rank sends everything twice, but in few messages.

    Source: Sanders, Speck and Träff 2009, as in NCCL since 2.4. A ring's N-1 messages in turn cost
    more than a tree's logarithm where messages are small or ranks are many.
    """
    depth = (ranks - 1).bit_length()
    return 2 * link.seconds(size if ranks > 1 else 0, messages=depth)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step on one rank."""

    compute: float
    communication: float  # of data parallelism, on its own stream
    tensor_parallel: float  # in line with compute: nothing to hide it behind
    total: float

    @property
    def exposed(self) -> float:
        """The communication of data parallelism that compute waited for."""
        return max(0.0, self.total - self.compute - self.tensor_parallel)


def step_time(
    setup: Setup,
    gpu: GPU,
    link: Link,
    tensor_link: Link | None = None,
    overlap: bool = True,
    efficiency: float = EFFICIENCY,
) -> StepTime:
    """Predict one step.

    link: between the data-parallel ranks; `tensor_link` between the tensor-parallel ones, the same
    where None.
    efficiency: the share of the data sheet's rate that arithmetic reaches, from 0 to 1.
    """
    forward, backward = compute_seconds(setup, gpu, efficiency)
    batch = setup.batch
    traffic = tensor_parallel_traffic(setup.shape, batch, setup.keeping)
    tensor = (tensor_link or link).seconds(traffic.bytes, traffic.messages)
    _spread(forward, tensor / 2, setup.shape.layers)
    _spread(backward, tensor / 2, setup.shape.layers)
    walked = walk(setup, link, forward, backward, overlap)
    tensor_total = tensor * setup.micro_batches
    compute = setup.micro_batches * (sum(forward) + sum(backward)) - tensor_total
    return StepTime(compute, walked.communication, tensor_total, walked.total)


@dataclass(frozen=True)
class Walked:
    """Seconds of one step, and of all its collectives."""

    total: float
    communication: float


def walk(
    setup: Setup, link: Link, forward: list[float], backward: list[float], overlap: bool = True
) -> Walked:
    """Walk through one step, given how long each unit computes.

    forward, backward: seconds of each unit in one micro-batch, computed as in `compute_seconds` or
    measured.
    """
    streams = _Streams(setup, link, forward, backward, overlap)
    for micro_batch in range(setup.micro_batches):
        streams.forward()
        streams.backward(last=micro_batch == setup.micro_batches - 1)
    streams.finish()
    return Walked(streams.computing_until, streams.communication)


def compute_seconds(setup: Setup, gpu: GPU, efficiency: float) -> tuple[list[float], list[float]]:
    """Seconds of each unit's forward and backward in one micro-batch, recomputation included.

    2 operations a parameter and token, and 4 × sequence × query width a token for attention's two
    products; backward is twice that. Source: Chowdhery et al., PaLM, arXiv 2204.02311, appendix B.
    """
    shape, batch = setup.shape, setup.batch
    attention = 4 * batch.tokens * batch.sequence * shape.query_width
    idle = (shape.experts - shape.active_experts) * shape.one_feed_forward
    block = 2 * batch.tokens * (shape.block - idle) + attention
    head = 2 * batch.tokens * shape.hidden * shape.vocabulary
    again = {"none": 0, "selective": attention, "full": block}[setup.keeping.recompute]
    rate = gpu.flops * efficiency * batch.tensor_parallel
    forward = [0.0, *[block / rate] * shape.layers, head / rate]
    backward = [0.0, *[(2 * block + again) / rate] * shape.layers, 2 * head / rate]
    return forward, backward


def _spread(units: list[float], seconds: float, layers: int) -> None:
    for index in range(1, layers + 1):
        units[index] += seconds / layers


class _Streams:
    """Two streams: until when each is busy. Without overlap they take turns."""

    def __init__(
        self, setup: Setup, link: Link, forward: list[float], backward: list[float], overlap: bool
    ) -> None:
        policy = precision_policy(setup.precision)
        self.kept, self.passes = sharding(setup.strategy), PASSES[setup.strategy]
        self.forward_seconds, self.backward_seconds = forward, backward
        self.prefetch, self.overlap = setup.prefetch, overlap
        sizes = padded_sizes(unit_sizes(setup.shape, setup.batch.tensor_parallel), setup.ranks)
        one_pass = [
            (
                pass_seconds(link, size * policy.parameter, setup.ranks),
                pass_seconds(link, size * policy.gradient, setup.ranks),
            )
            for size in sizes
        ]
        self.gather = [parameter for parameter, _ in one_pass]
        self.reduce = [self.passes.gradients * gradient for _, gradient in one_pass]
        self.computing_until = self.sending_until = self.communication = 0.0

    def forward(self) -> None:
        self._through(range(len(self.gather)), self.forward_seconds, reduces=False)

    def backward(self, last: bool) -> None:
        reduces = last or self.kept.gradients == "shard"
        self._through(range(len(self.gather) - 1, -1, -1), self.backward_seconds, reduces)

    def finish(self) -> None:
        """Wait for the last reduction; then publish what was updated, where that is due."""
        self._wait()
        if self.kept.optimizer == "shard" and self.kept.parameters == "whole":
            self._send(sum(self.gather))
            self._wait()

    def _through(self, order: range, seconds: list[float], reduces: bool) -> None:
        units = list(order)
        arrived: list[float] = []  # when each unit in turn is gathered

        def gather(until: int) -> None:
            if self.kept.parameters == "shard":
                arrived.extend(
                    self._send(self.gather[unit]) for unit in units[len(arrived) : until]
                )

        for place, unit in enumerate(units):
            gather(until=place + 1 + self.prefetch)
            if arrived:
                self.computing_until = max(self.computing_until, arrived[place])
            self.computing_until += seconds[unit]
            gather(until=place + 2)  # ahead of the gradients: the next unit cannot do without
            if reduces:
                self._send(self.reduce[unit])

    def _send(self, seconds: float) -> float:
        """Put a collective on the wire as soon as compute has come this far; returns its end."""
        self.communication += seconds
        self.sending_until = max(self.sending_until, self.computing_until) + seconds
        if not self.overlap:
            self._wait()
        return self.sending_until

    def _wait(self) -> None:
        self.computing_until = max(self.computing_until, self.sending_until)
