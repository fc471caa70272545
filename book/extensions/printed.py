"""The whole book as one PDF, printed from the built pages by the Chromium that $CHROMIUM names.

`make site` sets that variable where the system has one. Where it is not set there is no PDF, and no
page offers one.

The pages' texts are put one after the other, and Chromium prints them twice: the first print tells
on which page a chapter begins, the second has it in its table of contents.
"""

import os
import tempfile
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

import pikepdf
from bs4 import BeautifulSoup, Tag
from playwright.sync_api import sync_playwright
from sphinx.errors import ExtensionError

PDF = "zerolab.pdf"

# What only a screen has: links to a heading, buttons, the contents; and what a page folds away, but
# for the answers to its questions.
SCREEN_ONLY = (
    ".headerlink, button, script, style, details:not(.sd-dropdown), section:has(> .toctree-wrapper)"
)
HEADINGS = "h1, h2, h3, h4, h5, h6"
WIDTH = 657  # pixels of a line: A4 less the margins in print.css, at 96 an inch

# Shrinks what is wider than its column, and returns what sticks out all the same.
FIT = """() => {
  for (const box of document.querySelectorAll("article table, article mjx-container")) {
    const space = box.parentElement.clientWidth;
    if (box.scrollWidth > space) box.style.zoom = space / box.scrollWidth;
  }
  return [...document.querySelectorAll("article, article *:not(mjx-container *)")]
    .filter((box) => box.getBoundingClientRect().right > innerWidth + 1)
    .map((box) => `${box.closest("article").id} ${box.tagName} ${box.textContent.slice(0, 60)}`);
}"""
FILL = """(starts) => {
  for (const [name, page] of Object.entries(starts))
    document.querySelector(`[data-starts="${name}"]`).textContent = page;
}"""


def offer(app, pagename, templatename, context, doctree):
    """Add the PDF to the page's download menu."""
    if not os.environ.get("CHROMIUM"):
        return
    for group in context.get("header_buttons", ()):
        if group.get("label") == "download-buttons":
            group["buttons"].append(
                {
                    "type": "link",
                    "url": context["pathto"](PDF, resource=True),
                    "text": "book.pdf",
                    "tooltip": "Download the whole book",
                    "icon": "fas fa-book",
                    "label": "download-book-button",
                }
            )


def print_book(app, exception):
    if exception or app.builder.name != "html":
        return
    path = Path(app.outdir) / PDF
    path.unlink(missing_ok=True)
    browser = os.environ.get("CHROMIUM")
    if browser:
        names = [app.config.root_doc, *in_order(app.env, app.config.root_doc)]
        titles = {name: app.env.titles[name].astext() for name in names}
        to_pdf(document(Path(app.outdir), titles, app.config.html_title), path, browser)


def in_order(env, name: str) -> list[str]:
    """The pages below a page, as the contents list them."""
    found = []
    for below in env.toctree_includes.get(name, ()):
        found += [below, *in_order(env, below)]
    return found


def document(site: Path, titles: dict[str, str], title: str) -> str:
    """All pages as one: a cover, the contents, and the pages' texts."""
    root = next(iter(titles))
    whole = BeautifulSoup((site / f"{root}.html").read_text(), "html.parser")
    for element in whole.head.find_all(["script", "noscript", "link"]):
        # Of the scripts only the one that sets formulas, with its settings, is of use.
        if element.get("rel") != ["stylesheet"] and "athjax" not in str(element).lower():
            element.decompose()
    whole.head.append(whole.new_tag("link", rel="stylesheet", href="_static/print.css"))
    whole.title.string = f"{title}: {titles[root]}"
    whole.html["data-theme"] = "light"
    lines = "".join(
        f'<li><a href="#{name}--"><span>{escape(heading)}</span><span class="leader"></span>'
        f'<span data-starts="{name}">000</span></a></li>'
        for name, heading in titles.items()
    )
    front = (
        f'<section class="cover"><p class="title">{escape(title)}</p>'
        f"<p>{escape(titles[root])}</p></section>"
        f'<section class="contents"><p class="title">Contents</p><ol>{lines}</ol></section>'
    )
    whole.body.clear()
    whole.body.append(BeautifulSoup(front, "html.parser"))
    whole.body.extend([article(site, name, titles) for name in titles])
    return str(whole)


def article(site: Path, name: str, names) -> Tag:
    """A page's text, as it can stand beside the others: its anchors carry its name."""
    page = BeautifulSoup((site / f"{name}.html").read_text(), "html.parser")
    text = page.select_one("article.bd-article")
    for stand_in in text.find_all("noscript"):
        stand_in.unwrap()  # what takes an interactive element's place where scripts are off
    for element in text.select(SCREEN_ONLY):
        element.decompose()
    for answer in text.find_all("details"):
        answer["open"] = ""
    for element in text.find_all(id=True):
        element["id"] = f"{name}--{element['id']}"
    for link in text.find_all("a", href=True):
        target = urlsplit(link["href"])
        to = target.path.removesuffix(".html") or name
        if to in names:
            link["href"] = f"#{to}--{target.fragment}"
        elif not target.scheme:
            del link["href"]  # a picture's file, a notebook: what paper does not have
    text["id"] = f"{name}--"
    return text


def to_pdf(html: str, path: Path, browser_path: str) -> None:
    """Print; raises ExtensionError where something is wider than the paper."""
    with (
        sync_playwright() as playwright,
        tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".html") as file,
    ):
        file.write(html)
        file.flush()
        browser = playwright.chromium.launch(executable_path=browser_path)
        page = browser.new_page(viewport={"width": WIDTH, "height": 900})
        page.emulate_media(media="print", color_scheme="light")
        page.goto(Path(file.name).as_uri(), wait_until="networkidle")
        page.evaluate("window.MathJax && MathJax.startup.promise")
        if cut := page.evaluate(FIT):
            raise ExtensionError("\n".join(("wider than the printed page:", *cut)))
        options = {"prefer_css_page_size": True, "print_background": True}
        options |= {"outline": True, "tagged": True}
        page.pdf(path=path, **options)
        page.evaluate(FILL, starts(path))
        page.pdf(path=path, **options)
        headings = page.locator(HEADINGS).all_text_contents()
        browser.close()
    with pikepdf.open(path, allow_overwriting_input=True) as pdf:
        name_outline(pdf, headings)
        pdf.save(path, object_stream_mode=pikepdf.ObjectStreamMode.generate)


def starts(path: Path) -> dict[str, int]:
    """The number of the page on which each chapter begins."""
    with pikepdf.open(path) as pdf:
        numbers = {page.objgen: number for number, page in enumerate(pdf.pages, start=1)}
        return {
            name.removeprefix("/").removesuffix("--"): numbers[place[0].objgen]
            for name, place in pdf.Root.Dests.items()
            if name.endswith("--")
        }


def name_outline(pdf: pikepdf.Pdf, headings: list[str]) -> None:
    """Chromium repeats in the outline what a heading's second line begins with."""
    with pdf.open_outline() as outline:
        entries = list(walk(outline.root))
        for entry, heading in zip(entries, headings, strict=True):
            entry.title = " ".join(heading.split())


def walk(entries):
    for entry in entries:
        yield entry
        yield from walk(entry.children)


def setup(app):
    app.connect("html-page-context", offer, priority=900)
    app.connect("build-finished", print_book, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
