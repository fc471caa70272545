"""Stored pictures are small, and show what was drawn."""

import io
from base64 import b64decode, b64encode
from pathlib import Path

import nbformat
import pytest
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_notebook, new_output
from pictures import lighten
from PIL import Image, ImageChops

CHAPTERS = sorted((Path(__file__).parents[2] / "book").glob("*.ipynb"))


def pictures(notebook):
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                yield b64decode(output.data["image/png"])


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_pictures_are_stored_with_few_colours(path):
    for png in pictures(nbformat.read(path, as_version=4)):
        assert Image.open(io.BytesIO(png)).mode == "P", "python book/pictures.py stores it so"


def test_the_smaller_picture_shows_the_same():
    figure, drawn = Figure(dpi=150), io.BytesIO()
    figure.subplots().plot([1, 4, 2], label="a line")
    figure.savefig(drawn, format="png")
    data = {"image/png": b64encode(drawn.getvalue()).decode()}
    notebook = new_notebook(cells=[new_code_cell(outputs=[new_output("display_data", data)])])
    lighten(notebook)
    (light,) = pictures(notebook)
    assert len(light) < 0.7 * len(drawn.getvalue())
    before, after = (Image.open(io.BytesIO(png)) for png in (drawn.getvalue(), light))
    assert after.size == before.size
    difference = ImageChops.difference(before.convert("RGB"), after.convert("RGB"))
    assert max(high for _, high in difference.getextrema()) < 16
    lighten(notebook)
    assert [*pictures(notebook)] == [light], "a second time changes nothing"
