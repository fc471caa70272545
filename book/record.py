"""Record the step-through's step anew: python book/record.py

One training step of each strategy on four ranks, as `zerolab.training.record` does it. What is
written is a trace that Perfetto opens; the book reads its frames from it.
"""

import json
from pathlib import Path

from zerolab import World
from zerolab.teaching.frame_check import check
from zerolab.training.record import record

RANKS = 4
RECORDING = Path(__file__).parent / "assets" / "recorded-step.json"
COMMAND = "python book/record.py"


def written(recording: dict) -> str:
    """JSON with a line an event, so that a change can be read as one."""
    events = ",\n".join(
        json.dumps(event, separators=(",", ":")) for event in recording["traceEvents"]
    )
    rest = {key: value for key, value in recording.items() if key != "traceEvents"}
    return f'{{"traceEvents":[\n{events}\n],\n{json.dumps(rest)[1:]}\n'


if __name__ == "__main__":
    with World(RANKS, device="cpu", threads=1) as world:
        recording = record(world)
    recording["otherData"]["command"] = COMMAND
    check(recording)
    RECORDING.write_text(written(recording))
    print(f"{RECORDING.name}: {RECORDING.stat().st_size:,} bytes")
