"""The comparison, trained for real: what it measures, what it prints, how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from zerolab.accounting import STRATEGIES, InputError
from zerolab.runtime.wire import own_loopback
from zerolab.training.compare import compare, measure
from zerolab.training.corpus import Corpus
from zerolab.training.gpt import GPTShape
from zerolab.training.train import Settings

# Sizes that no number of ranks above 1 divides.
ODD = Settings(
    steps=5, size=1, shape=GPTShape(vocabulary=257, context=16, layers=3, heads=1, width=11)
)
KEYS = [
    *("strategy", "ranks", "precision", "parameter_count", "padding"),
    *("persistent", "predicted", "peak"),
    *("wire_bytes", "ledger_wire_bytes", "predicted_wire_bytes"),
    *("loss", "held_out_loss", "unigram_entropy", "step_seconds"),
]


@pytest.fixture(scope="module")
def corpus():
    return Corpus.default()


@pytest.fixture(scope="module")
def compared(world_of, corpus):
    """Rows by number of ranks, always six sequences a step, and the steps that were reported."""
    found = {}
    for ranks in (1, 2, 3):
        steps = []
        settings = replace(ODD, size=6 // ranks)
        rows = compare(
            world_of(ranks),
            STRATEGIES,
            settings,
            corpus,
            lambda *step, steps=steps: steps.append(step),
        )
        found[ranks] = rows, steps
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_measured_states_are_the_predicted_ones(compared, ranks):
    rows, _ = compared[ranks]
    assert [row.strategy for row in rows] == list(STRATEGIES)
    for row in rows:
        assert row.persistent == row.predicted
        assert row.peak > row.persistent.total
        assert row.parameter_count == ODD.shape.parameters
        assert (row.padding > 0) == (ranks > 1)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_sent_bytes_are_the_predicted_ones_and_the_gradient_norm(compared, ranks):
    for row in compared[ranks][0]:
        norm = row.ledger_wire_bytes - row.predicted_wire_bytes
        assert 0 <= norm <= 16 * (ranks - 1)  # an all-reduce of a number or two a rank


def test_losses_depend_on_neither_strategy_nor_ranks(compared):
    reference = compared[1][0][0]
    for rows, _ in compared.values():
        for row in rows:
            assert row.loss == pytest.approx(reference.loss, abs=1e-5)
            assert row.held_out_loss == pytest.approx(reference.held_out_loss, abs=1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_step_is_reported_once_with_the_mean_loss(compared, ranks):
    rows, steps = compared[ranks]
    expected = [(row.strategy, step) for row in rows for step in range(ODD.steps)]
    assert [step[:2] for step in steps] == expected
    last = {strategy: loss for strategy, _, loss in steps}
    assert last == {row.strategy: pytest.approx(row.loss, abs=1e-5) for row in rows}


def test_earlier_runs_on_the_same_ranks_are_not_measured(world_of, corpus):
    large = replace(ODD, shape=replace(ODD.shape, width=60))
    before = measure(world_of(2), replace(ODD, strategy="zero3"), corpus)
    measure(world_of(2), replace(large, strategy="ddp"), corpus)
    after = measure(world_of(2), replace(ODD, strategy="zero3"), corpus)
    assert (after.peak, after.persistent) == (before.peak, before.persistent)


def test_the_default_run_learns_more_than_how_often_bytes_occur(world_of, corpus):
    # The default's 4 sequences a step, on 2 ranks.
    row = measure(world_of(2), Settings(steps=120, size=2, strategy="zero2"), corpus)
    assert row.held_out_loss < row.unigram_entropy - 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 2}, "--steps: got 2; accepted is a whole number from 3"),
        ({"strategy": "zero4"}, "--strategy: got 'zero4'; accepted is one of zero"),
        ({"precision": "fp8"}, "--precision: got 'fp8'; accepted is one of"),
    ],
)
def test_settings_that_cannot_be_trained_with_are_refused_where_they_are_made(change, message):
    with pytest.raises(InputError, match=message):
        replace(ODD, **change)


def command(*arguments: str) -> list[str]:
    return [*own_loopback(), sys.executable, "-m", "zerolab", *arguments]


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """One run of the command in an empty folder, without a terminal."""
    folder = tmp_path_factory.mktemp("compare")
    arguments = ("--ranks", "2", "--steps", "8", "--strategies", "ddp", "zero3", "--seed", "3")
    run = subprocess.run(
        command("compare", *arguments, "--figure", "figure.svg"),
        cwd=folder,
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    return folder, run


def test_the_command_prints_its_table_and_names_its_figure(output):
    folder, run = output
    assert "to the byte" in run.stdout
    assert run.stdout.rstrip().endswith("Figure: figure.svg")
    assert "\x1b" not in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert "ZeRO-3" in run.stderr  # the progress bars
    assert "8/8" in run.stderr
    assert os.listdir(folder) == ["figure.svg"]
    assert "ZeRO-3" in (folder / "figure.svg").read_text()


def test_json_is_a_row_a_strategy_and_nothing_else(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 99)
    extra = ("--corpus", "text.txt", "--precision", "mixed")
    run = subprocess.run(
        command("compare", "--ranks", "2", "--steps", "12", "--json", *extra),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(run.stdout)
    assert [row["strategy"] for row in rows] == list(STRATEGIES)
    for row in rows:
        assert list(row) == KEYS
        assert list(row["persistent"]) == ["parameters", "gradients", "optimizer"]
        assert row["persistent"] == row["predicted"]
        assert row["ranks"] == 2
        assert row["wire_bytes"] == pytest.approx(row["predicted_wire_bytes"], rel=0.01)
    assert os.listdir(tmp_path) == ["text.txt"]


def test_train_is_one_row(tmp_path):
    run = subprocess.run(
        command("train", "--strategy", "zero1", "--ranks", "1", "--steps", "3", "--json"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    row = json.loads(run.stdout)
    assert list(row) == KEYS
    assert (row["strategy"], row["ranks"], row["wire_bytes"]) == (
        "zero1",
        1,
        pytest.approx(0, abs=999),
    )
    assert os.listdir(tmp_path) == []


def test_an_interrupt_ends_it_with_130_and_no_traceback(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "zerolab", "compare", "--ranks", "2", "--steps", "100000"],
        cwd=tmp_path,
        env=os.environ | {"FORCE_COLOR": "1"},  # progress as it happens
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while b"1/100000" not in process.stderr.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in error
    assert error.rstrip().endswith(b"zerolab: interrupted")
    assert out == b""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:  # nobody of the group is left
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("processes are left behind")
    assert os.listdir(tmp_path) == []
