"""The calculator in the book: a directive, and the data that its script computes with.

    ```{calculator}
    :model: llama-2-7b
    :hide: gpu, precision
    ```

Options are the attributes of assets/calculator.js. Names, bytes and parameter counts are written
from zerolab.accounting at each build, so that page and package cannot differ; so is the table that
stands in the calculator's place where scripts are off. Only pages that have one load the script.
"""

import json
from html import escape

from docutils import nodes
from docutils.parsers.rst import Directive, directives

from zerolab.accounting import (
    GPUS,
    MODELS,
    PRECISIONS,
    SHARDING,
    InputError,
    gpu,
    model,
    model_states,
    parse_count,
    wire_bytes,
)
from zerolab.accounting.errors import unknown_name
from zerolab.accounting.quantities import MOST_PARAMETERS, MOST_RANKS
from zerolab.accounting.strategies import sharding
from zerolab.accounting.traffic import PASSES
from zerolab.teaching.tables import NAMES, STATES

SCRIPTS = ("calculator-data.js", "calculator.js")
DEFAULTS = {"model": "llama-2-7b", "precision": "mixed", "ranks": "8", "gpu": "h100-80gb"}
CONTROLS = ("model", "params", "precision", "strategy", "ranks", "gpu")
HEADINGS = ("strategy", *STATES, "total", "GiB", "sent", "fits")


def calculator_data() -> dict:
    """What the script has to know of zerolab.accounting; sizes are bytes."""
    return {
        "mostParameters": MOST_PARAMETERS,
        "mostRanks": MOST_RANKS,
        "strategies": {
            name: {"title": NAMES[name], "keeps": kept._asdict(), "passes": PASSES[name]._asdict()}
            for name, kept in SHARDING.items()
        },
        "precisions": {
            name: dict(
                zip(STATES, (policy.parameter, policy.gradient, policy.optimizer), strict=True)
            )
            for name, policy in PRECISIONS.items()
        },
        "models": {name: shape.parameters for name, shape in MODELS.items()},
        "gpus": {name: device.memory for name, device in GPUS.items()},
    }


def check(given: dict[str, str]) -> None:
    """Refuse what the script would pass over in silence. Raises InputError."""
    sharding(given.get("strategy", "ddp"))
    for control in given.get("hide", "").replace(",", " ").split():
        if control not in CONTROLS:
            raise unknown_name("hide", control, CONTROLS)
    ranks = given.get("ranks", DEFAULTS["ranks"])
    if not ranks.isdecimal():
        raise InputError("ranks", ranks, "a whole number")


def static_table(given: dict[str, str]) -> str:
    """The set-up's figures under every strategy, as HTML that needs no script; GB if not said."""
    setup = DEFAULTS | given
    params = given.get("params")
    count = parse_count(params) if params else model(setup["model"]).parameters
    ranks, precision, device = int(setup["ranks"]), setup["precision"], gpu(setup["gpu"])
    rows = []
    for strategy, title in NAMES.items():
        states = model_states(count, strategy, ranks, precision)
        sent = wire_bytes(count, strategy, ranks, precision)
        sizes = (*(getattr(states, name) / 1e9 for name in (*STATES, "total")),)
        cells = (
            *(f"{size:,.2f}" for size in (*sizes, states.total / 2**30, sent / 1e9)),
            "yes" if states.total <= device.memory else "no",
        )
        rows.append(
            f'<tr><th scope="row">{title}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        )
    caption = (
        f"GB on each of {ranks:,} ranks for {count:,} parameters in precision {precision}, against "
        f"{device.memory / 1e9:,.2f} GB ({device.memory / 2**30:,.2f} GiB) of {device.name}"
    )
    head = "".join(f'<th scope="col">{heading}</th>' for heading in HEADINGS)
    return (
        '<div style="overflow-x: auto; margin-bottom: 1rem"><table style="text-align: right">'
        f'<caption style="text-align: left">{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


class calculator(nodes.General, nodes.Element):
    """A node of its own, so that a page can be asked whether it has one."""


class CalculatorDirective(Directive):
    option_spec = dict.fromkeys(("name", *CONTROLS, "hide"), directives.unchanged)

    def run(self):
        given = {name: value for name, value in self.options.items() if name != "name"}
        try:
            check(given)
            table = static_table(given)
        except InputError as error:
            raise self.error(str(error)) from None
        attributes = {"id": self.options["name"]} | given if "name" in self.options else given
        return [calculator(given=attributes, table=table)]


def visit_html(self, node):
    written = "".join(f' {name}="{escape(value)}"' for name, value in node["given"].items())
    table = f"<noscript>{node['table']}</noscript>"
    self.body.append(f"<zero-calculator{written}>{table}</zero-calculator>\n")
    raise nodes.SkipNode


def load_scripts(app, pagename, templatename, context, doctree):
    if doctree is not None and next(doctree.findall(calculator), None) is not None:
        for script in SCRIPTS:
            app.add_js_file(script, defer="defer")


def write_data(app, exception):
    if exception or app.builder.format != "html":
        return
    written = json.dumps(calculator_data(), separators=(",", ":"))
    (app.outdir / "_static" / SCRIPTS[0]).write_text(f"zerolabCalculatorData={written};\n")


def setup(app):
    app.add_node(calculator, html=(visit_html, None))
    app.add_directive("calculator", CalculatorDirective)
    app.connect("html-page-context", load_scripts)
    app.connect("build-finished", write_data)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
