"""Tables for the terminal and the notebook: what was predicted above what was measured."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from zerolab.accounting import ModelStates, decimal_bytes
from zerolab.accounting.traffic import PASSES

if TYPE_CHECKING:  # comparing needs torch, showing what was compared does not
    from zerolab.training.compare import Row

NAMES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}
STATES = ("parameters", "gradients", "optimizer")


def states_table(states: Mapping[str, ModelStates]) -> Table:
    """Bytes of each state that a rank keeps, a line a strategy."""
    table = _table("kept on a rank", *STATES, "total")
    for strategy, kept in states.items():
        sizes = (kept.parameters, kept.gradients, kept.optimizer, kept.total)
        table.add_row(NAMES[strategy], *map(decimal_bytes, sizes))
    return table


def traffic_table(sent: Mapping[str, int]) -> Table:
    """Bytes that a rank sends in a step, a line a strategy.

    A pass is one all-gather or one reduce-scatter of everything; an all-reduce is two.
    """
    table = _table("sent by a rank", "gradients", "parameters", "bytes a step")
    for strategy, size in sent.items():
        passes = (_passes(count) for count in PASSES[strategy])
        table.add_row(NAMES[strategy], *passes, decimal_bytes(size))
    return table


def comparison_table(rows: Sequence["Row"]) -> Table:
    """What each strategy cost, a column a strategy. Bytes are those of one rank, in MB."""
    table = _table("on a rank", "", *(NAMES[row.strategy] for row in rows))
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


def _table(first: str, *headings: str) -> Table:
    table = Table(first, box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _passes(count: int) -> str:
    return "–" if count == 0 else f"{count} pass" if count == 1 else f"{count} passes"


def _mb(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e6:,.3f}"
