"""The calculator in the book: directives, and the data that its scripts compute with.

    ```{calculator}
    :model: llama-2-7b
    :hide: gpu, precision
    ```

Options are the controls of zerolab.teaching.controls, and `hide`, which names controls to leave
out. Names, bytes and shapes are written from zerolab.accounting at each build, so that page and
package cannot differ; so is the table that stands in the calculator's place where scripts are off.
Only pages that have a calculator load the scripts. `{gpus}` is the table of GPUs that it knows.
"""

import json
import re
from dataclasses import asdict
from html import escape
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive, directives

from zerolab.accounting import (
    GPUS,
    LINKS,
    MODELS,
    PRECISIONS,
    SHARDING,
    STRATEGIES,
    InputError,
    gibibytes,
    gigabytes,
    model_states,
    peak,
    persistent_states,
)
from zerolab.accounting.errors import unknown_name
from zerolab.accounting.models import Shape
from zerolab.accounting.quantities import MOST_PARAMETERS, MOST_RANKS
from zerolab.accounting.step_time import EFFICIENCY
from zerolab.accounting.tensor_parallel import replicated, unit_sizes
from zerolab.accounting.traffic import PASSES
from zerolab.teaching.calculator import duration, time_parts, traffic
from zerolab.teaching.controls import CONTROLS, NO_YES, OWN, Asked, Control, Controls
from zerolab.teaching.tables import NAMES, STATES

SCRIPTS = ("calculator-data.js", "calculator-accounting.js", "calculator.js")
SOURCES = Path(__file__).parent

# What the formulas of activations and step times ask of a shape, beside the sizes of its units.
FIELDS = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_size",
    "feed_forward",
    "vocabulary",
    "positions",
    "rotary",
    "gated",
    "relu",
    "block_norms",
    "embedding_norm",
    "final_norm",
    "active_experts",
    "embedding",
    "block",
    "output",
)
MORE = (
    "rms",  # else LayerNorm
    "query_key_rows",  # that are normed by themselves, 0 for none
    "idle",  # of a block, what no token passes through
    "replicated_embedding",  # what every tensor-parallel rank holds
    "replicated_block",
    "replicated_output",
)


def calculator_data() -> dict:
    """What the scripts have to know of zerolab; sizes are bytes, times seconds."""
    return {
        "mostParameters": MOST_PARAMETERS,
        "mostRanks": MOST_RANKS,
        "efficiency": EFFICIENCY,
        "strategies": {
            name: {
                "shards": {state: int(how == "shard") for state, how in kept._asdict().items()},
                "passes": PASSES[name]._asdict(),
            }
            for name, kept in SHARDING.items()
        },
        "precisions": {
            name: dict(
                zip(STATES, (policy.parameter, policy.gradient, policy.optimizer), strict=True)
            )
            | {"master": policy.master}
            for name, policy in PRECISIONS.items()
        },
        "shapeFields": [*FIELDS, *MORE],
        "models": {name: shape_row(shape) for name, shape in MODELS.items()},
        "gpus": {one.name: [one.memory, int(one.flops / 1e12)] for one in GPUS.values()},
        "links": {one.name: [one.latency, int(one.bandwidth)] for one in LINKS.values()},
        "defaults": {name: written(value) for name, value in asdict(Controls()).items()},
        "controls": {
            name: [control.label, control.group, choices(control), control.most]
            for name, control in CONTROLS.items()
        },
    }


def choices(control: Control) -> dict[str, str] | list[str] | str | None:
    """A menu's values and labels; where the labels are the values, or the names of a table, those.

    The entry for an own number is the script's.
    """
    if control.choices is None:
        return None
    texts = {written(value): label for value, label in control.choices.items() if value != OWN}
    if any(value != label for value, label in texts.items()):
        return texts
    tables = {"models": MODELS, "gpus": GPUS, "links": LINKS}
    return next((name for name, rows in tables.items() if [*rows] == [*texts]), [*texts])


def shape_row(shape: Shape) -> list[int]:
    """A shape in the order of `shapeFields`; yes and no are 1 and 0."""
    rows = {"none": 0, "all heads": 2, "head": shape.heads + shape.kv_heads}[shape.query_key_norm]
    idle = (shape.experts - shape.active_experts) * shape.one_feed_forward
    embedding, block, *_, output = replicated(shape)
    known = (getattr(shape, name) for name in FIELDS)
    more = (shape.norm == "rms", rows, idle, embedding, block, output)
    return [int(value) for value in (*known, *more)]


def written(value: object) -> str:
    """A control's value as it stands in a page's address."""
    return NO_YES[value] if isinstance(value, bool) else "" if value is None else str(value)


def read(given: dict[str, str]) -> Asked:
    """The set-up that options ask for. Raises InputError for what the script would pass over."""
    for name in given.get("hide", "").replace(",", " ").split():
        if name not in CONTROLS:
            raise unknown_name("hide", name, CONTROLS)
    values: dict[str, object] = {name: value for name, value in given.items() if name != "hide"}
    for name, text in given.items():
        if name in CONTROLS and CONTROLS[name].most is not None:
            if not text.isdecimal():
                raise InputError(name, text, "a whole number")
            values[name] = int(text)
        elif name in CONTROLS and CONTROLS[name].choices is NO_YES:
            words = {label: value for value, label in NO_YES.items()}
            if text not in words:
                raise unknown_name(name, text, words)
            values[name] = words[text]
    return Controls(**values).asked()


