"""`zerolab traffic`: what each strategy sends from a rank in a step."""

import argparse

from zerolab import accounting
from zerolab.accounting import STRATEGIES, Link, Traffic
from zerolab.accounting.traffic import SplitTraffic, setup_traffic, step_traffic
from zerolab.cli import options
from zerolab.cli.output import print_csv, print_json, print_parts, setting

SUMMARY = "bytes and messages that each strategy sends from a rank in a step"
COLUMNS = ("strategy", "group", "wire_bytes", "messages", "seconds")


def add(parser: argparse.ArgumentParser) -> None:
    options.add_on_paper(parser)
    options.add_batch(parser)
    parser.add_argument(
        "--link",
        metavar="L",
        help=f"say how long one of {', '.join(accounting.LINKS)} takes for it",
    )


def run(arguments: argparse.Namespace) -> int:
    ranks = options.ranks(arguments)
    precision = accounting.precision_policy(arguments.precision).name
    micro_batches = options.whole("--micro-batches", arguments.micro_batches or "1", 1, 10**6)
    link = None if arguments.link is None else accounting.link(arguments.link)
    parameters, shape = options.size(arguments, without_shape=("micro_batches",))
    if shape is None:  # one flat tensor
        nothing = Traffic(0, 0)
        sent = {
            name: SplitTraffic(
                step_traffic([parameters], name, ranks, precision, micro_batches), nothing
            )
            for name in STRATEGIES
        }
    else:
        sent = {name: setup_traffic(options.setup(arguments, shape, name)) for name in STRATEGIES}
    if arguments.csv:
        return print_csv(
            COLUMNS,
            (
                (name, group, *vars(traffic).values(), link and traffic.seconds(link))
                for name, found in sent.items()
                for group, traffic in vars(found).items()
            ),
        )
    if arguments.json:
        return print_json(
            {
                "parameters": parameters,
                "ranks": ranks,
                "precision": precision,
                "micro_batches": micro_batches,
                "link": arguments.link,
                "strategies": {name: _entry(found, link) for name, found in sent.items()},
            }
        )
    from zerolab.teaching.paper import PASSES_NOTE, traffic_table

    table = traffic_table(sent, micro_batches, link)
    return print_parts(setting(parameters, precision, ranks), table, PASSES_NOTE)


def _entry(sent: SplitTraffic, link: Link | None) -> dict:
    """In all, and of it what goes to the data-parallel and to the tensor-parallel ranks."""

    def of(traffic: Traffic) -> dict:
        found: dict = {"wire_bytes": traffic.bytes, "messages": traffic.messages}
        return found | ({"seconds": traffic.seconds(link)} if link else {})

    return of(sent.total) | {group: of(traffic) for group, traffic in vars(sent).items()}
