"""What several commands print."""

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerolab.training.compare import Row


def print_json(value: Any) -> int:
    print(json.dumps(value, indent=2))
    return 0


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """A heading and a line a row; bytes are integers, times seconds."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return 0


def print_parts(*parts: Any) -> int:
    """Tables and text, for a reader."""
    from rich.console import Console

    Console(highlight=False).print(*parts, sep="\n")
    return 0


def setting(parameters: int, precision: str, ranks: int) -> str:
    return f"{parameters:,} parameters, {precision}, {ranks:,} rank{'s' * (ranks > 1)}"


def print_rows(rows: "Sequence[Row]") -> int:
    """The rows of `compare` and `train`, as a table."""
    from zerolab.teaching.tables import comparison_notes, comparison_table

    first = rows[0]
    of = setting(first.parameter_count, first.precision, first.ranks)
    return print_parts(f"A GPT of {of}", comparison_table(rows), comparison_notes(rows))