def static_table(given: dict[str, str]) -> str:
    """The set-up's figures under every strategy, as HTML that needs no script; GB if not said."""
    asked = read(given)
    rows = [static_row(asked.with_strategy(strategy)) for strategy in STRATEGIES]
    ranks, device = asked.chosen.ranks, asked.gpu
    caption = (
        f"GB on each of {ranks:,} ranks for {asked.parameters:,} parameters in precision "
        f"{asked.chosen.precision}, against {gigabytes(device.memory)} ({gibibytes(device.memory)})"
        f" of {device.name}"
    )
    head = "".join(f'<th scope="col">{heading}</th>' for heading in rows[0])
    body = "".join(
        f'<tr><th scope="row">{row.pop("strategy")}</th>'
        f"{''.join(f'<td>{cell}</td>' for cell in row.values())}</tr>"
        for row in rows
    )
    return (
        '<div style="overflow-x: auto; margin-bottom: 1rem"><table style="text-align: right">'
        f'<caption style="text-align: left">{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def static_row(asked: Asked) -> dict[str, str]:
    """One strategy's cells by heading; a peak only where the set-up has one."""
    chosen = asked.chosen
    how = (chosen.strategy, chosen.ranks, chosen.precision)
    if asked.setup:
        sizes = unit_sizes(asked.setup.shape, asked.setup.batch.tensor_parallel)
        states = persistent_states(sizes, *how)
    else:
        states = model_states(asked.parameters, *how)
    row = {"strategy": NAMES[chosen.strategy]}
    row |= {name: f"{getattr(states, name) / 1e9:,.2f}" for name in STATES}
    alive = states.total
    row |= {"states": f"{alive / 1e9:,.2f}", "GiB": f"{alive / 2**30:,.2f}"}
    if asked.setup:
        alive = peak(asked.setup).total
        row |= {"peak": f"{alive / 1e9:,.2f}", "peak, GiB": f"{alive / 2**30:,.2f}"}
    times = time_parts(asked)
    return row | {
        "sent": f"{traffic(asked).bytes / 1e9:,.2f}",
        "step" if asked.setup else "sending": duration(sum(times.values())),
        "fits": "yes" if alive <= asked.gpu.memory else "no",
    }


class calculator(nodes.General, nodes.Element):
    """A node of its own, so that a page can be asked whether it has one."""


class CalculatorDirective(Directive):
    option_spec = dict.fromkeys(("name", *CONTROLS, "hide"), directives.unchanged)

    def run(self):
        given = {name: value for name, value in self.options.items() if name != "name"}
        try:
            table = static_table(given)
        except InputError as error:
            raise self.error(str(error)) from None
        attributes = {"id": self.options["name"]} | given if "name" in self.options else given
        return [calculator(given=attributes, table=table)]


class GpusDirective(Directive):
    """A table of the GPUs' memory, with where each figure is from."""

    def run(self):
        rows = "".join(
            f'<tr><th scope="row">{one.name}</th><td>{one.memory // 2**20:,}</td>'
            f"<td>{one.memory / 1e9:,.2f}</td><td>{one.memory / 2**30:,.2f}</td>"
            f'<td style="min-width: 12rem">{escape(one.memory_source)}</td></tr>'
            for one in GPUS.values()
        )
        names = ("GPU", "MiB", "GB", "GiB", "source")
        head = "".join(f'<th scope="col">{name}</th>' for name in names)
        table = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
        # As the theme wraps its own tables: a wide one scrolls by itself, by keyboard too.
        container = '<div class="pst-scrollable-table-container"><table class="table">'
        return [nodes.raw("", f"{container}{table}</table></div>", format="html")]


def visit_html(self, node):
    written = "".join(f' {name}="{escape(value)}"' for name, value in node["given"].items())
    table = f"<noscript>{node['table']}</noscript>"
    self.body.append(f"<zero-calculator{written}>{table}</zero-calculator>\n")
    raise nodes.SkipNode


def load_scripts(app, pagename, templatename, context, doctree):
    if doctree is not None and next(doctree.findall(calculator), None) is not None:
        for script in SCRIPTS:
            app.add_js_file(script, defer="defer")


def write_scripts(app):
    """Before any page, so that each can name a script by what is in it."""
    if app.builder.format != "html":
        return
    folder = app.outdir / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    data = json.dumps(calculator_data(), separators=(",", ":"))
    (folder / SCRIPTS[0]).write_text(f"zerolabCalculatorData={data};\n")
    for script in SCRIPTS[1:]:
        (folder / script).write_text(lean((SOURCES / script).read_text()))


def lean(script: str) -> str:
    """Without indentation, comments and the spaces about operators: a fifth less to load."""
    script = re.sub(r" // .*", "", script)
    script = re.sub(r" (=>|===|=|&&|\?\?|\+) ", r"\1", script)
    lines = (line.strip() for line in script.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith(("//", "/**")))


def setup(app):
    app.add_node(calculator, html=(visit_html, None))
    app.add_directive("calculator", CalculatorDirective)
    app.add_directive("gpus", GpusDirective)
    app.connect("html-page-context", load_scripts)
    app.connect("builder-inited", write_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
