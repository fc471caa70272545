"""What a reader can take away: each chapter's notebook, the whole book as one file."""

from urllib.parse import unquote

import pikepdf
import pytest
from sitemap import BOOK, pages

CHAPTERS = [name for name in pages() if (BOOK / f"{name}.ipynb").exists()]
PDF = "zerolab.pdf"


@pytest.fixture(scope="module")
def pdf(site):
    with pikepdf.open(site / PDF) as opened:
        yield opened


def test_there_are_chapters():
    assert len(CHAPTERS) > 5


@pytest.mark.parametrize("name", CHAPTERS)
def test_each_chapter_offers_its_notebook(documents, site, name):
    links = documents[site / f"{name}.html"].select(".dropdown-download-buttons a")
    offered = [site / unquote(link["href"]) for link in links if link["href"].endswith(".ipynb")]
    assert [path.read_bytes() for path in offered] == [(BOOK / f"{name}.ipynb").read_bytes()]


def test_the_menu_saves_the_notebook(visit):
    with visit("collectives.html") as visited, visited.page.expect_download() as download:
        visited.page.get_by_label("Download this page").click()
        visited.page.locator(".dropdown-download-buttons a", has_text=".ipynb").click()
    assert download.value.suggested_filename == "collectives.ipynb"


@pytest.mark.parametrize("name", pages())
def test_each_page_of_the_book_offers_the_pdf(documents, site, name):
    links = documents[site / f"{name}.html"].select(".dropdown-download-buttons a")
    written = bool(links)  # search and index have no source, and nothing to download
    assert [link["href"] for link in links if link["href"].endswith(".pdf")] == [PDF] * written
    assert written or name in ("search", "genindex")


def test_the_pdf_has_every_page_in_order(pdf):
    numbers = {page.objgen: number for number, page in enumerate(pdf.pages, start=1)}
    places = pdf.Root.Dests
    starts = [
        numbers[places[f"/{name}--"][0].objgen]
        for name in pages()
        if name not in ("search", "genindex")
    ]
    assert starts == sorted(set(starts)), "each chapter begins on a page of its own"
    assert starts[0] > 1
    assert len(pdf.pages) >= starts[-1] > 2 * len(starts)


def test_the_pdfs_outline_has_every_heading(pdf, documents, site):
    def titles(entries):
        for entry in entries:
            yield entry.title
            yield from titles(entry.children)

    with pdf.open_outline() as outline:
        listed = [*titles(outline.root)]
    for name in CHAPTERS:
        for heading in documents[site / f"{name}.html"].select("article h1, article h2"):
            if not heading.find(class_="math"):  # which a PDF's outline spells in its own way
                assert " ".join(heading.get_text().removesuffix("#").split()) in listed


def test_the_pdfs_links_lead_into_it_or_to_the_web(pdf):
    inside = outside = 0
    for page in pdf.pages:
        for note in page.get("/Annots", ()):
            if "/A" in note:
                assert str(note.A.URI).startswith("https://"), note.A.URI
                outside += 1
            else:
                assert str(note.Dest) in pdf.Root.Dests
                inside += 1
    assert inside > len(pages())
    assert outside
