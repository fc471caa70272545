"""`zerolab check`: grade a lab notebook."""

import argparse

from zerolab.cli.output import print_json

SUMMARY = "grade a lab notebook"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lab", metavar="LAB.ipynb")


def run(arguments: argparse.Namespace) -> int:
    from zerolab.teaching.checks.grading import grade

    report = grade(arguments.lab)
    if arguments.json:
        print_json(report.as_dict())
    else:
        print(*report.tasks, sep="\n")
    return 0 if report.passed else 1
