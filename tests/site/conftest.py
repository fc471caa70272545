"""The built site, served on loopback, and a browser with a fresh profile to look at it with."""

import io
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
import system_tools
from bs4 import BeautifulSoup
from playwright.sync_api import Browser, Page, sync_playwright
from sitemap import BOOK, ROOT, SITE
from sphinx.application import Sphinx

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built site, brought up to date."""
    subprocess.run(["make", "--no-print-directory", "site"], cwd=ROOT, check=True)
    return SITE


@pytest.fixture(scope="session")
def documents(site: Path) -> dict[Path, BeautifulSoup]:
    """Every HTML file of the site, parsed."""
    files = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    return {path: BeautifulSoup(path.read_text(), "html.parser") for path in files}


@pytest.fixture(scope="session")
def origins(site: Path) -> Iterator[dict[str, str]]:
    """Where the site can be read: served on loopback, and straight from the disk."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield {"http": f"http://127.0.0.1:{server.server_port}", "file": site.as_uri()}
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium as the system has it, with a profile that is thrown away."""
    path = system_tools.chromium()
    assert path, "there is no Chromium: python tests/system_tools.py says how to get it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@dataclass
class Visit:
    """An opened page, and what happened to it."""

    page: Page
    origin: str
    requests: list[str]  # both go on growing while the page is open
    errors: list[str]

    def foreign_requests(self) -> list[str]:
        """Requests for anything that is not the site's own."""
        return [
            url
            for url in self.requests
            if urlsplit(url).scheme not in ("data", "blob") and not url.startswith(self.origin)
        ]


@pytest.fixture(scope="session")
def visit(browser: Browser, origins: dict[str, str]):
    """`with visit("index.html", origin="http", theme="light", width=1280) as v:` opens a page."""

    @contextmanager
    def opened(
        address: str, origin: str = "http", theme: str = "light", width: int = 1280
    ) -> Iterator[Visit]:
        context = browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme=theme, reduced_motion="reduce"
        )
        page = context.new_page()
        requests: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("requestfailed", lambda request: errors.append(f"failed: {request.url}"))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda said: said.type == "error" and errors.append(f"{said.text} {said.location}"),
        )
        page.goto(f"{origins[origin]}/{address}", wait_until="load")
        # Formulas are set after loading; the page is as the reader sees it when they are.
        page.wait_for_function("!window.MathJax || (MathJax.startup && MathJax.startup.promise)")
        page.evaluate("window.MathJax && MathJax.startup.promise")
        page.evaluate("document.fonts.ready.then(() => null)")
        try:
            yield Visit(page, origins[origin], requests, errors)
        finally:
            context.close()

    return opened


@pytest.fixture
def small_book(tmp_path):
    """`small_book(extension, directive, options)`: the HTML and the warnings of a book of one
    chapter, which is that directive of one of the book's own extensions."""

    def build(extension: str, directive: str, options: str) -> tuple[BeautifulSoup, str]:
        (tmp_path / "conf.py").write_text(
            f"import sys\nsys.path.insert(0, {str(BOOK / 'extensions')!r})\n"
            f"extensions = ['myst_parser', {extension!r}]\n"
        )
        (tmp_path / "index.md").write_text(f"# A chapter\n\n```{{{directive}}}\n{options}\n```\n")
        warnings = io.StringIO()
        folders = (tmp_path, tmp_path, tmp_path / "out", tmp_path / "doctrees")
        Sphinx(*folders, "html", status=None, warning=warnings).build()
        page = (tmp_path / "out" / "index.html").read_text()
        return BeautifulSoup(page, "html.parser"), warnings.getvalue()

    return build
