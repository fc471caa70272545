"""`zerolab versus`: ZeRO-3 against tensor parallelism."""

import argparse
import sys
from itertools import groupby
from pathlib import Path

from zerolab import accounting
from zerolab.accounting import InputError
from zerolab.cli.options import whole
from zerolab.cli.output import print_json, print_parts, setting

SUMMARY = "ZeRO-3 against tensor parallelism, by experiment"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default="2", metavar="N", help="default: 2")
    parser.add_argument(
        "--tokens",
        default="64,256,1024",
        metavar="T,…",
        help="tokens a step, all ranks together; default: 64,256,1024",
    )
    parser.add_argument(
        "--width", default="64,128", metavar="C,…", help="of the GPT; default: 64,128"
    )
    parser.add_argument(
        "--link",
        default="none,1gbe",
        metavar="L,…",
        help=f"emulate none, {', '.join(accounting.LINKS)}; default: none,1gbe",
    )
    parser.add_argument("--figure", metavar="FILE", help="draw the sweep; default: no figure")


def run(arguments: argparse.Namespace) -> int:
    """Check all input before the first process starts; then measure, with a progress bar."""
    from zerolab.runtime.world import MOST_RANKS

    ranks = whole("--ranks", arguments.ranks, 2, MOST_RANKS)
    tokens = [whole("--tokens", count, 1, 10**6) for count in arguments.tokens.split(",")]
    widths = [_width(text) for text in arguments.width.split(",")]
    links = [_link(name) for name in arguments.link.split(",")]

    from rich.console import Console
    from rich.progress import Progress

    from zerolab.runtime.world import World
    from zerolab.training.gpt import GPTShape
    from zerolab.training.versus import check, sweep

    shape = GPTShape(width=widths[0], context=64)
    for count in tokens:
        check(ranks, count, shape)
    if arguments.figure is not None:
        from zerolab.teaching.plots import check_figure_file, save, versus_figure

        check_figure_file(Path(arguments.figure))
    progress = Progress(console=Console(stderr=True))
    task = progress.add_task("measuring", total=len(tokens) * len(widths) * len(links))
    # On the CPU even where there are GPUs: links are emulated between processes, over gloo.
    with progress, World(ranks, device="cpu") as world:
        found = sweep(world, tokens, shape, widths, links, lambda _: progress.advance(task))
    if arguments.json:
        print_json({"ranks": ranks, "sweep": [comparison.as_dict() for comparison in found]})
    else:
        from zerolab.teaching.tables import versus_notes, versus_table

        for (width, link), points in groupby(found, lambda point: (point.width, point.link)):
            lines = list(points)
            of = setting(lines[0].parameters, "fp32", ranks)
            print_parts(f"A GPT of {of}, {width} wide; link: {link}", versus_table(lines))
        print_parts(versus_notes(found))
    if arguments.figure is not None:
        save(versus_figure(found), Path(arguments.figure))
        print(f"Figure: {arguments.figure}", file=sys.stderr if arguments.json else sys.stdout)
    return 0


def _width(text: str) -> int:
    width = whole("--width", text, 1, 10**5)
    if width % 4:
        raise InputError("--width", text, "a multiple of the GPT's 4 heads")
    return width


def _link(name: str) -> str:
    if name != "none":
        accounting.link(name)
    return name
