"""`zerolab memory`: what each strategy keeps on a rank."""

import argparse

from zerolab import accounting
from zerolab.accounting import STRATEGIES, InputError
from zerolab.cli.options import add_on_paper, on_paper
from zerolab.cli.output import on_paper_json, print_json, print_parts, setting

SUMMARY = "bytes of training state that each strategy keeps on a rank"


def add(parser: argparse.ArgumentParser) -> None:
    add_on_paper(parser)
    parser.add_argument(
        "--count",
        action="store_true",
        help="with --config: build the model without weights and count what it keeps",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.count:
        return _count(arguments)
    parameters, ranks, precision = on_paper(arguments)
    states = {s: accounting.model_states(parameters, s, ranks, precision) for s in STRATEGIES}
    if arguments.json:
        found = {strategy: kept.as_dict() for strategy, kept in states.items()}
        return print_json(on_paper_json(parameters, ranks, precision, found))
    from zerolab.teaching.tables import states_table

    return print_parts(setting(parameters, precision, ranks), states_table(states))


def _count(arguments: argparse.Namespace) -> int:
    """The one path of `memory` that needs torch, and transformers."""
    if arguments.config is None:
        raise InputError("--count", "no --config", "a config.json beside it, as --config FILE")
    from zerolab.training.count import count

    found = count(arguments.config)
    if arguments.json:
        return print_json(vars(found))
    return print_parts(
        f"{found.parameters:,} parameters; {accounting.decimal_bytes(found.activations)} of "
        f"activations for one sequence of 1,024 tokens in 16 bits ({found.attention} attention)"
    )
