"""`zerolab compare`: train by each strategy, and set what was predicted above what was measured."""

import argparse
import sys
from pathlib import Path

from zerolab.accounting import STRATEGIES
from zerolab.cli.experiment import add_experiment, experiment
from zerolab.cli.options import strategy
from zerolab.cli.output import print_json, print_rows

SUMMARY = "train a small GPT by each strategy and compare costs"
FIGURE = "zerolab-compare.png"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strategies", nargs="+", default=STRATEGIES, metavar="S", help=", ".join(STRATEGIES)
    )
    parser.add_argument(
        "--figure", metavar="FILE", help=f"default: {FIGURE}; with --json: no figure"
    )
    add_experiment(parser)


def run(arguments: argparse.Namespace) -> int:
    names = [name for item in arguments.strategies for name in item.split(",")]
    strategies = [strategy("--strategies", name) for name in dict.fromkeys(names)]
    figure = arguments.figure or (None if arguments.json else FIGURE)
    if figure is not None:
        from zerolab.teaching.plots import check_figure_file, comparison_figure, save

        check_figure_file(Path(figure))
    rows = experiment(arguments, strategies)
    if arguments.json:
        print_json([row.as_dict() for row in rows])
    else:
        print_rows(rows)
    if figure is not None:
        save(comparison_figure(rows), Path(figure))
        print(f"Figure: {figure}", file=sys.stderr if arguments.json else sys.stdout)
    return 0
