"""Which numbers in the book's prose need a source, and which of them have none.

A reader can check a number that the chapter computed, or that names where it was read. Any other
may be wrong, or become wrong when the code changes, and nobody would notice. So every number in
prose is either inserted from code (`{glue:text}`, which the stored outputs resolve) or stands in a
sentence with a citation or with a link to a page outside the book.

*Prose* is what a reader reads as text: paragraphs, headings, list items, table cells, what stands
in an admonition or behind a dropdown, captions, and the description of a picture. Code blocks and
the outputs of cells are no prose: those were executed or included from source.

*A number* is any run of digits, and a number in words if it is thirteen or more (sixteen, hundred,
million, hundredth) or measures something (four bytes, ten seconds, three times as many). These are
none:

- **names**: digits that belong to a word (ZeRO-3, Apache-2.0, fp32, H100, 7B), the products of
  `PRODUCTS` and the `STANDARDS` (Llama 2, Python 3.11, 10-gigabit Ethernet), and formats by their
  width (16-bit, 32 bits);
- **one of several**, called by its number: section 5.3, Table 1, rank 0, block 3, question 2; the
  number that begins a heading, a claim or a question; "ZeRO-1, 2 and 3";
- **formulas**: mathematics with a symbol in it, and powers, which define GB and GiB; a formula of
  mere figures is arithmetic that has to be computed;
- **code** in a line, if it is more than a number: `overlap=True`, `zero3`, but not `84 GB`;
- **what others say**, in double quotation marks, because the text goes on to test it;
- **two to twelve, and halves, thirds and quarters, in words**, if they measure nothing: the shape
  of an example ("two passes on four ranks") or what the formula beside it says ("half as much
  again").
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import nbformat
import yaml
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

BOOK = Path(__file__).parents[2] / "book"

# What stands in the text for something that is not text.
GLUED, CITED, OPAQUE = "\ue000", "\ue001", "\ue002"

PRODUCTS = r"(?:Llama|Python|PyTorch|CUDA|NCCL|NVLink|PCIe|DeepSpeed|GPT) \d+(?:\.\d+)*"
STANDARDS = r"\d+-gigabit Ethernet"
FORMATS = r"\b(?:8|16|32|64)[- ]bits?\b"
IN_A_WORD = r"(?<![\w.])[A-Za-zα-ωΑ-Ω]+(?:-?\d+(?:\.\d+)*)+\w*|\b\d+B\b"
LIST = r"\d+(?:\.\d+)*(?:(?:,| and| or| to|,? and|/|–) ?\d+(?:\.\d+)*)*"
STAGES = rf"\bZeRO-{LIST}"
COUNTED = (
    "appendix|block|chapter|chunk|claim|figure|lab|layer|question|rank|section|step|table|task"
)
ONE_OF_SEVERAL = rf"\b(?:{COUNTED})s? {LIST}"
AT_THE_START = r"^\s*\d{1,2}\.(?: to \d{1,2}\.)?(?=\s|$)"
QUOTED = r'"[^"]*"|“[^”]*”'
NO_NUMBERS = re.compile(
    "|".join(
        (QUOTED, AT_THE_START, STAGES, PRODUCTS, STANDARDS, FORMATS, ONE_OF_SEVERAL, IN_A_WORD)
    ),
    re.IGNORECASE,
)

DIGITS = r"\d(?:[\d.,]*\d)?(?:\s?[×%])?"
SMALL = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
LARGE = (
    rf"(?:thir|four|fif|six|seven|eigh|nine)teen|(?:{TENS})(?:-\w+)?|"
    r"(?:hundred|thousand|million|billion|trillion)(?:ths?|s)?"
)
UNITS = (
    r"bits?|bytes?|[kKMGT]i?B|kilobytes?|megabytes?|gigabytes?|terabytes?|per ?cent|milliseconds?|"
    r"microseconds?|seconds?|minutes?|hours?|days?|tokens?|"
    r"times (?:as|too|the|less|more|larger|smaller|faster|slower|longer)"
)
NUMBER = re.compile(
    rf"\b(?:{SMALL}|half|quarter) (?:a )?(?:{UNITS})\b|\b(?:{LARGE})\b|{DIGITS}", re.IGNORECASE
)

SENTENCE_ENDS = re.compile(r"(?<=[.?!])[\"”)*]*\s+(?=\S)")

# Directives whose text is prose; of these the named ones also show their argument.
PROSE = {"admonition", "dropdown", "figure", "grid", "grid-item-card", "note", "tip", "warning"}
TITLED = {"admonition", "dropdown", "grid-item-card"}


class Bare(NamedTuple):
    """A number without a source: where it stands, the number, and its sentence."""

    place: str
    number: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.place}: {self.number!r} in: {self.sentence}"


def bare_numbers(path: Path) -> Iterator[Bare]:
    """The numbers of a page, .md or .ipynb, that need a source and have none."""
    for place, text in _texts(path):
        yield from bare_numbers_of(text, place)
    if path.suffix == ".ipynb":
        for place, options in _figure_options(path):
            yield from bare_numbers_of(options.figure.caption, f"{place}, caption")
            yield from _of_a_block(options.image.alt, f"{place}, description")


def bare_numbers_of(markdown: str, place: str = "here") -> Iterator[Bare]:
    """The same for one piece of MyST Markdown."""
    for block in _blocks(markdown):
        yield from _of_a_block(block, place)


def literal_glue(path: Path) -> Iterator[str]:
    """Glued strings of a chapter that hold digits and no computation: they only look computed."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code" or "glue(" not in cell.source:
            continue
        for node in ast.walk(ast.parse(cell.source)):
            values = node.values if isinstance(node, ast.Dict) else ()
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "glue":
                values = node.args[1:2]
            for value in values:
                if isinstance(value, ast.Constant) and re.search(r"\d", str(value.value)):
                    yield str(value.value)


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    if path.suffix == ".md":
        yield path.name, path.read_text()
        return
    for index, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type == "markdown":
            yield f"{path.name}, cell {index}", cell.source


