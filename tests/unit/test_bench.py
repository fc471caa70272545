"""The benchmark: its rows and table. How fast anything is, no test asserts."""

import io
import json

import pytest
from rich.console import Console

from zerolab.cli import main
from zerolab.runtime.failure import RankError
from zerolab.runtime.wire import own_loopback
from zerolab.teaching.tables import bench_notes, bench_table
from zerolab.training.bench import BARS, Figures, Row, bench
from zerolab.training.engines import ENGINES
from zerolab.training.gpt import GPTShape

TINY = GPTShape(vocabulary=32, context=8, layers=2, heads=2, width=16)
FIGURES = {"step_seconds", "cpu_seconds", "peak_bytes", "wire_bytes"}
OURS, PEER = Figures(0.6, 0.9, 300, 75.0), Figures(1.0, 1.0, 300, 100.0)


def row(ours: str, peer: str, figures: Figures = OURS) -> Row:
    measured = {ours: figures, peer: PEER}
    return Row(ours, peer, 2, 128, measured, figures.over(PEER), BARS[ours, peer])


def test_a_tiny_run_gives_a_row_of_every_figure():
    made = []
    (found,) = bench(
        [("zero3", "fsdp2")],
        ranks=[2],
        tokens=[8],
        rounds=1,
        shape=TINY,
        steps=1,
        on_measurement=lambda: made.append("once"),
    )
    assert len(made) == 4
    as_json = found.as_dict()
    assert list(as_json) == [
        "ours",
        "peer",
        "ranks",
        "tokens",
        "measured",
        "ratio",
        "bar",
        "missed",
    ]
    assert set(as_json["measured"]) == {"zero3", "fsdp2"}
    for figures in (*as_json["measured"].values(), as_json["ratio"], as_json["bar"]):
        assert set(figures) == FIGURES
    for figures in as_json["measured"].values():
        assert min(value for value in figures.values() if value is not None) > 0
    if own_loopback():  # on a shared one, other programs' bytes would drown these few
        # FSDP 2 gathers as often, but its reduce-scatter is gloo's, and that is an all-reduce.
        assert found.ratio.wire_bytes < 1


def test_a_figure_is_missed_above_its_bar_by_a_hundredth():
    assert row("zero3", "fsdp2").missed == ["peak_bytes"]  # 1.00 over 0.95
    assert row("ddp", "torch-ddp", Figures(1.004, 9.0, 200, 100.4)).missed == []
    assert row("ddp", "torch-ddp", Figures(1.006, 9.0, 200, 100.6)).missed == [
        "step_seconds",
        "wire_bytes",
    ]


def test_what_nothing_counts_has_no_ratio_and_misses_no_bar():
    uncounted = row("ddp", "torch-ddp", Figures(0.9, 0.9, 200, None))
    assert uncounted.ratio.wire_bytes is None
    assert uncounted.missed == []
    assert "nothing counts" in bench_notes([uncounted], [])


def test_the_table_shows_bars_above_ratios_and_marks_the_missed():
    rows = [row("zero3", "fsdp2"), row("ddp", "torch-ddp")]
    console = Console(file=io.StringIO(), width=80)
    console.print(bench_table(rows))
    lines = console.file.getvalue().splitlines()
    bars, ratios = (next(line for line in lines if text in line) for text in ("zero3 /", "128"))
    assert bars.split() == ["zero3", "/", "fsdp2", "at", "most", "0.80", "–", "0.95", "0.76"]
    assert ratios.split() == ["2", "128", "0.60", "0.90", "1.00", "✗", "0.75"]
    notes = bench_notes(rows, [("zero1", "deepspeed1")])
    assert "0 of 2" in notes
    assert "NOT MEASURED" in notes
    assert "zero1 / deepspeed1" in notes


def test_every_bar_is_for_an_engine_there_is():
    assert {name for pair in BARS for name in pair} <= set(ENGINES)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [(RankError("fsdp2 failed"), 1, "zerolab: fsdp2 failed"), (KeyboardInterrupt(), 130, "inter")],
)
@pytest.mark.parametrize("measured", [0, 1])
def test_what_is_measured_is_printed_where_the_rest_breaks_off(
    capsys, monkeypatch, error, status, said, measured
):
    def broken_off(*_, **__):
        yield from [row("zero3", "fsdp2")] * measured
        raise error

    monkeypatch.setattr("zerolab.training.bench.bench", broken_off)
    command = ["bench", "--pairs", "zero3/fsdp2,ddp/torch-ddp", "--ranks", "2", "--tokens", "128"]
    assert main(command) == status
    out, err = capsys.readouterr()
    assert said in err
    assert ("BROKEN OFF after 1 of 2 lines" in " ".join(out.split())) == bool(measured)
    assert ("zero3 / fsdp2" in out) == bool(measured)
    assert main([*command, "--json"]) == status
    printed = capsys.readouterr().out
    assert [one["ours"] for one in json.loads(printed or "[]")] == ["zero3"] * measured


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pairs", "zero3"], "--pairs: got 'zero3'; accepted is two engines with a slash"),
        (["--pairs", "zero3/fsdp3"], "--pairs: got 'fsdp3'; accepted is one of fsdp2,"),
        (["--ranks", "2,x"], "--ranks: got 'x'; accepted is a whole number from 1"),
        (["--tokens", "100"], "--tokens: got 100; accepted is a multiple of the context of 128"),
        (["--rounds", "0"], "--rounds: got '0'; accepted is a whole number from 1"),
        (
            ["--pairs", "ddp/torch-ddp,tensor_parallel/torch-tp", "--ranks", "2,3"],
            "--ranks: got 3; accepted is a number that divides the 8 heads and the vocabulary",
        ),
    ],
)
def test_wrong_input_is_one_line(capsys, arguments, words):
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert words in error
