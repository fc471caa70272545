"""What the kernel counted on the loopback interface, against the textbook.

Runs in a network namespace of its own where the system lets it, so that nobody else's bytes are
counted; elsewhere on the shared interface, where a busy machine would make it fail.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from zerolab.runtime.wire import own_loopback

SCRIPT = Path(__file__).with_name("wire_script.py")
FACTOR = {"ddp": 2, "zero1": 2, "zero2": 2, "zero3": 3}


@pytest.fixture(scope="module")
def measured() -> dict:
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux counts the bytes of its loopback interface")
    run = subprocess.run(
        [*own_loopback(), sys.executable, str(SCRIPT)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    return json.loads(run.stdout)


@pytest.mark.parametrize("strategy", FACTOR)
@pytest.mark.parametrize("ranks", ["2", "3", "4"])
def test_wire_bytes_are_the_textbooks_within_one_percent(measured, ranks, strategy):
    row = measured[ranks][strategy]
    n = int(ranks)
    textbook = FACTOR[strategy] * 4 * row["parameters"] * (n - 1) / n  # fp32
    assert row["wire"] == pytest.approx(textbook, rel=0.01)
    assert row["ledger"] == pytest.approx(textbook, rel=0.001)  # padding
    assert row["wire"] >= row["ledger"]  # headers only add


@pytest.mark.parametrize("ranks", ["2", "4"])
def test_gloos_own_reduce_scatter_is_no_reduce_scatter(measured, ranks):
    """Why the rings are our own: on gloo it costs as much as an all-reduce."""
    n = int(ranks)
    assert measured[ranks]["gloo reduce-scatter"] == pytest.approx(2 * (n - 1) / n, rel=0.02)
    assert measured[ranks]["ring reduce-scatter"] == pytest.approx((n - 1) / n, rel=0.02)
