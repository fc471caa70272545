"""The chapters as they are stored: nbval runs them, this looks at what the site shows of them.

A picture cannot be compared byte by byte, so the cell that draws one says in text what it drew.
"""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "book").glob("*.ipynb"))


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request):
    notebook = nbformat.read(request.param, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(chapter):
    return [cell for cell in chapter.cells if cell.cell_type == "code"]


def test_there_are_chapters():
    assert CHAPTERS


def test_every_cell_was_run_once_in_order(chapter):
    counts = [cell.execution_count for cell in code_cells(chapter)]
    assert counts == list(range(1, len(counts) + 1))


def test_outputs_hold_no_errors_or_warnings(chapter):
    for cell in code_cells(chapter):
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text


def test_code_fits_a_page_without_scrolling(chapter):
    lines = [line for cell in code_cells(chapter) for line in cell.source.splitlines()]
    assert [line for line in lines if len(line) > 80] == []


def test_nothing_tells_where_it_was_run(chapter):
    text = nbformat.writes(chapter)
    assert re.findall(r"/(?:home|root|tmp|Users)/", text) == []
    assert set(chapter.metadata) == {"kernelspec", "language_info", "made_by"}
    assert chapter.metadata.language_info == {"name": "python"}


def test_every_figure_is_described_and_its_data_is_text(chapter):
    for cell in code_cells(chapter):
        drawn = [output for output in cell.outputs if "image/png" in output.get("data", {})]
        if not drawn:
            continue
        assert len(drawn) == 1, "one figure a cell, so that it can be described"
        options = cell.metadata.mystnb
        assert len(options.image.alt) > 80
        assert options.figure.caption
        assert options.figure.name
        said = "".join(output.text for output in cell.outputs if output.output_type == "stream")
        assert any(character.isdigit() for character in said)
