"""Recording one training step of each strategy, for whoever wants to look at it frame by frame.

    with World(4) as world:
        json.dump(record(world), file)         # a trace that Perfetto opens, and more beside it

Without overlap, so that one thing happens at a time and the order is the same in every run. The
step is the third: the first makes the optimizer's state, the second is the first like all others.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from zerolab.accounting.errors import InputError
from zerolab.parallel import DDP, STRATEGIES, ShardedAdam, TensorParallel
from zerolab.parallel.strategy import Strategy
from zerolab.runtime import trace
from zerolab.runtime.collectives import device_of
from zerolab.runtime.ledger import ledger
from zerolab.runtime.memory import MemoryMeter
from zerolab.runtime.trace import Span, recording, trace_events
from zerolab.runtime.world import World
from zerolab.training.gpt import GPT, GPTShape

SHAPE = GPTShape(vocabulary=256, context=32, layers=2, heads=4, width=64)
SEQUENCES = 4  # a step, all ranks together
RECORDED = (*STRATEGIES, "tp")
STEP = 2  # the index of the one that is kept


@dataclass
class Recorded:
    """One rank's step."""

    spans: list[Span]
    sent: int  # bytes, by the ledger
    units: list[tuple[str, int]]  # name and elements of each, on this rank


def record(world: World, shape: GPTShape = SHAPE) -> dict[str, Any]:
    """One step of every strategy on the world's ranks, as `frames` reads it and Perfetto too.

    Raises InputError where the ranks cannot share out the step's sequences, or the shape.
    """
    counts = range(1, SEQUENCES + 1)
    accepted = [count for count in counts if SEQUENCES % count == 0 and shape.splits(count)]
    if world.ranks not in accepted:
        raise InputError("ranks", world.ranks, f"one of {', '.join(map(str, accepted))}")
    events: list[dict[str, Any]] = []
    counted: dict[str, Any] = {}
    for strategy in RECORDED:
        ranks = world.run(record_step, strategy, shape)
        spans = [rank.spans for rank in ranks]
        events += trace_events(spans, f"{strategy} rank", first_process=len(counted) * world.ranks)
        counted[strategy] = {"units": ranks[0].units, "sent": [rank.sent for rank in ranks]}
    setup = {"ranks": world.ranks, "sequences": SEQUENCES, "shape": asdict(shape)}
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {**setup, "precision": "fp32", "strategies": counted},
    }


def record_step(rank: int, strategy: str, shape: GPTShape) -> Recorded:
    """Train for a few steps on this rank; the last one's spans."""
    torch.manual_seed(0)
    ranks = dist.get_world_size()
    generator = torch.Generator().manual_seed(1)
    size = (SEQUENCES, shape.context + 1)
    batch = torch.randint(0, shape.vocabulary, size, generator=generator).to(device_of(None))
    gpt = GPT(shape)
    with MemoryMeter() as meter:
        if strategy == "tp":
            # Data parallelism over a group of one costs nothing, and knows what a unit is.
            alone = [dist.new_group([one]) for one in range(ranks)][rank]
            model: Strategy = DDP(TensorParallel(gpt), overlap=False, group=alone)
        else:
            batch = batch.chunk(ranks)[rank]
            model = STRATEGIES[strategy](gpt, overlap=False)
        _note_the_loss(gpt)
        optimizer = ShardedAdam(model)
        for _ in range(STEP + 1):
            ledger.clear()
            dist.barrier()  # so that the ranks' times begin together
            with recording(meter) as recorded:
                model(batch[:, :-1], batch[:, 1:]).backward()
                optimizer.step()
                held = meter.live["gradients"]
                optimizer.zero_grad()
                trace.instant("release", "all gradients", held - meter.live["gradients"])
    units = [(unit.name, unit.numel) for unit in model.units]
    return Recorded(recorded.spans, ledger.bytes(), units)


def _note_the_loss(gpt: GPT) -> None:
    """It has no parameters, so it is no unit and no stage of its own."""
    gpt.loss.register_forward_pre_hook(lambda *_: trace.begin("forward", "loss"))
    gpt.loss.register_forward_hook(lambda *_: trace.end("forward", "loss"))
