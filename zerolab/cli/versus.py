"""`zerolab versus`: ZeRO-3 against tensor parallelism."""

import argparse

from zerolab import accounting
from zerolab.accounting import InputError
from zerolab.cli.options import add_link, whole
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
    parser.add_argument("--width", default="128", metavar="C", help="of the GPT; default: 128")
    add_link(parser)


def run(arguments: argparse.Namespace) -> int:
    from zerolab.runtime.world import MOST_RANKS

    ranks = whole("--ranks", arguments.ranks, 1, MOST_RANKS)
    tokens = [whole("--tokens", count, 1, 10**6) for count in arguments.tokens.split(",")]
    width = whole("--width", arguments.width, 1, 10**5)
    if width % 4:
        raise InputError("--width", arguments.width, "a multiple of the GPT's 4 heads")
    if arguments.link is not None:
        accounting.link(arguments.link)

    from zerolab.runtime.world import World
    from zerolab.training.gpt import GPTShape
    from zerolab.training.versus import check, crossing, sweep

    shape = GPTShape(width=width, context=64)
    for count in tokens:
        check(ranks, count, shape)
    with World(ranks, link=arguments.link) as world:
        found = sweep(world, tokens, shape)
    crossing_tokens = crossing(ranks, shape)
    if arguments.json:
        return print_json(
            {
                "ranks": ranks,
                "link": arguments.link,
                "parameters": shape.parameters,
                "crossing_tokens": crossing_tokens,
                "sweep": [comparison.as_dict() for comparison in found],
            }
        )
    from zerolab.teaching.tables import versus_notes, versus_table

    of = setting(shape.parameters, "fp32", ranks)
    notes = versus_notes(found, crossing_tokens)
    return print_parts(f"A GPT of {of}", versus_table(found), notes)
