"""The step-through in the book: a directive, the data of its script, and what stands in for it.

    ```{step-through}
    :strategy: zero3
    ```

Without an option it has every strategy that was recorded, and the reader chooses. All of it comes
from assets/recorded-step.json, whose frames `zerolab.teaching.frame_check` has to accept: a page
cannot show bytes that do not add up. A figure and a table are written into the page, for readers
without scripts and for screen readers; assets/step-through.js plays the frames above them.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from html import escape
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive, directives

from zerolab.accounting import decimal_bytes
from zerolab.accounting.errors import unknown_name
from zerolab.teaching.frame_check import check, expect
from zerolab.teaching.frames import HELD, TITLES, Frame, Recording, frames
from zerolab.teaching.predictions import RANK, predictions

ASSETS = Path(__file__).parents[1] / "assets"
RECORDING = "recorded-step.json"
SCRIPTS = ("step-through-data.js", "step-through.js")
PHASES = ("forward", "backward", "step")
COLUMNS = ("frame", "what", "why", "sent", "freed", *HELD)

# Okabe and Ito's palette, as in the book's other figures.
COLOURS = {
    "parameters": "#0072b2",
    "gradients": "#e69f00",
    "optimizer": "#56b4e9",
    "gathered": "#cc79a7",
    "activations": "#999999",
    "sent": "#009e73",
}
HEIGHT, WIRE = 100, 26  # of the figure: memory above, what is sent below


@cache
def recording() -> Recording:
    """The committed recording. Raises ValueError where its frames do not add up."""
    found = json.loads((ASSETS / RECORDING).read_text())
    check(found)
    return found


@cache
def told(strategy: str) -> list[Frame]:
    return frames(recording(), strategy)


def data() -> dict:
    """What the script shows. A list with one entry a rank is that entry where all are equal."""
    strategies = {
        strategy: {
            "title": TITLES[strategy],
            "frames": [
                {
                    "phase": frame.phase,
                    "kind": frame.kind,
                    "label": frame.label,
                    "cause": frame.cause,
                    "sent": _once(frame.sent),
                    "freed": _once(frame.freed),
                    "live": _once([[held[name] for name in HELD] for held in frame.live]),
                }
                for frame in told(strategy)
            ],
            "predictions": {
                place: asdict(prediction)
                for place, prediction in predictions(
                    told(strategy), expect(recording(), strategy)
                ).items()
            },
        }
        for strategy in TITLES
    }
    return {
        "ranks": recording()["otherData"]["ranks"],
        "asked": RANK,
        "held": HELD,
        "largest": max(max(_sizes(strategy)) for strategy in TITLES),
        "strategies": strategies,
    }


def _once(by_rank):
    return by_rank[0] if all(one == by_rank[0] for one in by_rank) else list(by_rank)


def _sizes(strategy: str) -> Iterator[int]:
    for frame in told(strategy):
        for held in frame.live:
            yield from held.values()


def _totals(strategy: str) -> list[int]:
    """What the rank that is asked about holds, frame by frame."""
    return [sum(frame.live[RANK].values()) for frame in told(strategy)]


def figure(strategy: str) -> str:
    """What a rank holds from frame to frame, stacked, and below it what it sends. HTML with an SVG
    that is stretched to the page's width, so that it has no text of its own."""
    steps = told(strategy)
    most = max(_totals(strategy))
    highest = max(max(_totals(one)) for one in TITLES)  # one scale, so that strategies compare
    widest = max(frame.sent[RANK] for one in TITLES for frame in told(one))
    below = [0.0] * len(steps)
    shapes = []
    for name in HELD:
        tops = [
            low + frame.live[RANK][name] / highest * HEIGHT
            for low, frame in zip(below, steps, strict=True)
        ]
        shapes.append(f'<path fill="{COLOURS[name]}" d="{_band(below, tops)}"/>')
        below = tops
    wire = "".join(
        f"M{place} {HEIGHT + WIRE}v{-frame.sent[RANK] / widest * (WIRE - 4):.1f}h1V{HEIGHT + WIRE}z"
        for place, frame in enumerate(steps)
        if frame.sent[RANK]
    )
    shapes.append(f'<path fill="{COLOURS["sent"]}" d="{wire}"/>')
    firsts = [next(i for i, f in enumerate(steps) if f.phase == phase) for phase in PHASES]
    for first in firsts[1:]:
        shapes.append(
            f'<path stroke="currentColor" vector-effect="non-scaling-stroke" '
            f'd="M{first} 0V{HEIGHT + WIRE}"/>'
        )
    spans = [end - start for start, end in zip(firsts, [*firsts[1:], len(steps)], strict=True)]
    phases = "".join(
        f'<span style="flex: {span}">{phase}</span>'
        for phase, span in zip(PHASES, spans, strict=True)
    )
    key = "".join(
        f'<li><i style="background: {colour}"></i>{name}</li>' for name, colour in COLOURS.items()
    )
    sent = sum(frame.sent[RANK] for frame in steps)
    alternative = (
        f"Bytes that rank {RANK} holds in each of {len(steps)} frames, stacked by what they are, "
        "and below them what it sends."
    )
    finding = (
        f"A step of {TITLES[strategy]}: rank {RANK} holds at most {decimal_bytes(most)} and sends "
        f"{decimal_bytes(sent)} in all."
    )
    return (
        f'<figure class="step-figure" slot="figure" data-strategy="{strategy}">'
        f'<div class="step-phases" aria-hidden="true">{phases}</div>'
        f'<svg role="img" aria-label="{escape(alternative)}" preserveAspectRatio="none" '
        f'viewBox="0 0 {len(steps)} {HEIGHT + WIRE}">{"".join(shapes)}</svg>'
        f'<ul class="step-key" aria-hidden="true">{key}</ul>'
        f"<figcaption>{finding}</figcaption></figure>"
    )


