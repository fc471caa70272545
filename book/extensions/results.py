"""The results as they were measured, from book/data: `{comparison}`, `{bench}` and `{verdict}`.

Each file names the command that wrote it, so the page can be made again on another machine. A
comparison in which something measured differs from its prediction is no result: it stops the build.
"""

import json
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from tables import table

from zerolab.teaching.tables import NAMES, STATES

DATA = Path(__file__).parents[1] / "data"
FIGURES = {
    "step_seconds": "time of a step",
    "cpu_seconds": "CPU time",
    "peak_bytes": "peak memory",
    "wire_bytes": "sent",
}
NEAR = 1e-4  # of a prediction: the norm of the gradients takes a few bytes of every step


class Comparison(Directive):
    """What each strategy kept and sent, and what it learned."""

    def run(self):
        data = read("compare")
        kept, sent = [], []
        for row in data["rows"]:
            name, predicted, counted = (
                row[key] for key in ("strategy", "predicted_wire_bytes", "ledger_wire_bytes")
            )
            if row["persistent"] != row["predicted"]:
                raise self.error(f"{name} keeps {row['persistent']}, not {row['predicted']}")
            if not 0 <= counted - predicted <= NEAR * predicted:
                raise self.error(f"{name} sends {counted} bytes, not {predicted}")
            sizes = [row["persistent"][state] for state in STATES]
            sizes += [sum(sizes), row["peak"]]
            kept.append([NAMES[name], *(f"{size:,}" for size in sizes)])
            sent.append([NAMES[name], f"{predicted:,}", f"{counted:,}", f"{row['loss']:.4f}"])
        return [
            command(data),
            table(("a rank keeps, bytes", *STATES, "total", "peak"), kept),
            table(("a rank sends, bytes a step", "predicted", "counted", "last loss"), sent),
        ]


class Bench(Directive):
    """Ours over theirs, at each size; and on which machine."""

    def run(self):
        data = read("bench")
        sizes = [
            [pair(row), size(row), *(mark(row, name) for name in FIGURES)] for row in data["rows"]
        ]
        bars = {pair(row): row["bar"] for row in data["rows"] if any(row["bar"].values())}
        barred = {
            name: title
            for name, title in FIGURES.items()
            if any(bar[name] is not None for bar in bars.values())
        }
        most = [[name, *(decimals(bar[figure]) for figure in barred)] for name, bar in bars.items()]
        machine = [[name, str(value)] for name, value in data["machine"].items()]
        return [
            command(data),
            table(("the machine", "is"), machine),
            nodes.paragraph("", "Ours over theirs. A star marks what is above its bar."),
            table(("ours / theirs", "ranks × tokens", *FIGURES.values()), sizes),
            nodes.paragraph("", "The bars, the most that a ratio may be:"),
            table(("ours / theirs", *barred.values()), most),
        ]


class Verdict(Directive):
    """How many of the judged figures are within their bars, and which are not."""

    def run(self):
        rows = read("bench")["rows"]
        judged = sum(
            None not in (row["bar"][figure], row["ratio"][figure])
            for row in rows
            for figure in FIGURES
        )
        missed = [
            f"{pair(row)}, {row['ranks']} ranks, {row['tokens']} tokens: "
            f"{FIGURES[figure]} {decimals(row['ratio'][figure])}, at most "
            f"{decimals(row['bar'][figure])}"
            for row in rows
            for figure in row["missed"]
        ]
        text = f"Of {judged} figures, {judged - len(missed)} are within their bars."
        if not missed:
            return [nodes.paragraph("", text)]
        items = [nodes.list_item("", nodes.paragraph("", line)) for line in missed]
        return [nodes.paragraph("", f"{text} Above are:"), nodes.bullet_list("", *items)]


def read(name: str) -> dict:
    return json.loads((DATA / f"{name}.json").read_text())


def command(data: dict) -> nodes.paragraph:
    return nodes.paragraph("", "", nodes.Text("Made by "), nodes.literal("", data["command"]))


def pair(row: dict) -> str:
    return f"{row['ours']} / {row['peer']}"


def size(row: dict) -> str:
    return f"{row['ranks']} × {row['tokens']}".replace(" ", "\N{NO-BREAK SPACE}")


def mark(row: dict, figure: str) -> str:
    return decimals(row["ratio"][figure]) + "\N{NO-BREAK SPACE}*" * (figure in row["missed"])


def decimals(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def setup(app):
    app.add_directive("comparison", Comparison)
    app.add_directive("bench", Bench)
    app.add_directive("verdict", Verdict)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
