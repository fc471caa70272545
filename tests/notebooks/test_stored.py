"""The stored outputs are those of the code as it is now."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from stored import PACKAGE, digests, sources_used

CHAPTERS = sorted((Path(__file__).parents[2] / "book").glob("*.ipynb"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_outputs_were_made_by_this_code(path):
    notebook = nbformat.read(path, as_version=4)
    stored, now = notebook.metadata.get("made_by", {}), digests(notebook)
    changed = [part for part in now if stored.get(part) != now[part]]
    assert not changed, (
        f"{' and '.join(changed)} of {path.name} changed since its outputs were stored. "
        "To run all chapters again and store what they give: make site EXECUTE=1"
    )


def notebook(*cells):
    return new_notebook(cells=[new_markdown_cell("# Prose"), *map(new_code_cell, cells)])


CODE = 'from zerolab.accounting import model_states\n\nprint(model_states(7, "ddp", 1, "fp32"))'


def test_what_changes_no_output_changes_no_digest():
    same = f'"""What it does."""\n{CODE}  # seven'.replace('"ddp"', "'ddp'")
    assert digests(notebook(same)) == digests(notebook(CODE))


@pytest.mark.parametrize(
    "other", [CODE.replace("7", "8"), CODE.replace("print", "repr"), CODE + "\nx = 1"]
)
def test_what_may_change_an_output_changes_the_digest_of_the_code(other):
    before, after = digests(notebook(CODE)), digests(notebook(other))
    assert before["code"] != after["code"]
    assert before["zerolab"] == after["zerolab"]


def test_cells_in_another_order_are_other_code():
    assert digests(notebook("x = 1", CODE)) != digests(notebook(CODE, "x = 1"))


@pytest.fixture
def edit(monkeypatch):
    """`edit(name, old, new)`: a file of the package reads so, for this test."""
    import stored

    for cached in (stored._tree_of_file, stored._imported_by_file):
        monkeypatch.setattr(stored, cached.__name__, cached.__wrapped__)
    read = Path.read_text

    def edit(name, old, new):
        edited = PACKAGE / name
        assert old in read(edited)

        def as_edited(path, *arguments, **options):
            text = read(path, *arguments, **options)
            return text.replace(old, new) if path == edited else text

        monkeypatch.setattr(Path, "read_text", as_edited)

    return edit


def test_a_used_module_that_changes_changes_the_digest_of_zerolab(edit):
    before = digests(notebook(CODE))
    edit("accounting/precision.py", "moments=8", "moments=4")
    after = digests(notebook(CODE))
    assert after["code"] == before["code"]
    assert after["zerolab"] != before["zerolab"]


def test_a_docstring_or_a_module_that_is_not_used_changes_nothing(edit):
    before = digests(notebook(CODE))
    edit("accounting/precision.py", '"""Precision policies', '"""Policies of precision')
    assert digests(notebook(CODE)) == before
    edit("runtime/ledger.py", "class ", "class Other")
    assert digests(notebook(CODE)) == before


def test_modules_are_followed_into_functions_and_through_lazy_names():
    def used(code):
        return {path.relative_to(PACKAGE).as_posix() for path in sources_used([code])}

    assert used("import math") == set()
    assert "runtime/ledger.py" in used("def f():\n    from zerolab.runtime.ledger import ledger")
    assert {"runtime/world.py", "runtime/rank.py"} <= used("from zerolab import World")
    assert "runtime/world.py" not in used("from zerolab.accounting import model_states")
