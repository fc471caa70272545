"""What a reader meets on every page: in both themes, on a desktop and on a phone, from the disk.

One visit serves all tests of a page in a view.
"""

import pytest
from axe_playwright_python.sync_playwright import Axe
from sitemap import pages

DESKTOP, PHONE = 1280, 390  # pixels
VIEWS = {
    "desktop": {"theme": "light", "width": DESKTOP, "origin": "http"},
    "desktop-dark-from-disk": {"theme": "dark", "width": DESKTOP, "origin": "file"},
    "phone-from-disk": {"theme": "light", "width": PHONE, "origin": "file"},
    "phone-dark": {"theme": "dark", "width": PHONE, "origin": "http"},
}

# What axe finds in the theme's and Sphinx's own markup, which a book cannot mend. Exactly these:
# a finding that is new fails the test, and so does one that is gone and need not be listed.
SIDEBAR = {"region"}  # the book's title stands outside of all landmarks; on a phone it is hidden
BIBLIOGRAPHY = {"aria-allowed-role", "aria-deprecated-role", "aria-required-children"}

# Follows the focus, into shadow trees too. What can be operated and is visible has to be reached,
# and to look different then. Of radio buttons with one name, the arrow keys reach the others.
FOCUS = """() => {
  const SELECTOR = "a[href], button, summary, input, select, textarea, [tabindex]";
  const LOOKS = ["outlineStyle", "outlineWidth", "boxShadow", "backgroundColor", "borderColor",
    "color", "textDecorationLine", "textDecorationThickness"];
  const all = (root) => [...root.querySelectorAll("*")].flatMap((element) =>
    [element, ...(element.shadowRoot ? all(element.shadowRoot) : [])]);
  const usable = all(document).filter((element) => element.matches(SELECTOR)
    && !element.disabled && element.tabIndex >= 0 && !element.closest("[inert]")
    && element.checkVisibility({visibilityProperty: true}) && element.getClientRects().length);
  const look = (element) => LOOKS.map((name) => getComputedStyle(element)[name]).join();
  const name = (element) => `${element.tagName} ${element.id} ${element.className} `
    + element.textContent.trim().slice(0, 40);
  const before = new Map(usable.map((element) => [element, look(element)]));
  const reached = new Set(), unseen = new Set();
  const follow = (event) => {
    const at = event.composedPath()[0];
    if (reached.has(at)) return;
    reached.add(at);
    if (before.get(at) === look(at)) unseen.add(at);
  };
  const roots = new Set([document, ...usable.map((element) => element.getRootNode())]);
  for (const root of roots) root.addEventListener("focusin", follow);
  const isReached = (element) => reached.has(element) || (element.type === "radio"
    && [...reached].some((one) => one.type === "radio" && one.name === element.name));
  window.focusWalk = {
    missed: () => usable.filter((element) => !isReached(element)).map(name),
    unseen: () => [...unseen].map(name),
    reached: () => reached.size,
  };
  document.activeElement?.blur();
}"""


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


def test_does_not_scroll_sideways(visited):
    assert _overhang(visited.page) == 0


def test_formulas_are_set(visited):
    assert _unset_formulas(visited.page) == 0


def test_console_has_no_errors(visited):
    assert visited.errors == []


def test_is_accessible(visited, name, view):
    violations = Axe().run(visited.page).response["violations"]
    found = {v["id"]: [node["target"] for node in v["nodes"]] for v in violations}
    expected = SIDEBAR if view["width"] == DESKTOP else set()
    if name == "references":
        expected = expected | BIBLIOGRAPHY
    assert set(found) == expected, found


def test_asks_no_other_host(visited):
    assert visited.requests, "the browser asked for nothing at all"
    assert visited.foreign_requests() == []


def test_keyboard_reaches_everything_and_shows_where_it_is(visited, view):
    if view["theme"] == "dark":
        return  # the same elements in the same order
    page = visited.page
    page.evaluate(FOCUS)
    reached = -1
    while reached < (reached := page.evaluate("focusWalk.reached()")):  # until it goes round
        for _ in range(25):
            page.keyboard.press("Tab")
    assert reached > 5, "the Tab key leads nowhere"
    assert page.evaluate("focusWalk.missed()") == []
    assert page.evaluate("focusWalk.unseen()") == []


def test_formulas_are_recognised(visit):
    """The count of formulas above is of something."""
    with visit("data-parallelism.html") as visited:
        assert visited.page.locator(".math").count() > 0


def test_first_page_is_ready_within_a_second(browser, origins):
    """Of a reader who has never been here: nothing is cached. The best of five, noise only adds."""
    took = []
    for _ in range(5):
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{origins['http']}/index.html", wait_until="load")
        took.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
        context.close()
    assert min(took) <= 1000, f"milliseconds: {took}"


def _overhang(page) -> int:
    """Pixels by which the page is wider than the window."""
    return page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def _unset_formulas(page) -> int:
    """Formulas that are still source text, or in which MathJax found an error."""
    formulas, done = page.locator(".math"), page.locator(".math mjx-container")
    return formulas.count() - done.count() + page.locator("mjx-merror").count()
