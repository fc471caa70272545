"""`zerolab traffic`: what each strategy sends from a rank in a step."""

import argparse

from zerolab import accounting
from zerolab.accounting import STRATEGIES
from zerolab.cli.options import add_on_paper, on_paper
from zerolab.cli.output import on_paper_json, print_json, print_parts, setting

SUMMARY = "bytes that each strategy sends from a rank in a step"


def add(parser: argparse.ArgumentParser) -> None:
    add_on_paper(parser)


def run(arguments: argparse.Namespace) -> int:
    parameters, ranks, precision = on_paper(arguments)
    sent = {s: accounting.wire_bytes(parameters, s, ranks, precision) for s in STRATEGIES}
    if arguments.json:
        found = {strategy: {"wire_bytes": size} for strategy, size in sent.items()}
        return print_json(on_paper_json(parameters, ranks, precision, found))
    from zerolab.teaching.tables import traffic_table

    return print_parts(setting(parameters, precision, ranks), traffic_table(sent))
