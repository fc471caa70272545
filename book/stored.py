"""What a chapter's outputs were made by: its code, and the modules of zerolab that this code uses.

`execute.py` stores the two digests beside the outputs; the tests compute them again. A digest is
over syntax trees, without docstrings: comments, line breaks and quotes change no output, so they
leave ten chapters as they are. The modules are those that the code imports, in functions too, and
those that these import: what runs on the ranks is among them.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

from nbformat import NotebookNode

import zerolab

PACKAGE = Path(zerolab.__file__).parent


def digests(notebook: NotebookNode) -> dict[str, str]:
    """ "code" and "zerolab", as they are stored in the notebook's metadata."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return {
        "code": _digest(map(_tree, cells)),
        "zerolab": _digest(map(_tree_of_file, sources_used(cells))),
    }


def sources_used(cells: Iterable[str]) -> list[Path]:
    """The files of zerolab that this code imports, directly or through one another, sorted."""
    found: set[Path] = set()
    waiting = set().union(*(_imported(cell) for cell in cells))
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting |= _imported_by_file(path)
    return sorted(found)


def _imported(source: str) -> set[Path]:
    """Files of the modules that the source names; a name that is no module is its module's."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            lazy = zerolab._HOMES if node.module == "zerolab" else {}
            for alias in node.names:
                names.add(lazy.get(alias.name, f"{node.module}.{alias.name}"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # as in a command: python -m zerolab.runtime.server
    return {path for name in names for path in _files(name)}


@cache
def _imported_by_file(path: Path) -> set[Path]:
    # The package itself imports nothing until it is asked for a name.
    return set() if path == PACKAGE / "__init__.py" else _imported(path.read_text())


def _files(name: str) -> Iterator[Path]:
    """The file of a module of zerolab and those of the packages around it; none of other names."""
    package, *parts = name.split(".")
    if package != "zerolab":
        return
    place = PACKAGE
    yield place / "__init__.py"
    for part in parts:
        if (place / f"{part}.py").is_file():
            yield place / f"{part}.py"
            return
        place /= part
        if not (place / "__init__.py").is_file():
            return
        yield place / "__init__.py"


def _digest(trees: Iterable[str]) -> str:
    return sha256("\n".join(trees).encode()).hexdigest()[:16]


@cache
def _tree_of_file(path: Path) -> str:
    return _tree(path.read_text())


def _tree(source: str) -> str:
    return _written(ast.parse(source))


def _written(node: object) -> str:
    """A syntax tree as text that is equal under all versions of Python: without empty fields."""
    if isinstance(node, list):
        return f"[{','.join(map(_written, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
        fields["body"] = node.body[1:]
    inside = ",".join(f"{name}={_written(value)}" for name, value in fields.items())
    return f"{type(node).__name__}({inside})"
