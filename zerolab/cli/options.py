"""Options that several commands take, and the reading of their values."""

import argparse
import sys
from typing import Any

from zerolab import accounting
from zerolab.accounting import STRATEGIES, InputError
from zerolab.accounting.catalogue import model
from zerolab.accounting.configs import read_config
from zerolab.accounting.errors import unknown_name
from zerolab.accounting.models import Shape


def add_model(group: Any) -> None:
    group.add_argument("--model", metavar="M", help="a published model, such as llama-2-7b")
    group.add_argument("--config", metavar="FILE", help="a Hugging Face config.json")


def add_on_paper(parser: argparse.ArgumentParser) -> None:
    """What the commands that only calculate take: how many parameters, on how many ranks."""
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--params", metavar="P", help="such as 7e9 or 350M")
    add_model(size)
    parser.add_argument("--ranks", default="8", metavar="N", help="default: 8")
    add_precision(parser, "mixed")


def add_precision(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--precision",
        default=default,
        metavar="P",
        help=f"{', '.join(accounting.PRECISIONS)}; default: {default}",
    )


def add_link(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--link", metavar="L", help=f"emulate one of {', '.join(accounting.LINKS)}")


def on_paper(arguments: argparse.Namespace) -> tuple[int, int, str]:
    """Parameters, ranks and precision."""
    return (
        accounting.parse_count(arguments.params)
        if arguments.params is not None
        else shape(arguments).parameters,
        whole("--ranks", arguments.ranks, 1, 10**6),
        accounting.precision_policy(arguments.precision).name,
    )


def shape(arguments: argparse.Namespace) -> Shape:
    """Of --model or --config."""
    if arguments.model is not None:
        return model(arguments.model)
    found = read_config(arguments.config)
    if not found.exact:
        print(
            f"zerolab: {arguments.config} is of an unknown family, read as if it were Llama's: "
            "zerolab memory --config FILE --count counts the real model",
            file=sys.stderr,
        )
    return found


def whole(option: str, text: str, lowest: int, highest: int) -> int:
    """A whole number in the range, else InputError."""
    try:
        number = int(text)
    except ValueError:
        number = lowest - 1
    if not lowest <= number <= highest:
        raise InputError(option, text, f"a whole number from {lowest} to {highest}")
    return number


def strategy(option: str, name: str) -> str:
    if name not in STRATEGIES:
        raise unknown_name(option, name, STRATEGIES)
    return name
