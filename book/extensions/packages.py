"""The packages that the project pins, with their licences, as a table: `{packages}`.

Read from requirements.txt and from what is installed, so that nobody has to keep a list.
"""

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from packaging.requirements import Requirement

PINS = Path(__file__).parents[2] / "requirements.txt"
OWN_CHOICE = "# What those need."  # the line that ends what the project itself asks for
LONG = 40  # characters: some packages put the licence's whole text where its name belongs
CLASSIFIER = "License :: OSI Approved :: "


class Packages(Directive):
    def run(self):
        chosen, marker, _ = PINS.read_text().partition(OWN_CHOICE)
        if not marker:
            raise self.error(f"{PINS.name} has no line {OWN_CHOICE!r}")
        rows = []
        for line in chosen.splitlines():
            pin, _, purpose = line.partition("#")
            if pin.strip():
                requirement = Requirement(pin)
                (specifier,) = requirement.specifier
                purpose = purpose.strip()
                name = requirement.name
                rows.append((name, specifier.version, licence(name), purpose))
        return [table(("package", "version", "licence", "what for"), rows)]


def licence(name: str) -> str:
    """What an installed package says of its licence; a dash for one that this system lacks."""
    try:
        said = metadata(name)
    except PackageNotFoundError:
        return "–"
    if "License-Expression" in said:
        return said["License-Expression"]
    if 0 < len(said.get("License", "")) < LONG:
        return said["License"]
    kinds = [kind for kind in said.get_all("Classifier", []) if kind.startswith(CLASSIFIER)]
    return ", ".join(kind.removeprefix(CLASSIFIER) for kind in kinds) or "see its own files"


def table(headings, rows) -> nodes.table:
    """A table of plain text."""
    group = nodes.tgroup(cols=len(headings))
    group += [nodes.colspec(colwidth=1) for _ in headings]
    group += nodes.thead("", row(headings))
    group += nodes.tbody("", *map(row, rows))
    return nodes.table("", group)


def row(cells) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", cell)) for cell in cells))


def setup(app):
    app.add_directive("packages", Packages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
