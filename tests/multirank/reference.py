"""What the multi-rank tests hold the strategies against: one process on the global batch."""

import gc

import torch
from torch import Tensor

from zerolab.accounting.memory import ModelStates, persistent_states
from zerolab.accounting.traffic import unit_wire_bytes
from zerolab.parallel import STRATEGIES, ShardedAdam
from zerolab.runtime.ledger import ledger
from zerolab.runtime.memory import MemoryMeter
from zerolab.training.gpt import GPT, GPTShape

GLOBAL_BATCH = 12  # divides by 1, 2, 3 and 4 ranks
# Width 30 and vocabulary 61: hardly a unit divides by 4 ranks, so that padding is at work.
SHAPE = GPTShape(vocabulary=61, context=16, layers=3, heads=2, width=30)
STEPS = 10
LEARNING_RATE = 1e-3


def batch(step: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
    """A rank's slice of the step's global batch."""
    generator = torch.Generator().manual_seed(step)
    size = (GLOBAL_BATCH, SHAPE.context + 1)
    tokens = torch.randint(0, SHAPE.vocabulary, size, generator=generator)
    own = tokens[rank * GLOBAL_BATCH // ranks : (rank + 1) * GLOBAL_BATCH // ranks]
    return own[:, :-1], own[:, 1:]


def train_alone(clip: float | None = None) -> tuple[dict[str, Tensor], list[float]]:
    """Ten steps of plain torch in one process: the parameters after them, and each step's loss."""
    torch.manual_seed(0)
    model = GPT(SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for step in range(STEPS):
        loss = model(*batch(step))
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model.state_dict(), losses


class Outcome:
    """What one rank measured while it trained."""

    parameters: dict[str, Tensor]
    losses: list[float]
    persistent: ModelStates  # alive between backward and step, in the last step
    predicted: ModelStates
    wire_bytes: int  # the ledger's, in the last step
    predicted_wire_bytes: int
    gathered: int  # most bytes of gathered parameters in the last step's peak


def train(
    rank: int, ranks: int, strategy: str, precision: str = "fp32", clip: float | None = None
) -> Outcome:
    """The same ten steps on one rank of several."""
    gc.collect()  # the model before this one
    torch.manual_seed(rank)  # rank 0's parameters count, so only its seed may
    outcome = Outcome()
    outcome.losses = []
    with MemoryMeter() as meter:
        model = STRATEGIES[strategy](GPT(SHAPE), precision=precision)
        optimizer = ShardedAdam(model, lr=LEARNING_RATE)
        for step in range(STEPS):
            ledger.clear()
            meter.reset_peak()
            loss = model(*batch(step, rank, ranks))
            loss.backward()
            if clip is not None:
                model.clip_grad_norm_(clip)
            states = {kind: meter.live[kind] for kind in ("parameters", "gradients", "optimizer")}
            optimizer.step()
            optimizer.zero_grad()
            outcome.losses.append(loss.item())
    outcome.persistent = ModelStates(**states)
    outcome.predicted = persistent_states(model.unit_sizes, strategy, ranks, precision)
    outcome.wire_bytes = ledger.bytes()
    outcome.predicted_wire_bytes = unit_wire_bytes(model.unit_sizes, strategy, ranks, precision)
    outcome.parameters = model.full_state_dict()
    return outcome


def difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The largest difference between two state dicts with the same names."""
    assert left.keys() == right.keys()
    return max((left[name] - right[name]).abs().max().item() for name in left)