def _figure_options(path: Path) -> Iterator[tuple[str, nbformat.NotebookNode]]:
    for index, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if "mystnb" in cell.metadata and "figure" in cell.metadata.mystnb:
            yield f"{path.name}, cell {index}", cell.metadata.mystnb


def _of_a_block(block: str, place: str) -> Iterator[Bare]:
    for sentence in SENTENCE_ENDS.split(NO_NUMBERS.sub(OPAQUE, block)):
        if CITED not in sentence:
            for number in NUMBER.findall(sentence):
                yield Bare(place, number, _readable(sentence))


def _readable(sentence: str) -> str:
    shown = sentence.replace(GLUED, "{glue}").replace(OPAQUE, "…")
    return " ".join(shown.split())


@cache
def _parser() -> MarkdownIt:
    """The book's own Markdown, by its settings."""
    settings = yaml.safe_load((BOOK / "_config.yml").read_text())
    extensions = settings["parse"]["myst_enable_extensions"]
    return create_md_parser(MdParserConfig(enable_extensions=set(extensions)), RendererHTML)


def _blocks(markdown: str) -> Iterator[str]:
    """The text of every paragraph, heading, item and cell, what is not text replaced."""
    for token in _parser().parse(markdown):
        if token.type == "inline":
            yield "".join(map(_inline, token.children or ()))
        elif token.type in ("fence", "colon_fence"):
            yield from _directive(token)
        elif token.type == "html_block":
            yield token.content
        elif token.type in ("math_block", "math_block_label", "amsmath"):
            yield _formula(token.content)


def _directive(token: Token) -> Iterator[str]:
    """What a directive shows as prose: its argument, and its content without the options."""
    found = re.match(r"\{([\w:-]+)\}\s*(.*)", token.info.strip())
    if not found or found[1] not in PROSE:
        return
    lines = token.content.splitlines()
    while lines and re.match(r":[\w-]+:", lines[0]):
        option = lines.pop(0)
        if option.startswith((":alt:", ":caption:")):
            yield option.split(":", 2)[2].strip()
    if found[1] in TITLED:
        yield from _blocks(found[2])
    yield from _blocks("\n".join(lines))


def _inline(token: Token) -> str:
    if token.type == "myst_role":
        return _role(token)
    if token.type == "code_inline":
        return token.content if _is_a_number(token.content) else OPAQUE
    if token.type.startswith("math_inline"):
        return _formula(token.content)
    if token.type == "link_open" and str(token.attrs.get("href")).startswith("http"):
        return CITED
    if token.type == "image":
        return "".join(map(_inline, token.children or ()))
    if token.type in ("softbreak", "hardbreak"):
        return "\n"
    return token.content if token.type in ("text", "text_special", "html_inline") else ""


def _role(token: Token) -> str:
    name = token.meta["name"]
    if name.startswith("glue"):
        return GLUED
    if name.startswith("cite"):
        return CITED
    return token.content  # superscripts and the like are read as text


def _is_a_number(code: str) -> bool:
    return (
        re.fullmatch(rf"[\s\d.,:×%()\[\]+-]*\d[\s\d.,:×%()\[\]+-]*(?:{UNITS})?", code) is not None
    )


def _formula(tex: str) -> str:
    """Nothing to check, or the figures, in a formula without any symbol."""
    figures = re.sub(r"\\(?:text|mathrm)\{[^}]*\}", " ", tex)
    symbols = re.sub(r"\\(?!alpha|beta|Psi|Phi)[a-zA-Z]+", " ", figures)  # without \frac, \cdot
    return OPAQUE if re.search(r"[A-Za-z]|\d\^", symbols) else figures
