"""What went wrong on which rank, told so that the reader knows where to look.

One failure causes others: when a rank dies inside a collective, its peers see closed connections;
when a rank raises, its peers wait for it. `failed` names the first cause, and then where each of
the others was.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class RankError(RuntimeError):
    """A run failed on a rank.

    `rank` is the one that failed, None where no single rank is to blame. `cause` is the exception
    that it raised, None where there was none or it could not travel between processes.
    """

    def __init__(
        self, message: str, rank: int | None = None, cause: BaseException | None = None
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.cause = cause


class RankTimeout(RankError, TimeoutError):
    """A run took longer than it was allowed to."""


@dataclass
class Failure:
    """One rank's end of the story."""

    rank: int
    what: str  # "raised ValueError: boom", "was ended by signal SIGKILL"
    died: bool = False
    position: str | None = None  # the collective that it failed in
    traceback: str = ""
    cause: BaseException | None = None

    def __str__(self) -> str:
        return f"{self.what} in {self.position}" if self.position else self.what


def death(rank: int, exitcode: int | None) -> Failure:
    """The failure of a rank whose process has ended; `exitcode` as `multiprocessing` has it."""
    if exitcode is None or exitcode >= 0:
        return Failure(rank, f"ended with exit code {exitcode}", died=True)
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = str(-exitcode)
    hint = " (sent by hand, or by a system that ran out of memory)" if name == "SIGKILL" else ""
    return Failure(rank, f"was ended by signal {name}{hint}", died=True)


def failed(failures: Sequence[Failure], others: Mapping[int, str]) -> RankError:
    """The error for a run in which ranks failed, in order of arrival.

    `others` says of every other rank what it was doing.
    """
    # A death explains its peers' exceptions, even those that arrived before it; an exception
    # outside a collective explains those inside one. Of several deaths the first counts; which of
    # several exceptions came first is chance, so the lowest rank's does.
    cause = min(
        failures, key=lambda f: (not f.died, f.position is not None, 0 if f.died else f.rank)
    )
    told = {f.rank: str(f).splitlines()[0] for f in failures if f is not cause}
    message = f"rank {cause.rank} {cause}\n{_list({**others, **told})}"
    if cause.traceback:
        message += f"\nOn rank {cause.rank}:\n{cause.traceback}"
    return RankError(message.rstrip(), cause.rank, cause.cause)


def late(seconds: float, doings: Mapping[int, str]) -> RankTimeout:
    """The error for a run that did not end in its time; `doings` says what each rank was doing."""
    message = f"the run did not end within its timeout of {seconds:g} s\n"
    return RankTimeout((message + _list(doings)).rstrip())


def _list(doings: Mapping[int, str]) -> str:
    """One line for all ranks that did the same, in the order of the lowest of them."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(doings):
        groups.setdefault(doings[rank], []).append(rank)
    return "".join(f"  {_names(ranks)}: {doing}\n" for doing, ranks in groups.items())


def _names(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
