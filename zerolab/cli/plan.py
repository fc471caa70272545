"""`zerolab plan`: which strategy fits and is fastest, and why."""

import argparse

from zerolab import accounting
from zerolab.accounting.gpus import GPUS, gpu
from zerolab.cli.options import add_model, add_precision, shape, whole
from zerolab.cli.output import print_json, print_parts

SUMMARY = "which strategy fits and is fastest, and why, as predicted"


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser.add_mutually_exclusive_group(required=True))
    parser.add_argument("--gpu", required=True, metavar="G", help=f"one of {', '.join(GPUS)}")
    parser.add_argument("--gpus", required=True, metavar="N", help="how many")
    parser.add_argument(
        "--link", required=True, metavar="L", help=f"one of {', '.join(accounting.LINKS)}"
    )
    parser.add_argument("--batch", metavar="B", help="sequences a step, all GPUs; default: 4 a GPU")
    parser.add_argument("--sequence", default="4096", metavar="T", help="tokens; default: 4096")
    add_precision(parser, "mixed")


def run(arguments: argparse.Namespace) -> int:
    from zerolab.accounting.plan import plan

    batch = None if arguments.batch is None else whole("--batch", arguments.batch, 1, 10**9)
    found = plan(
        shape(arguments),
        gpu(arguments.gpu),
        whole("--gpus", arguments.gpus, 1, 10**6),
        accounting.link(arguments.link),
        batch,
        whole("--sequence", arguments.sequence, 1, 10**7),
        accounting.precision_policy(arguments.precision).name,
    )
    if arguments.json:
        candidates = [candidate.as_dict() for candidate in found.candidates]
        return print_json({"advice": found.advice, "candidates": candidates})
    from zerolab.teaching.paper import plan_notes, plan_table

    return print_parts(plan_table(found), plan_notes(found))
