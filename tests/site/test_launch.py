"""Binder and Colab: on every chapter once the repository has an address, and never before."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup
from sitemap import BOOK

ADDRESS = "https://{host}/somebody/zerolab"
BINDER, COLAB = "mybinder.org", "colab.research.google.com"


@pytest.fixture
def built(tmp_path):
    """`built(address)`: the links of a one-chapter book with the settings of this one."""

    def build(address: str) -> list[str]:
        book = tmp_path / "book"
        shutil.copytree(BOOK / "extensions", book / "extensions")
        shutil.copytree(BOOK / "assets", book / "assets")
        shutil.copy(BOOK / "references.bib", book)
        settings = (BOOK / "_config.yml").read_text()
        settings, changed = re.subn(r'^  url: "".*$', f"  url: {address}", settings, flags=re.M)
        assert changed == 1
        (book / "_config.yml").write_text(settings)
        (book / "_toc.yml").write_text(yaml.safe_dump({"format": "jb-book", "root": "chapter"}))
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A chapter")])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(notebook, book / "chapter.ipynb")
        jupyter_book = Path(sys.executable).with_name("jupyter-book")
        command = [jupyter_book, "build", "--quiet", "-W", "-n", book]
        without_pdf = {name: value for name, value in os.environ.items() if name != "CHROMIUM"}
        subprocess.run(command, check=True, capture_output=True, env=without_pdf)
        assert not (book / "_build/html/zerolab.pdf").exists()
        page = BeautifulSoup((book / "_build/html/chapter.html").read_text(), "html.parser")
        links = [link["href"] for link in page.find_all("a", href=True)]
        assert not [link for link in links if link.endswith(".pdf")], "offers what was not printed"
        return links

    return build


def _launching(links: list[str]) -> list[str]:
    return [link for link in links if BINDER in link or COLAB in link]


def test_on_github_both(built):
    binder, colab = _launching(built(ADDRESS.format(host="github.com")))
    assert binder == (
        f"https://{BINDER}/v2/gh/somebody/zerolab/main?urlpath=lab/tree/book/chapter.ipynb"
    )
    assert colab == f"https://{COLAB}/github/somebody/zerolab/blob/main/book/chapter.ipynb"


def test_elsewhere_binder_alone(built):
    """Colab opens what is on GitHub only."""
    (binder,) = _launching(built(ADDRESS.format(host="gitlab.com")))
    assert binder.startswith(f"https://{BINDER}/v2/gl/somebody%2Fzerolab/main")


def test_without_an_address_none(documents):
    settings = yaml.safe_load((BOOK / "_config.yml").read_text())
    configured = bool(settings["repository"]["url"])
    for path, page in documents.items():
        links = [link["href"] for link in page.find_all("a", href=True)]
        chapter = configured and (BOOK / f"{path.stem}.ipynb").exists()
        assert bool(_launching(links)) == chapter
