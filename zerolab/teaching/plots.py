"""Figures: each with a title that states its finding, and colours that survive colour blindness."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zerolab.accounting import InputError
from zerolab.teaching.tables import NAMES, STATES

if TYPE_CHECKING:
    from zerolab.training.compare import Row

# Okabe and Ito's palette; the lightness differs too, so that it prints in grey.
COLOURS = {"parameters": "#0072B2", "gradients": "#E69F00", "optimizer": "#56B4E9"}
WIRE = "#009E73"
MARK = "black"

FORMATS = (".png", ".svg", ".pdf")


def comparison_figure(rows: Sequence["Row"]) -> Figure:
    """Persistent and peak bytes of a rank on the left, bytes on the wire on the right."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    memory, wire = figure.subplots(1, 2, width_ratios=(3, 2))
    figure.suptitle(finding(rows), fontweight="bold")
    _memory(memory, rows)
    _wire(wire, rows)
    return figure


def finding(rows: Sequence["Row"]) -> str:
    """What the figure shows, in one line."""
    first, last = rows[0], rows[-1]
    if len(rows) == 1 or first.ranks == 1:
        return f"{NAMES[last.strategy]} keeps {last.persistent.total / 1e6:.1f} MB on each rank"
    kept = last.persistent.total / first.persistent.total
    sent = last.predicted_wire_bytes / first.predicted_wire_bytes
    return (
        f"{NAMES[last.strategy]} keeps {kept:.0%} of {NAMES[first.strategy]}'s bytes "
        f"on each of {first.ranks} ranks, and sends {sent:.1f}× as many"
    )


def _memory(axes: Axes, rows: Sequence["Row"]) -> None:
    places = range(len(rows))
    below = [0.0] * len(rows)
    for state in STATES:
        sizes = [getattr(row.persistent, state) / 1e6 for row in rows]
        axes.bar(places, sizes, 0.6, below, color=COLOURS[state], label=f"{state}, measured")
        below = [low + size for low, size in zip(below, sizes, strict=True)]
    _predicted(axes, [row.predicted.total for row in rows], "sum of the three, predicted")
    peaks = [row.peak / 1e6 for row in rows]
    axes.plot(places, peaks, "D", color=MARK, markerfacecolor="white", label="peak, measured")
    _finish(axes, rows, "MB on a rank", "Memory: persistent and peak")
    axes.set_ylim(top=1.45 * max(peaks))  # room for the legend
    bars, rest = axes.containers, axes.get_legend_handles_labels()[0][: -len(STATES)]
    axes.legend(
        handles=[*reversed(bars), *rest],
        loc="upper right",
        fontsize="small",
        ncols=2,
        frameon=False,
    )


def _wire(axes: Axes, rows: Sequence["Row"]) -> None:
    measured = [row.ledger_wire_bytes if row.wire_bytes is None else row.wire_bytes for row in rows]
    counted = "our collectives'" if rows[0].wire_bytes is None else "the kernel's"
    bars = [size / 1e6 for size in measured]
    axes.bar(range(len(rows)), bars, 0.6, color=WIRE, label=f"{counted} count")
    _predicted(axes, [row.predicted_wire_bytes for row in rows], "predicted")
    _finish(axes, rows, "MB sent by a rank in a step", "On the wire")
    axes.set_ylim(top=1.45 * max(*bars, 1e-6))
    axes.legend(loc="upper right", fontsize="small", frameon=False)


def _predicted(axes: Axes, sizes: Sequence[int], label: str) -> None:
    """A line across each bar, a little wider than it."""
    heights = [size / 1e6 for size in sizes]
    left, right = ([place + side for place in range(len(sizes))] for side in (-0.38, 0.38))
    axes.hlines(heights, left, right, color=MARK, lw=2, label=label)


def _finish(axes: Axes, rows: Sequence["Row"], unit: str, title: str) -> None:
    axes.set_xticks(range(len(rows)), [NAMES[row.strategy] for row in rows])
    axes.set_ylabel(unit)
    axes.set_title(title, fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)


def check_figure_file(path: Path) -> None:
    """Raises InputError unless a figure can be saved there; called before the work, not after."""
    if path.suffix not in FORMATS:
        raise InputError("--figure", str(path), f"a file name ending in {', '.join(FORMATS)}")
    if path.is_dir():
        raise InputError("--figure", str(path), "a file, and this is a folder")
    try:
        # Permission bits do not tell: root passes them all, and a disk may be mounted read-only.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        wanted = f"a file in a folder that can be written; {path.parent} cannot: {error.strerror}"
        raise InputError("--figure", str(path), wanted) from None


def save(figure: Figure, path: Path) -> None:
    """Save in the format of the file's ending: the whole figure, or nothing."""
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        figure.savefig(aside, dpi=150)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
