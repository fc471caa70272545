"""The reference, written from the package's own source at each build.

    ```{reference} zerolab.accounting
    ```

documents what a module's `__all__` names, and a class by its full name that class; what stood on
the page before is left out. `{modules} zerolab.runtime` lists a package's modules, each with its
docstring's first paragraph; `{commands}` has what `zerolab COMMAND --help` says.

Docstrings are plain text with a few habits: an indented block is code, `x: what it is` describes an
argument. Sphinx's autodoc would read them as reStructuredText, which they are not.
"""

import argparse
import ast
import dataclasses
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

import zerolab
import zerolab.cli

ROOT = Path(zerolab.__file__).parents[1]
MARKED = re.compile(r"(``?)(.+?)\1|\*(\w[^*]*)\*")  # `code`, ``code`` and *words*
ENTRY = re.compile(r"([a-z_]\w*)(?:: | {2,})(?=\S)")  # "ranks: how many" or "ranks   how many"


class Reference(SphinxDirective):
    """A section for each public name."""

    required_arguments = 1

    def run(self):
        source = self.arguments[0]
        documented = self.env.temp_data.setdefault("documented", [])
        try:
            found = public_names(source)
        except (ImportError, AttributeError) as error:
            raise self.error(f"reference: {error}") from None
        new = {
            name: value
            for name, value in found.items()
            if not any(value is other for other in documented)
        }
        documented += new.values()
        return [self.section(source, name, value) for name, value in new.items()]

    def section(self, source: str, name: str, value: object) -> nodes.section:
        full = f"{getattr(value, '__module__', source)}.{name}"
        kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
        section = nodes.section("", nodes.title("", "", nodes.literal("", name)), ids=[full])
        section += addnodes.index(entries=[("single", f"{name} ({kind})", full, "", None)])
        self.env.get_domain("py").note_object(full, kind, full, location=section)
        if kind == "data":
            section += paragraph(f"`{type(value).__name__}`: {', '.join(map(str, value))}.")
            return section
        section += python(called(value))
        section += prose(inspect.getdoc(value) or "")
        if inspect.isclass(value):
            section += definitions(members(value))
        place = Path(inspect.getsourcefile(value)).relative_to(ROOT)
        section += paragraph(f"In `{place}`.")
        return section


class Modules(SphinxDirective):
    """A package's modules, and what each is about."""

    required_arguments = 1

    def run(self):
        package = import_module(self.arguments[0])
        found = []
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            folder = Path(package.__path__[0])
            name = module.name.rpartition(".")[2]
            file = folder / name / "__init__.py" if module.ispkg else folder / f"{name}.py"
            about = ast.get_docstring(ast.parse(file.read_text())) or ""
            found.append((module.name, about.partition("\n\n")[0]))
        return definitions(found)


class Commands(SphinxDirective):
    """What each command of the command line takes."""

    def run(self):
        sections = []
        for name, parser in zerolab.cli.parsers()[1].items():
            full = f"zerolab-{name}"
            title = nodes.title("", "", nodes.literal("", f"zerolab {name}"))
            about = paragraph(f"{parser.description[0].upper()}{parser.description[1:]}")
            given = [action for action in parser._actions if action.dest != "help"]
            options = definitions(((option(action), action.help or "") for action in given), helped)
            sections.append(nodes.section("", title, about, *options, ids=[full]))
        return sections


def option(action: argparse.Action) -> str:
    """An option as it is typed."""
    words = (*action.option_strings, action.metavar or ("" if action.nargs == 0 else action.dest))
    return " ".join(filter(None, words))


def public_names(source: str) -> dict[str, object]:
    """What a module says is public; or the one class of that full name."""
    package, _, name = source.rpartition(".")
    try:
        module = import_module(source)
    except ModuleNotFoundError:
        return {name: getattr(import_module(package), name)}
    return {name: getattr(module, name) for name in module.__all__ if not name.startswith("_")}


