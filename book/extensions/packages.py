"""The packages that the project pins, with their licences, as a table: `{packages}`.

Read from requirements.txt and from what is installed, so that nobody has to keep a list.
"""

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from docutils.parsers.rst import Directive
from packaging.requirements import Requirement
from tables import table

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


def setup(app):
    app.add_directive("packages", Packages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
