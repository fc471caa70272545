"""What a reader of a recorded step is asked to predict, before a frame shows it.

At the first transfer of each kind, and at the first discard: how many bytes will one rank send, or
free? Every wrong choice is what some other thought would give, and says which.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from zerolab.teaching.frame_check import Expected
from zerolab.teaching.frames import DISCARDS, TRANSFERS, Frame

RANK = 2  # the one that is asked about


class Choice(NamedTuple):
    bytes: int
    meaning: str


@dataclass(frozen=True)
class Prediction:
    """A question about a frame. `given` is what the answer follows from."""

    question: str
    given: str
    choices: tuple[Choice, ...]  # by size, so that their order tells nothing
    answer: int  # bytes


def predictions(told: list[Frame], expected: Expected) -> dict[int, Prediction]:
    """The questions about a step's frames, by the frames' places."""
    asked: dict[tuple[str, str, bool], int] = {}
    for place, frame in enumerate(told):
        at_loss = frame.label == "loss"
        kind = (frame.phase, frame.kind, at_loss)
        if frame.kind not in (*TRANSFERS, "discard") or kind[:2] == ("backward", "discard"):
            continue
        if frame.label.startswith("blocks.") or at_loss:
            asked.setdefault(kind, place)
    return {place: _prediction(told[place], expected) for place in asked.values()}


def _prediction(frame: Frame, expected: Expected) -> Prediction:
    sends = frame.kind not in DISCARDS
    choices = sorted({one.bytes: one for one in _choices(frame, expected)}.values())
    return Prediction(
        question=f"How many bytes will rank {RANK} {'send' if sends else 'free'} now?",
        given=f"{_given(frame, expected)} There are {expected.ranks} ranks.",
        choices=tuple(choices),
        answer=(frame.sent if sends else frame.freed)[RANK],
    )


def _given(frame: Frame, expected: Expected) -> str:
    element = expected.element
    if expected.strategy != "tp":
        size = expected.padded[frame.label]
        what = "gradients" if frame.kind in ("reduce-scatter", "all-reduce") else "parameters"
        whole = size * element
        return f"{frame.label} has {size:,} {what} of {element} bytes: {whole:,} bytes."
    if frame.label == "loss":
        words = expected.shape["vocabulary"]
        return f"There are {expected.tokens} tokens, {words} words, and {element} bytes a number."
    width, whole = expected.shape["width"], expected.transferred(frame)
    return (
        f"There are {expected.tokens} tokens of width {width}, {element} bytes an element: "
        f"{whole:,} bytes."
    )


def _choices(frame: Frame, expected: Expected) -> Iterator[Choice]:
    """The answer among what other thoughts would give."""
    ranks = expected.ranks
    others = ranks - 1
    if frame.kind == "discard":
        whole = expected.unit(frame.label)
        yield Choice(whole // ranks, "That is its own chunk, which it keeps.")
        yield Choice(
            others * whole // ranks,
            "Those are the other ranks' chunks. But the gathered copy holds its own chunk too.",
        )
        yield Choice(
            whole, "That is the whole gathered copy. Its own chunk it also keeps as a parameter."
        )
        return
    whole = expected.transferred(frame)
    chunk = whole // ranks
    if frame.kind == "all-gather":
        yield Choice(chunk, f"That is its own chunk, once. But {others} ranks lack it.")
        yield Choice(
            others * chunk,
            f"That is {others} chunks: every rank lacks as many, and all ranks send alike.",
        )
        if frame.label == "loss":
            logits = expected.element * expected.tokens * expected.shape["vocabulary"]
            yield Choice(others * logits // ranks, "That is what gathering all logits would send.")
            return
        yield Choice(whole, "That is all of it. But every rank has one chunk already.")
        yield Choice(
            others * whole, "That is all of it to every other rank, as if one rank owned it."
        )
        return
    yield Choice(
        others * chunk,
        f"That is {others} chunks: all of its gradient but the chunk that it keeps."
        if frame.kind == "reduce-scatter"
        else "That is a reduce-scatter alone: each rank would have the sum of one chunk only.",
    )
    yield Choice(
        2 * others * chunk,
        "That is a reduce-scatter and an all-gather, one after the other: an all-reduce."
        if frame.kind == "all-reduce"
        else "That is an all-reduce, which also brings the sums back to every rank.",
    )
    yield Choice(others * whole, "That is all of it to every other rank, who then sums it all up.")
    if frame.kind == "reduce-scatter":
        yield Choice(chunk, "That is its own chunk, which it does not have to send at all.")
    else:
        yield Choice(whole, "That is all of it, once. But the sums have to come back as well.")
