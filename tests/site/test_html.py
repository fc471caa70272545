"""The built files themselves: whatever they point at is there."""

from urllib.parse import unquote, urlsplit

from sitemap import pages

POINTERS = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src"}


def test_pages_are_those_of_the_contents(documents):
    assert {path.stem for path in documents} == set(pages())


def test_internal_links_resolve(documents, site):
    anchors = {
        path: {element["id"] for element in page.find_all(id=True)}
        for path, page in documents.items()
    }
    broken, followed = [], 0
    for path, page in documents.items():
        for element in page.find_all(list(POINTERS)):
            target = element.get(POINTERS[element.name])
            if target is None or urlsplit(target).scheme or target.startswith("//"):
                continue
            followed += 1
            parts = urlsplit(target)
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not there.is_file():
                broken.append(f"{path.name}: {target}")
            elif parts.fragment and there in anchors and parts.fragment not in anchors[there]:
                broken.append(f"{path.name}: {target} has no such anchor")
    assert followed > 100
    assert broken == []


def test_only_links_lead_away(documents):
    """Nothing that a browser loads by itself may come from another host."""
    away = [
        f"{path.name}: {element}"
        for path, page in documents.items()
        for element in page.find_all(["link", "img", "script", "source", "iframe"])
        if urlsplit(element.get("src") or element.get("href") or "").netloc
        and element.get("rel") != ["canonical"]
    ]
    assert away == []


def test_every_image_says_what_it_shows(documents):
    images = [(path, image) for path, page in documents.items() for image in page.find_all("img")]
    assert images
    silent = [f"{path.name}: {image['src']}" for path, image in images if not _alternative(image)]
    assert silent == []


def test_every_figure_shows_something_that_is_described(documents):
    """A figure is an image, or a drawing in the page itself, which says what it is in its way."""
    figures = [(path, figure) for path, page in documents.items() for figure in page("figure")]
    assert figures
    for path, figure in figures:
        drawings = figure.find_all("svg")
        assert figure.find("img") or drawings, f"{path.name}: {figure.get_text()[:60]}"
        for drawing in drawings:
            named = drawing.get("aria-label") or drawing.get("aria-labelledby")
            assert named or drawing.find("title"), f"{path.name}: {figure.get_text()[:60]}"


def _alternative(image) -> bool:
    text = image.get("alt", "").strip()
    # Without one, Sphinx writes the file's name there.
    return bool(text) and not text.startswith("_images/") and "/" not in text.split()[0]


def test_site_is_small(site):
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    assert size < 15e6
