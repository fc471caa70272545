"""What a reader meets on every page: in both themes, on a desktop and on a phone, from the disk."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from sitemap import pages

DESKTOP, PHONE = 1280, 390  # pixels
VIEWS = {
    "desktop": {"theme": "light", "width": DESKTOP},
    "desktop-dark": {"theme": "dark", "width": DESKTOP},
    "phone": {"theme": "light", "width": PHONE},
    "phone-dark": {"theme": "dark", "width": PHONE},
}

# What axe finds in the theme's and Sphinx's own markup, which a book cannot mend. Exactly these:
# a finding that is new fails the test, and so does one that is gone and need not be listed.
SIDEBAR = {"region"}  # the book's title stands outside of all landmarks; on a phone it is hidden
BIBLIOGRAPHY = {"aria-allowed-role", "aria-deprecated-role", "aria-required-children"}


@pytest.fixture(scope="module", params=pages())
def name(request):
    return request.param


@pytest.fixture(scope="module", params=VIEWS)
def view(request):
    return VIEWS[request.param]


@pytest.fixture(scope="module")
def visited(name, view, visit):
    with visit(f"{name}.html", **view) as visited:
        yield visited


def test_asks_no_other_host(visited):
    assert visited.requests, "the browser asked for nothing at all"
    assert visited.foreign_requests() == []


def test_console_has_no_errors(visited):
    assert visited.errors == []


def test_does_not_scroll_sideways(visited):
    assert _overhang(visited.page) == 0


def test_formulas_are_set(visited):
    assert _unset_formulas(visited.page) == 0


def test_is_accessible(visited, name, view):
    violations = Axe().run(visited.page).response["violations"]
    found = {v["id"]: [node["target"] for node in v["nodes"]] for v in violations}
    expected = SIDEBAR if view["width"] == DESKTOP else set()
    if name == "references":
        expected = expected | BIBLIOGRAPHY
    assert set(found) == expected, found


def test_works_from_the_disk(name, visit):
    with visit(f"{name}.html", origin="file") as visited:
        assert visited.foreign_requests() == []
        assert visited.errors == []
        assert _unset_formulas(visited.page) == 0


def test_formulas_are_recognised(visit):
    """The count of formulas above is of something."""
    with visit("data-parallelism.html") as visited:
        assert visited.page.locator(".math").count() > 0


def _overhang(page) -> int:
    """Pixels by which the page is wider than the window."""
    return page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def _unset_formulas(page) -> int:
    """Formulas that are still source text, or in which MathJax found an error."""
    formulas, done = page.locator(".math"), page.locator(".math mjx-container")
    return formulas.count() - done.count() + page.locator("mjx-merror").count()
