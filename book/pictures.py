"""Store a notebook's pictures in few bytes that show the same: python book/pictures.py book/*.ipynb

A figure has flat colours, so 256 of them show it, in a third of the bytes. Each picture is in the
project, in the page, in the notebook to download and in the printed book.
"""

import io
import sys
from base64 import b64decode, b64encode
from pathlib import Path

import nbformat
from PIL import Image

COLOURS = 256


def lighten(notebook: nbformat.NotebookNode) -> None:
    """Replace the PNG outputs of a notebook by smaller ones; those that are small stay."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = b64encode(_light(b64decode(data["image/png"]))).decode()


def _light(png: bytes) -> bytes:
    with Image.open(io.BytesIO(png)) as picture:
        if picture.mode == "P":
            return png
        white = Image.new("RGBA", picture.size, "white")
        flat = Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")
        light = io.BytesIO()
        few = flat.quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(light, "PNG", optimize=True, dpi=picture.info.get("dpi"))
    return light.getvalue()


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        stored = nbformat.read(path, as_version=4)
        lighten(stored)
        nbformat.write(stored, path)
