"""Measure loopback bytes for every strategy and rank count; JSON on stdout. See test_wire.py."""

import json
import sys

import torch
import torch.distributed as dist

from zerolab import GPT, GPTShape, ShardedAdam, World
from zerolab.parallel import STRATEGIES
from zerolab.runtime.collectives import reduce_scatter
from zerolab.runtime.ledger import ledger
from zerolab.runtime.wire import loopback_bytes

SHAPE = GPTShape(layers=2, width=192, context=32)
STEPS = 3


def loopback_during(ranks: int, action) -> float:
    """Bytes that each rank sent, on average, while all of them did this."""
    dist.barrier()
    before = loopback_bytes()
    dist.barrier()  # nobody starts before everybody has read the counter
    action()
    dist.barrier()
    after = loopback_bytes()
    dist.barrier()
    return (after - before) / ranks


def train(rank: int, ranks: int, strategy: str) -> dict:
    torch.manual_seed(0)
    model = STRATEGIES[strategy](GPT(SHAPE))
    optimizer = ShardedAdam(model)
    tokens = torch.randint(0, SHAPE.vocabulary, (1, SHAPE.context))

    def steps():
        for _ in range(STEPS):
            model(tokens, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

    steps()
    ledger.clear()
    wire = loopback_during(ranks, steps) / STEPS
    return {"parameters": SHAPE.parameters, "wire": wire, "ledger": ledger.bytes() / STEPS}


def compare_reduce_scatters(rank: int, ranks: int) -> tuple[float, float]:
    """Bytes a rank sends for gloo's own and for the ring, in units of the tensor's size."""
    whole = torch.ones(ranks * 1_000_000)
    part = torch.empty(1_000_000)
    gloo = loopback_during(ranks, lambda: dist.reduce_scatter_single(part, whole))
    ring = loopback_during(ranks, lambda: reduce_scatter(whole).wait())
    return gloo / (4 * whole.numel()), ring / (4 * whole.numel())


def main() -> None:
    measured: dict[int, dict] = {}
    for ranks in (2, 3, 4):
        with World(ranks, threads=1) as world:
            rows = {strategy: world.run(train, ranks, strategy)[0] for strategy in STRATEGIES}
            gloo, ring = world.run(compare_reduce_scatters, ranks)[0]
            measured[ranks] = rows | {"gloo reduce-scatter": gloo, "ring reduce-scatter": ring}
    json.dump(measured, sys.stdout)


main()
