"""Tables for the terminal and the notebook: what was predicted above what was measured."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:  # comparing needs torch, showing what was compared does not
    from zerolab.training.bench import Row as BenchRow
    from zerolab.training.compare import Row
    from zerolab.training.versus import Comparison, Side

NAMES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}
STATES = ("parameters", "gradients", "optimizer")


def versus_table(found: Sequence["Comparison"]) -> Table:
    """ZeRO-3 beside tensor parallelism, two lines for each number of tokens a step."""
    table = empty_table(
        "tokens", "", "kept,\nMB", "alive,\nMB", "sent,\nMB", "messages", "step,\nms", "waits,\nms"
    )
    table.columns[1].justify = "left"
    for comparison in found:
        for name, side in (("ZeRO-3", comparison.zero3), ("tensor", comparison.tensor_parallel)):
            table.add_row(
                f"{comparison.tokens:,}" if name == "ZeRO-3" else "",
                name,
                _mb(side.persistent),
                _mb(side.activations),
                _mb(side.wire_bytes),
                f"{side.messages:,}",
                f"{side.step_seconds * 1e3:.0f}",
                f"{side.waiting_seconds * 1e3:.0f}",
                end_section=name != "ZeRO-3",
            )
    return table


def versus_notes(found: Sequence["Comparison"]) -> str:
    """What a reader should see in the tables."""
    last = found[-1]
    zero3, tensor = last.zero3, last.tensor_parallel
    crossings = {comparison.width: comparison.crossing_tokens for comparison in found}
    equal = ", ".join(f"{tokens:,.0f} ({width} wide)" for width, tokens in crossings.items())
    inside = [side.activations_inside / side.activations for side in (zero3, tensor)]
    return "\n".join(
        (
            f"Both send the same at so many tokens a step, by the formula: {equal}. Fewer favour "
            "tensor parallelism.",
            f"In the last line a layer's first weight is {_shape(zero3.weight_computed)} while it "
            f"computes under ZeRO-3, and {_shape(tensor.weight_computed)} under tensor "
            f"parallelism; its result is {_shape(zero3.product)} and {_shape(tensor.product)}, "
            f"tokens × features. Between layers they are {_shape(zero3.between)} and "
            f"{_shape(tensor.between)}.",
            f"Alive are activations, when forward has ended: of them {inside[0]:.0%} and "
            f"{inside[1]:.0%} inside attention and feed-forward.",
            f"Each layer's own computation waits for {zero3.inside_a_layer} and "
            f"{tensor.inside_a_layer} collectives a step. Of the time that collectives take, "
            f"{_waited(zero3)} and {_waited(tensor)} is waiting; without gathering ahead ZeRO-3's "
            f"step takes {zero3.step_seconds_in_turn / zero3.step_seconds:.2f}× as long.",
            "Times are this machine's: compare them as ratios only.",
        )
    )


def _waited(side: "Side") -> str:
    return f"{side.waiting_seconds / side.communication_seconds:.0%}"


def comparison_table(rows: Sequence["Row"]) -> Table:
    """What each strategy cost, a column a strategy. Bytes are those of one rank, in MB."""
    table = empty_table("on a rank", "", *(NAMES[row.strategy] for row in rows))
    table.columns[1].justify = "left"

    def line(quantity: str, source: str, cells: Iterable[str], last: bool = True) -> None:
        table.add_row(quantity, source, *cells, end_section=last)

    for state in STATES:
        predicted, measured = (
            [_mb(getattr(states, state)) for states in side]
            for side in ([row.predicted for row in rows], [row.persistent for row in rows])
        )
        line(f"{state}, MB", "predicted", predicted, last=False)
        line("", "measured", measured)
    line("peak, MB", "measured", (_mb(row.peak) for row in rows))
    line(
        "sent a step, MB", "predicted", (_mb(row.predicted_wire_bytes) for row in rows), last=False
    )
    line("", "measured", (_mb(row.wire_bytes) for row in rows))
    line("loss, nats a byte", "last step", (f"{row.loss:.3f}" for row in rows), last=False)
    line("", "held-out", (f"{row.held_out_loss:.3f}" for row in rows))
    line("step time, ms", "median", (f"{row.step_seconds * 1e3:.0f}" for row in rows))
    return table


def comparison_notes(rows: Sequence["Row"]) -> str:
    """What a reader should know of the table, a line each."""
    return "\n".join(
        (
            f"{_states_note(rows)} {_padding_note(rows[0])}",
            _wire_note(rows),
            f"Knowing only how often each byte occurs, a model would reach a held-out loss of "
            f"{rows[0].unigram_entropy:.3f}.",
            "Step times are this machine's: compare them as ratios only.",
        )
    )


def bench_table(rows: Sequence["BenchRow"]) -> Table:
    """Ratios of ours over the peer, a section a pair: its bars, and a line for each size."""
    table = empty_table("ours / peer", "ranks", "tokens", "step time", "CPU", "peak", "wire")
    names = ("step_seconds", "cpu_seconds", "peak_bytes", "wire_bytes")
    for index, row in enumerate(rows):
        pair = (row.ours, row.peer)
        before, after = (rows[i : i + 1] if i >= 0 else [] for i in (index - 1, index + 1))
        if not any(pair == (other.ours, other.peer) for other in before):
            bars = (getattr(row.bar, name) for name in names)
            table.add_row(" / ".join(pair), "at most", "", *map(_ratio, bars))
        cells = (
            _ratio(getattr(row.ratio, name)) + (" ✗" if name in row.missed else "  ")
            for name in names
        )
        last = not any(pair == (other.ours, other.peer) for other in after)
        table.add_row("", str(row.ranks), str(row.tokens), *cells, end_section=last)
    return table


def bench_notes(rows: Sequence["BenchRow"], left_out: Sequence[tuple[str, str]]) -> str:
    """The verdict, and what a reader should know of the table."""
    missed = [row for row in rows if row.missed]
    verdict = f"{len(rows) - len(missed)} of {len(rows)} lines are within all their bars."
    notes = [f"{verdict} ✗ marks a ratio above its bar." if missed else verdict]
    if any(row.ratio.wire_bytes is None for row in rows):
        notes.append("Here nothing counts the bytes on the wire.")
    if left_out:
        pairs = ", ".join(" / ".join(pair) for pair in left_out)
        notes.append(f"NOT MEASURED, because DeepSpeed is not installed: {pairs}.")
    return "\n".join(notes)


def _states_note(rows: Sequence["Row"]) -> str:
    wrong = [NAMES[row.strategy] for row in rows if row.persistent != row.predicted]
    if wrong:
        return f"Parameters, gradients or optimizer of {', '.join(wrong)} are NOT as predicted."
    return "Parameters, gradients and optimizer are as predicted, to the byte."


def _padding_note(row: "Row") -> str:
    if row.padding:
        return f"Padding to multiples of {row.ranks}: {row.padding:,} elements, counted in both."
    return f"No padding: every unit divides by {row.ranks}."


def _wire_note(rows: Sequence["Row"]) -> str:
    if rows[0].ranks == 1:
        return "One rank sends nothing."
    if rows[0].wire_bytes is None:
        counts = ", ".join(f"{NAMES[row.strategy]} {_mb(row.ledger_wire_bytes)}" for row in rows)
        return f"Here nothing counts the bytes on the wire; our collectives sent, in MB: {counts}."
    excess = max((row.wire_bytes or 0) / row.predicted_wire_bytes - 1 for row in rows)
    reason = "headers included" if excess < 0.01 else "other programs use it too"
    return f"On the wire the kernel counted {excess:+.1%} against the prediction: {reason}."


def empty_table(first: str, *headings: str) -> Table:
    """An empty table whose first column is text and whose others are numbers."""
    table = Table(box=box.SIMPLE_HEAD)
    for index, heading in enumerate((first, *headings)):
        longest = max(map(len, heading.split()), default=0)  # headings wrap between words only
        table.add_column(heading, justify="right" if index else "left", min_width=longest)
    return table


def _mb(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e6:,.3f}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _shape(sizes: Sequence[int]) -> str:
    return " × ".join(map(str, sizes))
