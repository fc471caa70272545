"""`zerolab plan`: which strategy fits and is fastest, and why."""

import argparse

from zerolab import accounting
from zerolab.accounting.gpus import GPUS, gpu
from zerolab.accounting.plan import MACHINE, plan
from zerolab.accounting.quantities import MOST_RANKS
from zerolab.cli import options
from zerolab.cli.output import print_csv, print_json, print_parts

SUMMARY = "which strategy fits and is fastest, and why, as predicted"


def add(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser.add_mutually_exclusive_group(required=True))
    parser.add_argument("--gpu", required=True, metavar="G", help=f"one of {', '.join(GPUS)}")
    parser.add_argument("--gpus", required=True, metavar="N", help="how many")
    parser.add_argument(
        "--link", required=True, metavar="L", help=f"one of {', '.join(accounting.LINKS)}"
    )
    parser.add_argument(
        "--machine",
        metavar="N",
        help=f"GPUs in a machine, where tensor parallelism stays; default: {MACHINE}",
    )
    parser.add_argument("--machine-link", metavar="L", help="inside a machine; default: --link's")
    parser.add_argument("--batch", metavar="B", help="sequences a step, all GPUs; default: 4 a GPU")
    options.add_sequence(parser)
    options.add_precision(parser, "mixed")


def run(arguments: argparse.Namespace) -> int:
    shape = options.shape(arguments)
    device, link = gpu(arguments.gpu), accounting.link(arguments.link)
    gpus = options.whole("--gpus", arguments.gpus, 1, MOST_RANKS)
    inside = arguments.machine_link and accounting.link(arguments.machine_link, "--machine-link")
    batch = arguments.batch and options.whole("--batch", arguments.batch, 1, 10**9)
    found = plan(
        shape,
        device,
        gpus,
        link,
        batch,
        options.sequence(arguments, shape),
        accounting.precision_policy(arguments.precision).name,
        options.whole("--machine", arguments.machine or str(MACHINE), 1, MOST_RANKS),
        inside,
    )
    candidates = [candidate.as_dict() for candidate in found.candidates]
    if arguments.csv:
        return print_csv(tuple(candidates[0]), (tuple(each.values()) for each in candidates))
    if arguments.json:
        return print_json(
            {
                "gpu": vars(device),
                "link": vars(link),
                "machine_link": inside and vars(inside),
                "advice": found.advice,
                "zero2_faster_below": found.border,  # bytes a second
                "candidates": candidates,
            }
        )
    from zerolab.teaching.paper import plan_heading, plan_notes, plan_table

    heading = plan_heading(arguments.model or arguments.config, gpus, device, link, inside)
    return print_parts(heading, plan_table(found), plan_notes(found, link))
