"""The comparison's table and figure, from rows made up here."""

import io
from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from zerolab.accounting import ModelStates
from zerolab.teaching import plots
from zerolab.teaching.tables import comparison_notes, comparison_table
from zerolab.training.compare import Row

pytestmark = pytest.mark.quick

DDP = Row(
    strategy="ddp",
    ranks=4,
    precision="fp32",
    parameter_count=1_000_000,
    padding=0,
    persistent=ModelStates(4_000_000, 4_000_000, 8_000_032),
    predicted=ModelStates(4_000_000, 4_000_000, 8_000_032),
    peak=19_500_000,
    wire_bytes=6_030_000,
    ledger_wire_bytes=6_000_024,
    predicted_wire_bytes=6_000_000,
    loss=2.5,
    held_out_loss=2.625,
    unigram_entropy=3.125,
    step_seconds=0.0423,
)
ZERO3 = replace(
    DDP,
    strategy="zero3",
    persistent=ModelStates(1_000_000, 1_000_000, 2_000_032),
    predicted=ModelStates(1_000_000, 1_000_000, 2_000_032),
    peak=7_500_000,
    wire_bytes=9_045_000,
    predicted_wire_bytes=9_000_000,
)
ROWS = [DDP, ZERO3]


def printed(*parts) -> str:
    file = io.StringIO()
    Console(file=file, width=80).print(*parts)
    return file.getvalue()


def test_predicted_stands_above_measured():
    lines = printed(comparison_table(ROWS)).splitlines()
    found = [" ".join(line.split()) for line in lines if line.strip()]
    assert found[0] == "on a rank DDP ZeRO-3"
    assert found[2:] == [
        "parameters, MB predicted 4.000 1.000",
        "measured 4.000 1.000",
        "gradients, MB predicted 4.000 1.000",
        "measured 4.000 1.000",
        "optimizer, MB predicted 8.000 2.000",
        "measured 8.000 2.000",
        "peak, MB measured 19.500 7.500",
        "sent a step, MB predicted 6.000 9.000",
        "measured 6.030 9.045",
        "loss, nats a byte last step 2.500 2.500",
        "held-out 2.625 2.625",
        "step time, ms median 42 42",
    ]


def test_five_strategies_of_a_large_model_fit_80_columns():
    large = replace(DDP, predicted=ModelStates(134_696_960, 134_696_960, 269_393_952))
    lines = printed(comparison_table([large] * 5)).splitlines()
    assert "269.394" in "\n".join(lines)
    assert "…" not in "\n".join(lines)


def test_the_notes_say_what_the_table_cannot():
    notes = comparison_notes(ROWS)
    assert "as predicted, to the byte. No padding: every unit divides by 4." in notes
    assert "the kernel counted +0.5% against the prediction: headers included." in notes
    assert "3.125" in notes


def test_the_notes_own_up():
    off_by_one_byte = replace(ZERO3, persistent=ModelStates(1_000_001, 1_000_000, 2_000_032))
    assert "optimizer of ZeRO-3 are NOT as predicted" in comparison_notes([DDP, off_by_one_byte])
    assert "+5.0%" in comparison_notes([DDP, replace(ZERO3, wire_bytes=9_450_000)])
    assert "other programs" in comparison_notes([DDP, replace(ZERO3, wire_bytes=9_450_000)])
    assert "7 elements" in comparison_notes([replace(DDP, padding=7)])
    nowhere = comparison_notes([replace(DDP, wire_bytes=None)])
    assert "nothing counts the bytes on the wire; our collectives sent, in MB: DDP 6.000" in nowhere
    assert "One rank sends nothing" in comparison_notes([replace(DDP, ranks=1)])


def test_the_figure_shows_the_rows():
    figure = plots.comparison_figure(ROWS)
    memory, wire = figure.axes
    states = [[bar.get_height() for bar in bars] for bars in memory.containers]
    assert states == [[4, 1], [4, 1], pytest.approx([8.000032, 2.000032])]
    tops = [bar.get_y() + bar.get_height() for bar in memory.containers[2]]
    (predicted,) = memory.collections
    assert [segment[0][1] for segment in predicted.get_segments()] == pytest.approx(tops)
    (peaks,) = memory.lines
    assert list(peaks.get_ydata()) == [19.5, 7.5]
    assert [bar.get_height() for bar in wire.containers[0]] == [6.03, 9.045]
    assert [label.get_text() for label in wire.get_xticklabels()] == ["DDP", "ZeRO-3"]
    assert figure.get_suptitle() == (
        "ZeRO-3 keeps 25% of DDP's bytes on each of 4 ranks, and sends 1.5× as many"
    )


def test_the_figure_falls_back_on_the_ledger():
    figure = plots.comparison_figure([replace(row, wire_bytes=None) for row in ROWS])
    wire = figure.axes[1]
    assert wire.containers[0][0].get_height() == 6.000024
    assert "our collectives' count" in [text.get_text() for text in wire.get_legend().get_texts()]


@pytest.mark.parametrize("ending", plots.FORMATS)
def test_a_figure_is_saved_in_the_format_of_its_name(tmp_path, ending):
    path = tmp_path / f"figure{ending}"
    path.write_text("an earlier one")
    plots.save(plots.comparison_figure([replace(DDP, ranks=1)]), path)
    start = path.read_bytes()[:5]
    assert start == {".png": b"\x89PNG\r", ".svg": b"<?xml", ".pdf": b"%PDF-"}[ending]
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_save_leaves_the_earlier_figure(tmp_path, monkeypatch):
    def savefig(self, file, **_):
        file.write_text("half a fig")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", savefig)
    path = tmp_path / "figure.png"
    path.write_text("an earlier one")
    with pytest.raises(OSError, match="disk full"):
        plots.save(Figure(), path)
    assert path.read_text() == "an earlier one"
    assert list(tmp_path.iterdir()) == [path]
