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
    from zerolab.training.versus import Comparison

# Okabe and Ito's palette; the lightness differs too, so that it prints in grey.
COLOURS = {"parameters": "#0072B2", "gradients": "#E69F00", "optimizer": "#56B4E9"}
WIRE = "#009E73"
SIDE_NAMES = {"zero3": "ZeRO-3", "tensor_parallel": "tensor parallelism"}
SIDE_COLOURS = {"zero3": "#0072B2", "tensor_parallel": "#E69F00"}
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


def versus_figure(found: Sequence["Comparison"]) -> Figure:
    """What each sends, by width, on the left; how long a step takes, by link, on the right."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    wire, time = figure.subplots(1, 2)
    figure.suptitle(versus_finding(found), fontweight="bold")
    widths = list(dict.fromkeys(point.width for point in found))
    links = list(dict.fromkeys(point.link for point in found))
    for width, style in zip(widths, _styles(len(widths)), strict=True):
        points = [p for p in found if p.width == width and p.link == links[0]]
        sent = {side: [getattr(p, side).wire_bytes / 1e6 for p in points] for side in SIDE_NAMES}
        _both(wire, points, sent, style, f"{width} wide")
        wire.vlines(points[0].crossing_tokens, 0, sent["zero3"][0], color=MARK, ls=style[1])
    wire.set_title("On the wire; upright lines: equal, by the formula", fontsize="medium")
    wire.set_ylabel("MB sent by a rank in a step")
    for link, style in zip(links, _styles(len(links)), strict=True):
        points = [p for p in found if p.link == link and p.width == widths[-1]]
        took = {side: [getattr(p, side).step_seconds * 1e3 for p in points] for side in SIDE_NAMES}
        _both(time, points, took, style, f"link: {link}")
    time.set_title(f"Time, {widths[-1]} wide", fontsize="medium")
    time.set_ylabel("ms a step")
    for axes in (wire, time):
        axes.set_xlabel("tokens a step, all ranks together")
        axes.set_xlim(0)
        axes.set_ylim(0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", fontsize="small", frameon=False)
        axes.set_ylim(top=1.35 * axes.get_ylim()[1])  # room for the legend
    return figure


def versus_finding(found: Sequence["Comparison"]) -> str:
    """What the figure shows, in one line."""
    crossings = {point.width: point.crossing_tokens for point in found}
    each = " and ".join(f"{tokens:,.0f}" for tokens in crossings.values())
    wide = " and ".join(map(str, crossings))
    return f"Beyond {each} tokens a step ({wide} wide) ZeRO-3 sends less"


def _styles(count: int) -> list[tuple[str, str]]:
    """A marker and a line style for each of several curves."""
    styles = [("o", "-"), ("s", "--"), ("^", ":"), ("D", "-.")]
    return [styles[index % len(styles)] for index in range(count)]


def _both(
    axes: Axes,
    points: Sequence["Comparison"],
    values: dict[str, list[float]],
    style: tuple[str, str],
    label: str,
) -> None:
    """A curve for each side, over the tokens of a step."""
    marker, line = style
    for side, name in SIDE_NAMES.items():
        axes.plot(
            [point.tokens for point in points],
            values[side],
            marker=marker,
            ls=line,
            color=SIDE_COLOURS[side],
            label=f"{name}, {label}",
        )


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
