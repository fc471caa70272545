"""`zerolab bench`: ours against the systems themselves."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zerolab.accounting import InputError
from zerolab.cli.options import whole
from zerolab.cli.output import print_json, print_parts
from zerolab.runtime.failure import RankError

if TYPE_CHECKING:
    from zerolab.training.bench import Row

SUMMARY = "ours against the systems themselves, as ratios"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default="2,4", metavar="N,…", help="default: 2,4")
    parser.add_argument(
        "--tokens",
        default="128,512",
        metavar="T,…",
        help="tokens a rank, multiples of the context of 128; default: 128,512",
    )
    parser.add_argument(
        "--pairs",
        metavar="A/B,…",
        help="such as zero3/fsdp2; default: all that have a bar and are installed",
    )
    parser.add_argument(
        "--rounds", default="3", metavar="R", help="the quietest counts; default: 3"
    )


def run(arguments: argparse.Namespace) -> int:
    """Check all input before the first process starts; then measure, with a progress bar.

    Where it breaks off, what is measured until then is printed: it may have taken hours.
    """
    from zerolab.runtime.world import MOST_RANKS

    ranks = [whole("--ranks", count, 1, MOST_RANKS) for count in arguments.ranks.split(",")]
    rounds = whole("--rounds", arguments.rounds, 1, 100)
    tokens = [whole("--tokens", count, 1, 10**6) for count in arguments.tokens.split(",")]

    from rich.console import Console
    from rich.progress import Progress

    from zerolab.training.bench import BARS, bench
    from zerolab.training.engines import SAME_BATCH, installed, require
    from zerolab.training.gpt import GPT_34M

    for count in tokens:
        if count % GPT_34M.context:
            raise InputError("--tokens", count, f"a multiple of the context of {GPT_34M.context}")
    if arguments.pairs is None:
        pairs = [pair for pair in BARS if all(map(installed, pair))]
    else:
        pairs = [_pair(text) for text in arguments.pairs.split(",")]
    for name in {name for pair in pairs for name in pair}:
        require("--pairs", name)
    if any(name in SAME_BATCH for pair in pairs for name in pair):  # every rank has a part of it
        for count in ranks:
            if not GPT_34M.splits(count):
                raise InputError(
                    "--ranks",
                    count,
                    f"a number that divides the {GPT_34M.heads} heads and the vocabulary of "
                    f"{GPT_34M.vocabulary}, with tensor parallelism among --pairs",
                )

    progress = Progress(console=Console(stderr=True))
    lines = len(pairs) * len(ranks) * len(tokens)
    task = progress.add_task("measuring", total=lines * (2 * rounds + 2))
    left_out = [pair for pair in BARS if arguments.pairs is None and pair not in pairs]
    found: list[Row] = []
    try:
        with progress:
            for row in bench(
                pairs, ranks, tokens, rounds, on_measurement=lambda: progress.advance(task)
            ):
                found.append(row)
    except (RankError, KeyboardInterrupt):
        if found:
            _print(arguments, found, lines, left_out)
        raise
    return _print(arguments, found, lines, left_out)


def _print(
    arguments: argparse.Namespace,
    found: "Sequence[Row]",
    lines: int,
    left_out: Sequence[tuple[str, str]],
) -> int:
    """The rows that were measured, of so many lines that were asked for."""
    if arguments.json:
        return print_json([row.as_dict() for row in found])
    from zerolab.teaching.tables import bench_notes, bench_table
    from zerolab.training.gpt import GPT_34M

    heading = f"A GPT of {GPT_34M.parameters:,} parameters, fp32: ours over the peer"
    if len(found) < lines:
        heading += f"; BROKEN OFF after {len(found)} of {lines} lines"
    return print_parts(heading, bench_table(found), bench_notes(found, left_out))


def _pair(text: str) -> tuple[str, str]:
    ours, slash, peer = text.partition("/")
    if not (ours and slash and peer):
        raise InputError("--pairs", text, "two engines with a slash between, as zero3/fsdp2")
    return ours, peer
