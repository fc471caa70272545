"""Every number in the book's prose was computed by its chapter or names its source.

`prose` says which numbers that are. The second half of this file tries it on numbers of each kind.
"""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from prose import BOOK, bare_numbers, bare_numbers_of, literal_glue

CHAPTERS = sorted(BOOK.glob("*.ipynb"))
PAGES = [*sorted(BOOK.glob("*.md")), *CHAPTERS]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_number_is_computed_or_cited(page):
    bare = list(map(str, bare_numbers(page)))
    assert not bare, "insert these from code with glue, or cite their source:\n" + "\n".join(bare)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_what_is_glued_is_computed(chapter):
    assert not list(literal_glue(chapter))


def numbers(markdown):
    return [bare.number for bare in bare_numbers_of(markdown)]


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("The states take 84 GB.", ["84"]),
        ("It sends 1.5 times as much, or 50 %.", ["1.5", "50 %"]),
        ("ZeRO-2 saves 8× of 16,384 bytes.", ["8×", "16,384"]),
        ("Sixteen bytes a parameter, and four bytes more.", ["Sixteen", "four bytes"]),
        ("Three times as many, less than a hundredth of it.", ["Three times as", "hundredth"]),
        ("## The same at 70 billion", ["70", "billion"]),
        ("| a | b |\n|---|---|\n| whole | 12 |", ["12"]),
        ("- an item\n- another, of 3 ms", ["3"]),
        ("**On 64 GPUs** it is *2.5* s", ["64", "2.5"]),
        (":::{admonition} In 9 words\n:class: tip\nIt is 7 GB.\n:::", ["9", "7"]),
        (":::{dropdown} Answer\nIt is 7 GB.\n:::", ["7"]),
        ("```{figure} a.png\n:alt: 5 bars\n\nOf 6 ranks.\n```", ["5", "6"]),
        ("written as code, `84 GB` or `1,024`, it stays a number", ["84", "1,024"]),
        ("a formula of figures, $2 + 2 + 8$, computes nothing", ["2", "2", "8"]),
        ("$$\n14 \\cdot 6 = 84\n$$", ["14", "6", "84"]),
        # A source serves its own sentence, and a link within the book is none.
        ("It is 7 GB. The paper says so {cite:p}`someone2020paper`.", ["7"]),
        ("It is 7 GB, see [the chapter](memory.ipynb).", ["7"]),
    ],
)
def test_a_planted_number_is_found(planted, found):
    assert numbers(planted) == found


@pytest.mark.parametrize(
    "fine",
    [
        "The states take {glue:text}`total:s`, that is {glue:text}`times` times as much.",
        "They count 16 bytes a parameter {cite:p}`someone2020paper`.",
        "{cite:t}`someone2020paper` count sixteen bytes.",
        "A card has 80 GB ([data sheet](https://example.org/card)).",
        "ZeRO-1, 2 and 3; GPT-2 and Llama 2 7B in fp32 on H100 with FSDP2",
        "Python 3.11, Apache-2.0, 10-gigabit Ethernet",
        "16-bit numbers and moments in 32 bits",
        "See section 5.3, Table 1, sections 7 and 8, rank 0 and block 3.",
        "## 7. Two passes on four ranks, half as much again",
        "## 2. to 4. Three claims",
        "**2.** Why?",
        "1. first\n2. second",
        'People say "ZeRO-1 saves 4×".',
        r"$2\,\frac{N-1}{N}$ of the tensor, $16\,\Psi$, $10^9$ bytes and $1/N$",
        "$$\n(N-1)\\,\\alpha + \\frac{N-1}{N} \\cdot \\frac{S}{\\beta}\n$$",
        "`overlap=True` and `blocks.3` with `lr=0.001`",
        "```python\nsize = 84\n```",
        "```{literalinclude} ../a.py\n:lines: 3-9\n```",
    ],
)
def test_what_is_no_number_or_has_a_source_passes(fine):
    assert numbers(fine) == []


def test_a_figure_is_described_without_bare_numbers(tmp_path):
    options = {"figure": {"caption": "On 9 ranks", "name": "f"}, "image": {"alt": "8 bars"}}
    cells = [new_markdown_cell("Fine."), new_code_cell("3", metadata={"mystnb": options})]
    nbformat.write(new_notebook(cells=cells), tmp_path / "a.ipynb")
    assert [bare.number for bare in bare_numbers(tmp_path / "a.ipynb")] == ["9", "8"]


def test_a_glued_literal_is_found(tmp_path):
    source = (
        'glue("a", "84 GB")\nfor n, t in {"b": "7 GB", "c": f"{x} GB"}.items():\n    glue(n, t)'
    )
    nbformat.write(new_notebook(cells=[new_code_cell(source)]), tmp_path / "a.ipynb")
    assert list(literal_glue(tmp_path / "a.ipynb")) == ["84 GB", "7 GB"]
