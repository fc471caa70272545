"""How long a World takes, beside what it cannot avoid: one `import torch`.

    python tests/benchmarks/world.py [rounds]

Every round starts fresh processes, one after the other, so that noise of the machine meets all of
them. The medians are printed beside their bars; ratios and bars matter, seconds are this machine's.
"""

import json
import subprocess
import sys
from statistics import median
from time import perf_counter

RANKS = 4
WARM_RUNS = 20

IN_A_FRESH_PROCESS = f"""
import json, time
start = time.perf_counter()
from zerolab import World
with World({RANKS}, device="cpu") as world:
    world.run(lambda rank: rank)
    first = time.perf_counter() - start
    warm = []
    for _ in range({WARM_RUNS}):
        start = time.perf_counter()
        world.run(lambda rank: rank)
        warm.append(time.perf_counter() - start)
start = time.perf_counter()
with World({RANKS}, device="cpu") as world:
    world.run(lambda rank: rank)
    later = time.perf_counter() - start
print(json.dumps(dict(first=first, later=later, warm=sorted(warm)[len(warm) // 2])))
"""


def bare_import() -> float:
    """Seconds of a Python that only imports torch."""
    start = perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return perf_counter() - start


def world() -> dict[str, float]:
    """Seconds of the first World, a later one, and a warm run, in one fresh process."""
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def main(rounds: int) -> None:
    """Measure in interleaved rounds and print the medians beside the bars."""
    bare: list[float] = []
    worlds: list[dict[str, float]] = []
    for _ in range(rounds):
        bare.append(bare_import())
        worlds.append(world())
    imported = median(bare)
    bars = {
        "first": 1.3 * imported + 1.0,  # with its first run, the import of zerolab included
        "later": 0.3,  # with its first run
        "warm": 0.010,  # one run
    }
    print(f"bare import of torch: {imported:.2f} s (median of {rounds})")
    for name, bar in bars.items():
        seconds = median(times[name] for times in worlds)
        verdict = "within" if seconds <= bar else "ABOVE"
        print(f"World({RANKS}), {name}: {seconds:.4f} s, {verdict} its bar of {bar:.4f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
