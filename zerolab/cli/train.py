"""`zerolab train`: train by one strategy."""

import argparse

from zerolab.accounting import STRATEGIES
from zerolab.cli.experiment import add_experiment, experiment
from zerolab.cli.options import strategy
from zerolab.cli.output import print_json, print_rows

SUMMARY = "train a small GPT by one strategy"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strategy", default="zero3", metavar="S", help=f"{', '.join(STRATEGIES)}; default: zero3"
    )
    add_experiment(parser)


def run(arguments: argparse.Namespace) -> int:
    rows = experiment(arguments, [strategy("--strategy", arguments.strategy)])
    return print_json(rows[0].as_dict()) if arguments.json else print_rows(rows)
