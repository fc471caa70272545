"""What several commands print."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerolab.training.compare import Row


def print_json(value: Any) -> int:
    print(json.dumps(value, indent=2))
    return 0


def print_parts(*parts: Any) -> int:
    """Tables and text, for a reader."""
    from rich.console import Console

    Console(highlight=False).print(*parts)
    return 0


def setting(parameters: int, precision: str, ranks: int) -> str:
    return f"{parameters:,} parameters, {precision}, {ranks:,} rank{'s' * (ranks > 1)}"


def print_rows(rows: "Sequence[Row]") -> int:
    """The rows of `compare` and `train`, as a table."""
    from zerolab.teaching.tables import comparison_notes, comparison_table

    first = rows[0]
    of = setting(first.parameter_count, first.precision, first.ranks)
    return print_parts(f"A GPT of {of}", comparison_table(rows), comparison_notes(rows))


def on_paper_json(parameters: int, ranks: int, precision: str, strategies: dict[str, Any]) -> dict:
    return {
        "parameters": parameters,
        "ranks": ranks,
        "precision": precision,
        "strategies": strategies,
    }
