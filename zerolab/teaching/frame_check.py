"""What a recorded step's frames must add up to, frame by frame and in all.

- What a rank sends in all frames together is what its ledger counted, and what `accounting` says.
- What a rank sends in one frame is its collective's bytes, of that unit or of those activations.
- Parameters and optimizer state stay as `accounting` says, and so do gradients once they are there;
  what is gathered and what gradients take changes by the bytes of the unit that a frame names.

Activations are measured and have no formula here: a fresh recording is compared with the committed
one instead.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from zerolab.accounting import Batch, Keeping, Shape
from zerolab.accounting.memory import STEP_COUNTER, padded_sizes, persistent_states
from zerolab.accounting.precision import precision_policy
from zerolab.accounting.strategies import SHARDING
from zerolab.accounting.tensor_parallel import unit_sizes
from zerolab.accounting.traffic import tensor_parallel_traffic, unit_wire_bytes
from zerolab.teaching.frames import DISCARDS, TRANSFERS, Frame, Recording, frames

ROUNDS = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}  # of N-1 messages each
LOSS_NUMBERS = 2  # a token and rank, that a cross-entropy over divided words gathers


class Kept(NamedTuple):
    """What is alive by the formulas, on every rank."""

    parameters: int
    gradients: int  # between backward and the optimizer's step
    optimizer: int


@dataclass(frozen=True)
class Expected:
    """What the formulas say of one strategy's step. Bytes on each rank."""

    strategy: str
    ranks: int
    element: int  # bytes of each
    padded: dict[str, int]  # elements of the units on this rank, by name, whole
    tokens: int  # that a rank computes with
    shape: dict[str, Any]
    kept: Kept
    sent: int

    def transferred(self, frame: Frame) -> int:
        """Bytes of the tensor that a transfer makes whole, sums up, or both."""
        if self.strategy != "tp":
            return self.unit(frame.label)
        if frame.label == "loss":
            return self.element * self.ranks * LOSS_NUMBERS * self.tokens
        return self.element * self.tokens * self.shape["width"]

    def transfer(self, frame: Frame) -> int:
        """Bytes that a rank sends in a frame that is a transfer."""
        return ROUNDS[frame.kind] * (self.ranks - 1) * self.transferred(frame) // self.ranks

    def unit(self, label: str) -> int:
        """Bytes of a whole unit."""
        return self.element * self.padded[label]


def check(recording: Recording) -> None:
    """Raise ValueError where a frame's bytes, or their sum, are not what they must be."""
    for strategy in recording["otherData"]["strategies"]:
        check_strategy(recording, strategy)


def check_strategy(recording: Recording, strategy: str) -> None:
    """`check` of one strategy's frames."""
    told, expected = frames(recording, strategy), expect(recording, strategy)
    for rank, sent in enumerate(recording["otherData"]["strategies"][strategy]["sent"]):
        here = f"{strategy}, rank {rank}"
        _equal(here, "all frames", "sent", sum(frame.sent[rank] for frame in told), sent)
        _equal(here, "the ledger", "sent", sent, expected.sent)
        _check_rank(here, told, rank, expected)


def expect(recording: Recording, strategy: str) -> Expected:
    """What `zerolab.accounting` says of the set-up that was recorded."""
    setup = recording["otherData"]
    ranks, precision, shape = setup["ranks"], setup["precision"], setup["shape"]
    units: list[tuple[str, int]] = setup["strategies"][strategy]["units"]
    sizes = [size for _, size in units]
    tokens = setup["sequences"] * shape["context"]
    if strategy == "tp":
        model = _shape(shape)
        batch = Batch(
            size=setup["sequences"],
            sequence=shape["context"],
            element=precision_policy(precision).parameter,
            tensor_parallel=ranks,
        )
        kept, sent = _tensor_parallel(model, batch, precision, len(units))
        padded = sizes
    else:
        tokens //= ranks
        states = persistent_states(sizes, strategy, ranks, precision)
        kept = Kept(states.parameters, states.gradients, states.optimizer)
        sent = unit_wire_bytes(sizes, strategy, ranks, precision)
        padded = list(padded_sizes(sizes, ranks))
    by_name: dict[str, int] = {}
    for (name, _), size in zip(units, padded, strict=True):
        by_name[name] = by_name.get(name, 0) + size
    element = precision_policy(precision).parameter
    return Expected(strategy, ranks, element, by_name, tokens, shape, kept, sent)


def _shape(shape: dict[str, Any]) -> Shape:
    """`training.gpt.GPTShape`, as its fields, in the terms of accounting."""
    return Shape(
        layers=shape["layers"],
        hidden=shape["width"],
        heads=shape["heads"],
        feed_forward=4 * shape["width"],
        vocabulary=shape["vocabulary"],
        positions=shape["context"],
        query_key_value_bias=True,
        attention_output_bias=True,
        feed_forward_bias=True,
        tied=shape["tied"],
    )


def _tensor_parallel(shape: Shape, batch: Batch, precision: str, units: int) -> tuple[Kept, int]:
    """What tensor parallelism keeps and sends on each rank."""
    policy, ranks = precision_policy(precision), batch.tensor_parallel
    elements = sum(unit_sizes(shape, ranks))
    optimizer = policy.optimizer * elements + STEP_COUNTER * units
    kept = Kept(policy.parameter * elements, policy.gradient * elements, optimizer)
    return kept, tensor_parallel_traffic(shape, batch, Keeping()).bytes


def _check_rank(here: str, told: list[Frame], rank: int, expected: Expected) -> None:
    sharding = SHARDING.get(expected.strategy)
    gathers = sharding is not None and sharding.parameters == "shard"
    gathered, gradients = 0, 0
    arrived: set[str] = set()  # units whose gradients are alive
    for place, frame in enumerate(told):
        where = f"frame {place} ({frame.kind} {frame.label})"
        sent = expected.transfer(frame) if frame.kind in TRANSFERS else 0
        freed = 0
        if frame.phase == "step" and not arrived.issuperset(expected.padded):
            raise ValueError(f"{here}, {where}: a step without the gradients of all units")
        if frame.kind == "all-gather" and gathers:
            gathered += expected.unit(frame.label)
        elif frame.kind == "discard":
            freed = expected.unit(frame.label)
            gathered -= freed
        elif frame.kind == "backward" and frame.label not in arrived:
            arrived.add(frame.label)
            gradients += expected.unit(frame.label)
        elif frame.kind == "release" and frame.phase == "backward":
            freed = expected.unit(frame.label)
            gradients -= freed - freed // expected.ranks
        elif frame.kind == "release":
            _equal(here, where, "gradients so far", gradients, expected.kept.gradients)
            freed, gradients = gradients, 0
        _equal(here, where, "sent", frame.sent[rank], sent)
        _equal(here, where, "freed", frame.freed[rank], freed)
        held = {
            "parameters": expected.kept.parameters,
            "gradients": gradients,
            "optimizer": expected.kept.optimizer,
            "gathered": gathered,
        }
        for name, size in held.items():
            _equal(here, where, name, frame.live[rank][name], size)
    if gradients or gathered or not {frame.kind for frame in told} & {*DISCARDS}:
        raise ValueError(f"{here}: the step does not end with all gradients released")


def _equal(here: str, where: str, what: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{here}, {where}: {what} {found:,} bytes, but it must be {expected:,}")