def called(value: object) -> str:
    """How a class or function is called, or a dataclass's fields, as the source has it."""
    if not inspect.isclass(value):
        return header(value)
    if dataclasses.is_dataclass(value) or issubclass(value, tuple):
        source = dedent(inspect.getsource(value))
        (tree,) = ast.parse(source).body
        fields = [node for node in tree.body if isinstance(node, ast.AnnAssign)]
        lines = source.splitlines()[fields[0].lineno - 1 : fields[-1].end_lineno]
        return "\n".join((f"class {value.__name__}:", *lines))
    return re.sub(r"^def __init__\(", f"class {value.__name__}(", header(value.__init__))


def header(function) -> str:
    """`def name(...) -> ...` as it is written, less `self` or `cls`."""
    source = dedent(inspect.getsource(function))
    (tree,) = ast.parse(source).body
    text = "\n".join(source.splitlines()[tree.lineno - 1 : tree.body[0].lineno - 1])
    text = re.sub(r"\((\s*)(?:self|cls)(?:,\s*)?", r"(\1", text, count=1)
    return text.removesuffix(":").removesuffix(" -> None").replace("(\n)", "()")


def members(kind: type) -> Iterator[tuple[str, str]]:
    """Public methods and properties that a class defines itself, and their docstrings."""
    for name, member in vars(kind).items():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        text = " ".join(header(function).split()).removeprefix("def ").replace("( ", "(")
        if isinstance(member, property):
            text = text.replace("()", "", 1)
        text = text.replace(", )", ")").replace(" )", ")")
        yield text, inspect.getdoc(function) or ""


def prose(docstring: str) -> list[nodes.Node]:
    """A docstring's paragraphs, blocks of code and descriptions of arguments."""
    found: list[nodes.Node] = []
    for block in re.split(r"\n(?:[ ]*\n)+", docstring):
        lines = block.splitlines()
        if not lines:
            continue
        if all(line.startswith("    ") for line in lines) or block.startswith(">>>"):
            found.append(python(dedent(block)))
        elif ENTRY.match(block):
            found += definitions(entries(lines))
        else:
            found.append(paragraph(block))
    return found


def entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Arguments and what is said of them; lines that go on are indented."""
    said: list[str] = []
    name = ""
    for line in lines:
        starts = ENTRY.match(line)
        if starts:
            if said:
                yield name, " ".join(said)
            name, said = starts[1], [line[starts.end() :]]
        else:
            said.append(line.strip())
    yield name, " ".join(said)


def helped(text: str) -> list[nodes.Node]:
    """What the command line says of an option, other options as code; "default: 8" is no entry."""
    return [paragraph(re.sub(r"--[a-z-]+", r"`\g<0>`", text))]


def definitions(pairs, described=prose) -> list[nodes.Node]:
    """Terms of code, each with what is said of it; nothing where there are none."""
    items = [
        nodes.definition_list_item(
            "",
            nodes.term("", "", nodes.literal("", term)),
            nodes.definition("", *described(text)),
        )
        for term, text in pairs
    ]
    return [nodes.definition_list("", *items)] if items else []


def paragraph(text: str) -> nodes.paragraph:
    """A paragraph of plain text, with what it marks as code or stressed."""
    parts: list[nodes.Node] = []
    end = 0
    text = text.replace("\n", " ")
    for mark in MARKED.finditer(text):
        parts.append(nodes.Text(text[end : mark.start()]))
        parts.append(nodes.literal("", mark[2]) if mark[2] else nodes.emphasis("", mark[3]))
        end = mark.end()
    return nodes.paragraph("", "", *parts, nodes.Text(text[end:]))


def python(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="python")


def link_names(app, doctree):
    """Where a docstring names what the page documents, lead there."""
    places = {
        section["ids"][0].rpartition(".")[2]: section["ids"][0]
        for section in doctree.findall(nodes.section)
        if section["ids"][0].startswith("zerolab.")
    }
    for name in list(doctree.findall(nodes.literal)):
        title = isinstance(name.parent, (nodes.title, nodes.term))
        if places and not title and name.astext() in places:
            link = nodes.reference("", "", name.deepcopy(), refid=places[name.astext()])
            name.replace_self(link)


def setup(app):
    app.add_directive("reference", Reference)
    app.add_directive("modules", Modules)
    app.add_directive("commands", Commands)
    app.connect("doctree-read", link_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
