"""Run with the oracle preloaded: the meter's bytes beside the oracle's, as JSON on stdout."""

import ctypes
import gc
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "multirank"))

from zerolab import World

RANKS = 2


def preloaded_oracle() -> ctypes.CDLL:
    oracle = ctypes.CDLL(None)
    oracle.oracle_live.restype = oracle.oracle_peak.restype = ctypes.c_long
    return oracle


def moments(rank: int, strategy: str, overlap: bool) -> list[tuple[str, int, int]]:
    """(moment, meter's bytes, oracle's bytes) through three steps."""
    import reference

    from zerolab.parallel import STRATEGIES, ShardedAdam
    from zerolab.runtime.memory import MemoryMeter

    oracle = preloaded_oracle()
    gc.collect()
    batches = [reference.batch(step, rank, RANKS) for step in range(3)]
    rows: list[tuple[str, int, int]] = []
    with MemoryMeter() as meter:
        before = oracle.oracle_live() - meter.total

        def note(moment: str) -> None:
            rows.append((f"live {moment}", meter.total, oracle.oracle_live() - before))
            rows.append((f"peak {moment}", meter.peak, oracle.oracle_peak() - before))
            meter.reset_peak()
            oracle.oracle_reset_peak()

        model = STRATEGIES[strategy](reference.GPT(reference.SHAPE), overlap=overlap)
        optimizer = ShardedAdam(model)
        meter.reset_peak()
        oracle.oracle_reset_peak()
        for tokens, targets in batches:
            loss = model(tokens, targets)
            note("forward")
            loss.backward()
            note("backward")
            optimizer.step()
            note("step")
            optimizer.zero_grad()
            del loss
            note("zero_grad")
    return rows


def temporaries(rank: int) -> dict[str, int]:
    """The most bytes that each kernel allocates and frees within one call, by operation."""
    import reference
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    oracle = preloaded_oracle()
    found: Counter[str] = Counter()

    class Probe(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            oracle.oracle_reset_peak()
            result = func(*args, **(kwargs or {}))
            extra = oracle.oracle_peak() - oracle.oracle_live()
            found[str(func)] = max(found[str(func)], extra)
            return result

    model = reference.GPT(reference.SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with Probe():
        for step in range(2):
            model(*reference.batch(step, rank, RANKS)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {operation: size for operation, size in found.items() if size}


def main() -> None:
    with World(RANKS, threads=1) as world:
        world.run(moments, "ddp", False)  # kernels keep some caches from their first call on
        in_turn, overlapped = (
            {s: world.run(moments, s, overlap) for s in ("ddp", "zero1", "zero2", "zero3")}
            for overlap in (False, True)
        )
        found = {"in turn": in_turn, "overlapped": overlapped}
        json.dump({**found, "temporaries": world.run(temporaries)}, sys.stdout)


main()
