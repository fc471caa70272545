"""Predicted step times against measured ones: on emulated links, and on throttled ones.

Every prediction is made from the seconds that the step's own units computed, so nothing here
depends on how fast the machine is. What other programs take from a step's communication can only
make it longer. So a step that took longer than predicted is timed again, a few times, and counts
with its nearest; a step that was shorter than predicted counts as it is.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from throttled_script import RATES, as_link
from timed_steps import Step, Trainer, predicted

from zerolab.accounting import STRATEGIES, Link
from zerolab.runtime.link import use_link
from zerolab.runtime.wire import own_loopback

RANKS = (2, 4)
LINKS = {
    "hidden behind compute": Link("fast", 1e-4, 20e6, "test"),
    "about as long as compute": Link("even", 1e-3, 4e6, "test"),
    "longer than compute": Link("slow", 5e-3, 2e6, "test"),
}
MOST = 0.15  # median error
PASSES = 3  # at most
SCRIPT = Path(__file__).with_name("throttled_script.py")

Table = dict[tuple[int, str, str], float]  # by ranks, strategy, link


def middle(errors: Table) -> float:
    return median(map(abs, errors.values()))


def merged(choose, table: Table, newer: Table) -> Table:
    return {key: choose(table.get(key, value), value) for key, value in newer.items()}


def report(errors: Table) -> str:
    """Strategies down, links and ranks across."""
    columns = sorted({(ranks, link) for ranks, _, link in errors})
    lines = ["", " " * 6 + "".join(f"{f'{link}, {ranks} ranks':>35}" for ranks, link in columns)]
    for strategy in STRATEGIES:
        cells = (errors[ranks, strategy, link] for ranks, link in columns)
        lines.append(f"{strategy:6}" + "".join(f"{cell:>+35.1%}" for cell in cells))
    return "\n".join([*lines, f"median error {middle(errors):.1%}"])


def timed(rank, links):
    """A step of each strategy on each link, after one to warm up."""
    found = {}
    for strategy in STRATEGIES:
        trainer = Trainer(strategy)
        trainer.step()
        for name, link in links.items():
            use_link(link)
            found[strategy, name] = trainer.step()
        use_link(None)
    return found


def test_emulated_links(world_of):
    errors: Table = {}
    for _ in range(PASSES):
        found = {}
        for ranks in RANKS:
            steps = world_of(ranks).run(timed, LINKS)
            for strategy, name in steps[0]:
                each = [step[strategy, name] for step in steps]
                seconds = predicted(strategy, LINKS[name], each)
                found[ranks, strategy, name] = seconds / each[0].total - 1
        errors = merged(max, errors, found)
        if middle(errors) <= MOST:
            break
    print(report(errors))
    assert middle(errors) <= MOST, report(errors)
    assert max(errors.values()) <= 0.03, report(errors)  # delivering never ends early


@pytest.fixture(scope="module")
def throttled():
    """Errors on links that the kernel throttles: of the prediction, and of the emulation."""
    # Debian keeps tc where only root's PATH looks.
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    namespace = own_loopback()
    limit = ("tbf", "rate", "8mbit", "burst", "20kb", "latency", "1s")
    trial = [*namespace, "tc", "qdisc", "add", "dev", "lo", "root", *limit]
    if not namespace or subprocess.run(trial, capture_output=True, env=environment).returncode:
        pytest.skip("throttling takes Linux, iproute2 and a network namespace of one's own")
    script = [*namespace, sys.executable, str(SCRIPT), *map(str, RANKS)]

    prediction: Table = {}
    real: Table = {}
    emulated: Table = {}
    for _ in range(PASSES):
        run = subprocess.run(
            script, stdout=subprocess.PIPE, check=True, timeout=600, env=environment
        )
        found, slowed, slept = {}, {}, {}
        for ranks, measured in json.loads(run.stdout).items():
            for rows in zip(*measured, strict=True):  # one of each rank
                row = rows[0]
                key = (int(ranks), row["strategy"], row["link"])
                steps = [Step(**each["step"]) for each in rows]
                seconds = predicted(row["strategy"], as_link(RATES[row["link"]]), steps)
                found[key] = seconds / steps[0].total - 1
                slowed[key], slept[key] = row["real"], row["emulated"]
        prediction = merged(max, prediction, found)
        real, emulated = merged(min, real, slowed), merged(min, emulated, slept)
        emulation = {key: emulated[key] / real[key] - 1 for key in real}
        if max(middle(prediction), middle(emulation)) <= MOST:
            break
    return prediction, emulation


def test_links_that_the_kernel_throttles(throttled):
    prediction, _ = throttled
    print(report(prediction))
    assert middle(prediction) <= MOST, report(prediction)
    # A queue's burst passes at once, and the payload's share is the largest possible.
    assert max(prediction.values()) <= 0.05, report(prediction)


def test_an_emulated_link_takes_as_long_as_a_throttled_one(throttled):
    _, emulation = throttled
    print(report(emulation))
    assert middle(emulation) <= MOST, report(emulation)
