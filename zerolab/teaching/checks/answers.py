"""Reading what a reader's function returned, whatever that is.

Each kind of answer is a function that turns a returned value into parts that can be compared and
written as JSON, or raises `Unreadable` with a sentence that continues "returned …".
"""

import operator
import reprlib
from collections.abc import Callable, Mapping, Set
from decimal import Decimal
from math import isfinite
from numbers import Real
from typing import Any

from zerolab.accounting import PRECISIONS, Precision

Parts = dict[str, Any]
Kind = Callable[[Any], Parts]

STATES = ("parameters", "gradients", "optimizer")


class Unreadable(Exception):
    """The answer is not of the kind that was asked for."""


def number(answer: Any) -> Parts:
    """A count or a number of bytes; 112e9 and 112_000_000_000 are the same answer.

    A float within a hundredth of a whole number is that number: it has been rounded on the way.
    """
    return {"": _number(answer)}


def names(answer: Any) -> Parts:
    """A collection of names; neither order nor repetition matters."""
    if isinstance(answer, str):
        raise Unreadable(f"one name, {show(answer)}; wanted is a list, such as [{show(answer)}]")
    if not isinstance(answer, (list, tuple, Set)):
        raise Unreadable(f"{_described(answer)}; wanted is a list of names")
    for item in answer:
        if not isinstance(item, str):
            raise Unreadable(f"a list that holds {_described(item)}; wanted are names")
    return {"": sorted(set(answer))}


def states(answer: Any) -> Parts:
    """A dict with the bytes of each state; further keys are ignored."""
    if not isinstance(answer, Mapping):
        raise Unreadable(
            f"{_described(answer)}; wanted is a dict with the keys {', '.join(STATES)}"
        )
    missing = [key for key in STATES if key not in answer]
    if missing:
        raise Unreadable(f"a dict without {', '.join(map(repr, missing))}")
    try:
        return {key: _number(answer[key]) for key in STATES}
    except Unreadable as error:
        raise Unreadable(f"a dict that holds {error}") from None


def _number(value: Any) -> int | float:
    if isinstance(value, bool):
        raise Unreadable(f"{_described(value)}; wanted is a number")
    try:
        whole = operator.index(value)  # the whole numbers of numpy and torch too
    except TypeError:
        if not isinstance(value, (Real, Decimal)):
            raise Unreadable(f"{_described(value)}; wanted is a number") from None
        real = float(value)
        nearest = round(real) if isfinite(real) else 0
        return nearest if abs(real - nearest) < 0.01 else real
    if whole.bit_length() > 128:
        raise Unreadable("a number far beyond any memory")
    return whole


def show(value: Any) -> str:
    """The value in one short line, so that it can be pasted into a cell.

    >>> show([7_000_000_000, PRECISIONS["mixed"]])
    "[7_000_000_000, PRECISIONS['mixed']]"
    """
    return " ".join(_SHOW.repr(value).split())


def _described(value: Any) -> str:
    if value is None:
        return "None (is a `return` missing?)"
    kind = type(value).__name__
    article = "an" if kind[0].lower() in "aeiou" else "a"
    return f"{article} {kind}, {show(value)}"


class _Show(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 100
        self.maxlist = 12

    def repr_int(self, value: int, level: int) -> str:
        if value.bit_length() > 128:
            return f"a number of {value.bit_length()} bits"
        return f"{value:_}"

    def repr_float(self, value: float, level: int) -> str:
        return f"{value:_}"

    def repr_dict(self, value: dict, level: int) -> str:
        # reprlib sorts the keys; the states have an order of their own.
        items = list(value.items())[: self.maxdict]
        pairs = [f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in items]
        return f"{{{', '.join([*pairs, *(['...'] if len(value) > len(items) else [])])}}}"

    def repr_Precision(self, value: Precision, level: int) -> str:
        known = PRECISIONS.get(value.name) == value
        return f"PRECISIONS[{value.name!r}]" if known else repr(value)


_SHOW = _Show()
