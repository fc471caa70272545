"""Options that several commands take, and the reading of their values."""

import argparse
import sys
from collections.abc import Collection, Iterable
from typing import Any

from zerolab import accounting
from zerolab.accounting import STRATEGIES, Batch, InputError, Keeping, Setup
from zerolab.accounting.activations import CHOICES
from zerolab.accounting.catalogue import model
from zerolab.accounting.configs import read_config
from zerolab.accounting.errors import unknown_name
from zerolab.accounting.models import Shape
from zerolab.accounting.quantities import MOST_RANKS
from zerolab.accounting.tensor_parallel import check_splits

RANKS = 8  # where nothing is said
SEQUENCE = 4096  # tokens, where nothing is said
MOST_TOKENS = 10**7


def add_model(group: Any) -> None:
    group.add_argument("--model", metavar="M", help="a published model, such as llama-2-7b")
    group.add_argument("--config", metavar="FILE", help="a Hugging Face config.json")


def add_on_paper(parser: argparse.ArgumentParser) -> None:
    """What the commands that only calculate take: how many parameters, on how many ranks."""
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--params", metavar="P", help="such as 7e9 or 350M")
    add_model(size)
    parser.add_argument("--ranks", metavar="N", help=f"default: {RANKS}")
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


def add_batch(parser: argparse.ArgumentParser) -> None:
    """What a rank computes; with any of it, activations can be counted."""
    batch = parser.add_argument_group("what a rank computes, with --model or --config")
    batch.add_argument("--batch", metavar="B", help="sequences in a micro-batch; default: 1")
    add_sequence(batch)
    batch.add_argument("--micro-batches", metavar="K", help="backwards before a step; default: 1")
    batch.add_argument(
        "--tensor-parallel",
        metavar="D",
        help="GPUs that share each matrix, times --ranks of such groups; default: 1",
    )
    batch.add_argument(
        "--sequence-parallel",
        action="store_true",
        help="they share what lies between the matrices, too",
    )
    batch.add_argument(
        "--recompute", metavar="R", help=f"{', '.join(CHOICES['recompute'])}; default: none"
    )


def add_sequence(group: Any) -> None:
    group.add_argument(
        "--sequence",
        metavar="T",
        help=f"tokens in a sequence; default: {SEQUENCE}, or as many as the model has positions",
    )


def add_policy(parser: argparse.ArgumentParser) -> None:
    """What autograd keeps beside; names and meanings are those of `accounting.Keeping`."""
    policy = parser.add_argument_group("what autograd keeps of it")
    for name in ("attention", "norm", "activation", "loss"):
        default = getattr(Keeping(), name)
        policy.add_argument(
            f"--{name}", metavar="K", help=f"{', '.join(CHOICES[name])}; default: {default}"
        )
    policy.add_argument(
        "--repeated-kv", action="store_true", help="grouped keys and values are copied out"
    )
    policy.add_argument("--dropout", action="store_true", help="masks of dropout are kept")


def asks_for_a_batch(arguments: argparse.Namespace) -> bool:
    return bool(_given(arguments, BATCH))


def setup(arguments: argparse.Namespace, shape: Shape, strategy: str) -> Setup:
    """The run that the options of `add_batch`, and of `add_policy` if there, describe."""
    values = vars(arguments)
    policy = accounting.precision_policy(arguments.precision)
    parallel = whole("--tensor-parallel", arguments.tensor_parallel or "1", 1, 4096)
    check_splits("--tensor-parallel", shape, parallel)
    return Setup(
        shape=shape,
        strategy=strategy,
        ranks=ranks(arguments),
        precision=policy.name,
        batch=Batch(
            size=whole("--batch", arguments.batch or "1", 1, 10**6),
            sequence=sequence(arguments, shape),
            element=policy.parameter,
            tensor_parallel=parallel,
            sequence_parallel=arguments.sequence_parallel,
        ),
        keeping=Keeping(**{name: values[name] for name in _POLICY if values.get(name)}),
        micro_batches=whole("--micro-batches", arguments.micro_batches or "1", 1, 10**6),
    )


def ranks(arguments: argparse.Namespace) -> int:
    """Data-parallel ranks, of `add_on_paper`."""
    given = arguments.ranks
    return whole("--ranks", str(RANKS) if given is None else given, 1, MOST_RANKS)


def sequence(arguments: argparse.Namespace, shape: Shape) -> int:
    """Tokens in a sequence: no more than a learned position embedding has rows."""
    most = shape.positions or MOST_TOKENS
    return whole("--sequence", arguments.sequence or str(min(SEQUENCE, most)), 1, most)


_POLICY = (*CHOICES, "repeated_kv", "dropout")
# All that is about a batch.
BATCH = ("batch", "sequence", "micro_batches", "tensor_parallel", "sequence_parallel", *_POLICY)


def _given(arguments: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Which of these options were given."""
    return [name for name in names if vars(arguments).get(name)]


def size(
    arguments: argparse.Namespace, without_shape: Collection[str] = ()
) -> tuple[int, Shape | None]:
    """Of --params, --model or --config: how many parameters, and the shape where there is one.

    without_shape: options about the batch that make sense with --params, too.
    """
    if arguments.params is not None:
        reason = "only with --model or --config: a number of parameters has no shape"
        refuse(arguments, [name for name in BATCH if name not in without_shape], reason)
        return accounting.parse_count(arguments.params), None
    found = shape(arguments)
    return found.parameters, found


def refuse(arguments: argparse.Namespace, names: Iterable[str], accepted: str) -> None:
    """Raise InputError for the first of these options that is given."""
    for name in _given(arguments, names):
        raise InputError(f"--{name.replace('_', '-')}", getattr(arguments, name), accepted)


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