def _band(low: list[float], high: list[float]) -> str:
    """The outline of a band of steps, one unit wide each, between two heights."""

    def height(value: float) -> str:
        return f"{HEIGHT - value:.1f}".removesuffix(".0")

    there = "".join(f"V{height(value)}h1" for value in high)
    back = "".join(f"V{height(value)}h-1" for value in reversed(low))
    return f"M0 {height(low[0])}{there}{back}z"


def table(strategy: str) -> str:
    """Every frame as a row: the step without a picture."""
    head = "".join(f'<th scope="col">{column}</th>' for column in COLUMNS)
    rows = "".join(
        f'<tr><th scope="row">{place}</th><td>{frame.kind} {frame.label}</td>'
        f"<td>{escape(frame.cause)}</td><td>{_bytes(frame.sent)}</td><td>{_bytes(frame.freed)}</td>"
        + "".join(f"<td>{_bytes([held[name] for held in frame.live])}</td>" for name in HELD)
        + "</tr>"
        for place, frame in enumerate(told(strategy), 1)
    )
    ranks = recording()["otherData"]["ranks"]
    caption = f"One step of {TITLES[strategy]} on {ranks} ranks, frame by frame: bytes on each rank"
    return (
        f'<details class="step-table" slot="table" data-strategy="{strategy}"><summary>'
        f"{TITLES[strategy]}: the whole step as a table</summary>"
        f'<div tabindex="0" role="region" aria-label="Frames of {TITLES[strategy]}"><table>'
        f"<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        "</div></details>"
    )


def _bytes(by_rank) -> str:
    """One number where all ranks agree, else one a rank."""
    return " / ".join(f"{size:,}" for size in (by_rank[:1] if len(set(by_rank)) == 1 else by_rank))


class step_through(nodes.General, nodes.Element):
    """A node of its own, so that a page can be asked whether it has one."""


class StepThroughDirective(Directive):
    option_spec = dict.fromkeys(("name", "strategy"), directives.unchanged)

    def run(self):
        strategy = self.options.get("strategy")
        if strategy is not None and strategy not in TITLES:
            raise self.error(str(unknown_name("strategy", strategy, TITLES)))
        return [step_through(strategy=strategy, name=self.options.get("name"))]


def visit_html(self, node):
    strategies = TITLES if node["strategy"] is None else [node["strategy"]]
    given = {"strategy": node["strategy"], "id": node["name"]}
    written = "".join(f' {name}="{escape(value)}"' for name, value in given.items() if value)
    parts = "".join(figure(strategy) + table(strategy) for strategy in strategies)
    to_root = "../" * self.builder.current_docname.count("/")
    command = recording()["otherData"]["command"]
    source = (
        f'<p class="step-source" slot="source">Recorded by <code>{command}</code>. The same file '
        'opens in <a href="https://ui.perfetto.dev">Perfetto</a>: <a class="download" '
        f'href="{to_root}_static/{RECORDING}" download="zerolab-{RECORDING}">download the '
        "recording</a>.</p>"
    )
    self.body.append(f"<zero-step{written}>{parts}{source}</zero-step>\n")
    raise nodes.SkipNode


def load_scripts(app, pagename, templatename, context, doctree):
    if doctree is not None and next(doctree.findall(step_through), None) is not None:
        for script in SCRIPTS:
            app.add_js_file(script, defer="defer")


def write_data(app, exception):
    if exception or app.builder.format != "html":
        return
    written = json.dumps(data(), separators=(",", ":"))
    static = app.outdir / "_static"
    (static / SCRIPTS[0]).write_text(f"zerolabStepData={written};\n")
    text = json.dumps((ASSETS / RECORDING).read_text())
    (static / RECORDING).with_suffix(".js").write_text(f"zerolabRecordedStep={text};\n")


def skip(self, node):
    raise nodes.SkipNode


def setup(app):
    app.add_node(step_through, html=(visit_html, None), latex=(skip, None), text=(skip, None))
    app.add_directive("step-through", StepThroughDirective)
    app.connect("html-page-context", load_scripts)
    app.connect("build-finished", write_data)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
