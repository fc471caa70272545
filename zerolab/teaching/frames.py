"""A recorded step, frame by frame: what `training.record` wrote, put in order for a reader.

A frame is one thing that all ranks do at the same point of the step. What a rank computes before
and after a transfer in its midst, as under tensor parallelism, are two frames.

`check` holds the frames against what they must add up to; no book is built with frames that fail.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zerolab.teaching.causes import cause
from zerolab.teaching.tables import NAMES, STATES

Recording = dict[str, Any]  # as `training.record.record` makes it, or JSON gives it back

TITLES = {**NAMES, "tp": "Tensor parallelism"}
HELD = (*STATES, "gathered", "activations")
TRANSFERS = ("all-gather", "reduce-scatter", "all-reduce")
DISCARDS = ("discard", "release")
COMPUTING = ("forward", "backward", "step")


@dataclass(frozen=True)
class Frame:
    """Bytes are those of each rank, by rank."""

    phase: str  # "forward", "backward" or "step"
    kind: str  # a member of TRANSFERS, DISCARDS or COMPUTING
    label: str  # of what: a unit, or a layer of one
    cause: str  # why this happens now, in a sentence
    sent: tuple[int, ...]
    freed: tuple[int, ...]
    live: tuple[dict[str, int], ...]  # what a rank holds after it, by the names in HELD


@dataclass
class _Moment:
    """A frame of one rank. `follows`: the transfer that it prepares; `after`: the one before it."""

    kind: str
    label: str
    bytes: int
    live: dict[str, int]
    follows: str = ""
    after: str = ""


def frames(recording: Recording, strategy: str) -> list[Frame]:
    """All frames of a strategy's step. Raises ValueError where ranks did different things."""
    by_rank = [list(_merged(_moments(events))) for events in _events(recording, strategy)]
    counts = [len(moments) for moments in by_rank]
    if len(set(counts)) != 1:
        raise ValueError(f"{strategy}: the ranks have {counts} frames, which are not as many")
    phase, made = "forward", []
    for place, moments in enumerate(zip(*by_rank, strict=True)):
        first = moments[0]
        if any((one.kind, one.label) != (first.kind, first.label) for one in moments):
            raise ValueError(f"{strategy}, frame {place}: the ranks do not do the same")
        if first.kind in COMPUTING:
            phase = first.kind
        sent = tuple(one.bytes * (one.kind in TRANSFERS) for one in moments)
        freed = tuple(one.bytes * (one.kind in DISCARDS) for one in moments)
        why = cause(strategy, phase, first.kind, first.label, first.follows, first.after)
        held = tuple(one.live for one in moments)
        made.append(Frame(phase, first.kind, first.label, why, sent, freed, held))
    return made


def _events(recording: Recording, strategy: str) -> list[list[dict[str, Any]]]:
    """A strategy's events, rank by rank."""
    ranks = recording["otherData"]["ranks"]
    first = list(recording["otherData"]["strategies"]).index(strategy) * ranks
    by_process = defaultdict(list)
    for event in recording["traceEvents"]:
        by_process[event["pid"]].append(event)
    return [by_process[process] for process in range(first, first + ranks)]


def _moments(events: list[dict[str, Any]]) -> Iterator[_Moment]:
    """One rank's frames. Counters follow what they were read after, and stand until the next."""
    live = dict.fromkeys(HELD, 0)
    found: list[tuple[dict[str, Any], dict[str, int]]] = []
    for event in events:
        if event["ph"] == "C" and found:
            live[event["name"]] = event["args"]["bytes"]
            found[-1] = (found[-1][0], dict(live))
        elif event["ph"] not in "CM":
            found.append((event, dict(live)))
    after = ""
    computing: list[tuple[str, str]] = []
    for event, held in found:
        kind, _, label = event["name"].partition(" ")
        if event["ph"] == "B":
            computing.append((kind, label))
            after = ""
        elif event["ph"] == "E":
            yield _Moment(kind, label, 0, held, after=after)
            computing.pop()
        else:
            if computing:
                yield _Moment(*computing[-1], 0, held, follows=label, after=after)
                after = label
            yield _Moment(kind, label, event["args"]["bytes"], held)


def _merged(moments: Iterator[_Moment]) -> Iterator[_Moment]:
    """Two units of one name, as of a layer's divided and undivided parameters, take one step."""
    last: _Moment | None = None
    for moment in moments:
        if last and moment.kind == "step" and (last.kind, last.label) == ("step", moment.label):
            last.live = moment.live
            continue
        if last:
            yield last
        last = moment
    if last:
        yield last
