"""Which pages the site has, and where it is built."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
SITE = BOOK / "_build" / "html"


def pages() -> list[str]:
    """Every page of the book, and the two that Sphinx adds."""
    contents = yaml.safe_load((BOOK / "_toc.yml").read_text())
    chapters = [
        chapter["file"]
        for part in contents.get("parts", [contents])
        for chapter in part["chapters"]
    ]
    return [contents["root"], *chapters, "search", "genindex"]
