"""The search field finds words of the text, with no server behind it."""

import pytest


@pytest.mark.parametrize("origin", ["http", "file"])
@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("master copy", "data-parallelism"),
        ("reduce-scatter", "collectives"),
        ("ShardedAdam", "reference"),
    ],
)
def test_search_finds_what_a_page_is_about(visit, origin, words, page):
    with visit(f"search.html?q={words.replace(' ', '+')}", origin=origin) as visited:
        results = visited.page.locator("#search-results li a")
        results.first.wait_for(timeout=10_000)
        targets = [link.get_attribute("href") for link in results.all()]
        assert any(target.startswith(f"{page}.html") for target in targets)
        assert visited.foreign_requests() == []


def test_search_says_when_there_is_nothing(visit):
    with visit("search.html?q=zxqvj") as visited:
        visited.page.get_by_text("did not match any documents").wait_for(timeout=10_000)
        assert visited.page.locator("#search-results li").count() == 0
