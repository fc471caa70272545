"""Time steps on a loopback interface that the kernel throttles; JSON on stdout.

Runs in a network namespace of its own: `tc` slows down whatever interface is called lo there. See
test_step_time.py.
"""

import json
import subprocess
import sys
from dataclasses import asdict

import torch.distributed as dist
from timed_steps import Trainer

from zerolab import World
from zerolab.accounting import STRATEGIES, Link, link
from zerolab.runtime.link import use_link

RATES = {"even": 4e6, "slow": 2e6}  # bytes a second for each rank
PACKET = 9000  # bytes; loopback's own 65,536 would pass in lumps of tens of milliseconds
HEADERS = 14 + 20 + 32  # Ethernet, IP, TCP with time stamps
PAYLOAD = (PACKET - 20 - 32) / (PACKET - 20 - 32 + HEADERS)
BURST = 2 * PACKET  # bytes that pass at once after a pause


def tc(*arguments: str) -> None:
    subprocess.run(["tc", "qdisc", *arguments], check=True)


def throttle(rank: int, rate: float | None) -> None:
    """Let this many bytes a second through, on all ranks' one bus; None for no limit."""
    dist.barrier()
    if rank == 0 and rate is None:
        tc("del", "dev", "lo", "root")
    elif rank == 0:
        bits = f"{8 * rate:.0f}bit"
        limits = ("rate", bits, "burst", str(BURST), "latency", "60s")
        tc("add", "dev", "lo", "root", "tbf", *limits)
    dist.barrier()


def as_link(rate: float) -> Link:
    """What one rank has of it. The bus is as fast as all ranks together."""
    return Link("throttled", link("loopback").latency, rate * PAYLOAD, "test")


def timed(rank: int, ranks: int) -> list[dict]:
    """For each strategy and rate: a step with compute, throttled; and one without, both ways."""
    rows = []
    for strategy in STRATEGIES:
        computing, idle = Trainer(strategy), Trainer(strategy, products=0)
        for trainer in (computing, idle):
            trainer.step()
        for name, rate in RATES.items():
            throttle(rank, ranks * rate)
            step, real = computing.step(), idle.step()
            throttle(rank, None)
            use_link(as_link(rate))
            emulated = idle.step()
            use_link(None)
            rows.append(
                {
                    "strategy": strategy,
                    "link": name,
                    "step": asdict(step),
                    "real": real.total,
                    "emulated": emulated.total,
                }
            )
    return rows


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "mtu", str(PACKET)], check=True)
    measured = {}
    for ranks in map(int, sys.argv[1:]):
        with World(ranks, device="cpu", threads=1) as world:
            measured[ranks] = world.run(timed, ranks)
    json.dump(measured, sys.stdout)


if __name__ == "__main__":
    main()
