"""Tables for directives that write one from data."""

import re
from collections.abc import Iterable, Sequence

from docutils import nodes

NUMBER = re.compile(r"[\d.,]+\b.*")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> nodes.table:
    """A table of plain text; what begins with a digit stands at the right."""
    group = nodes.tgroup(cols=len(headings))
    group += [nodes.colspec(colwidth=1) for _ in headings]
    body = [_row(row) for row in rows]
    group += nodes.thead("", _row(headings))
    group += nodes.tbody("", *body)
    return nodes.table("", group)


def _row(cells: Sequence[str]) -> nodes.row:
    return nodes.row("", *map(_entry, cells))


def _entry(text: str) -> nodes.entry:
    classes = ["text-right"] if NUMBER.fullmatch(text) else []
    return nodes.entry("", nodes.paragraph("", text), classes=classes)
