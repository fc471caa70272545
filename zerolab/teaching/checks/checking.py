"""How a check comes to its verdict.

A `Task` has the inputs to try, the truth, and the mistakes that people make, each kept as the wrong
formula itself. `attempt` calls the reader's function on every input. `judge` holds the outcomes
against the truth; where they differ it runs the known mistakes on the same inputs, and the one that
gives exactly the reader's wrong answers is the one to hint at.

The two halves are apart because grading attempts in the notebook's kernel and judges outside it.
"""

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from math import isclose
from types import FrameType
from typing import Any

from zerolab.teaching.checks.answers import Kind, Parts, Unreadable, show

_LOOP = "is there a loop that never ends, or one that goes over every element?"

TIME_LIMIT = 10.0  # seconds for all inputs of one task; a right answer takes milliseconds


@dataclass(frozen=True)
class Mistake:
    """A wrong formula that people write, called like the task's function, and what to say."""

    hint: str
    formula: Callable[..., Any]


@dataclass(frozen=True)
class Task:
    """One task of a lab. The first case is the one that a passed check shows."""

    name: str  # "1.3"
    function: str  # what the notebook calls it
    kind: Kind
    truth: Callable[..., Any]
    cases: Sequence[tuple]
    mistakes: Sequence[Mistake]

    def call(self, case: tuple) -> str:
        return f"{self.function}({', '.join(map(show, case))})"


@dataclass(frozen=True)
class Outcome:
    """What one call came to: the parts of its answer, or why there are none."""

    parts: Parts | None = None
    trouble: str = ""  # continues the call: "raised ZeroDivisionError: division by zero"
    unfinished: str = ""  # the function that still raises NotImplementedError


@dataclass(frozen=True)
class Verdict:
    """One task's mark, with the reason in one line."""

    name: str
    passed: bool
    message: str

    def __str__(self) -> str:
        return f"{'✓' if self.passed else '✗'} {self.name} {self.message}"


def attempt(task: Task, function: Any, seconds: float = TIME_LIMIT) -> list[Outcome]:
    """Call the reader's function on every case, up to the first that gives no answer.

    function: None where the notebook defines none.
    """
    if function is None:
        return [Outcome(unfinished=task.function)]
    if not callable(function):
        usage = f'check("{task.name}", {task.function})'
        return [Outcome(trouble=f"was not called: give the function itself, {usage}")]
    outcomes: list[Outcome] = []
    try:
        # What the function prints would drown the verdict, once for every case.
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), _time_limit(seconds):
            for case in task.cases:
                outcomes.append(_call(task, function, case))
                if outcomes[-1].parts is None:
                    break
    except _TooLong:
        outcomes.append(Outcome(trouble=f"had not returned after {seconds:g} s: {_LOOP}"))
    except KeyboardInterrupt:
        outcomes.append(Outcome(trouble=f"was stopped before it returned: {_LOOP}"))
    return outcomes


def judge(task: Task, outcomes: Sequence[Outcome]) -> Verdict:
    """Passed only if every case has its true answer."""
    truths = [task.kind(task.truth(*case)) for case in task.cases]
    for case, truth, outcome in zip(task.cases, truths, outcomes, strict=False):
        if outcome.parts == truth:
            continue
        if outcome.unfinished:
            return Verdict(task.name, False, f"not done yet: complete {outcome.unfinished}")
        if outcome.parts is None:
            return Verdict(task.name, False, f"{task.call(case)} {outcome.trouble}")
        return Verdict(task.name, False, _difference(task, case, truth, outcomes, truths))
    if len(outcomes) < len(task.cases):
        reached = f"{len(outcomes)} of {len(task.cases)}"
        return Verdict(task.name, False, f"only {reached} calls of {task.function} returned")
    shown = f"{task.call(task.cases[0])} is {_value(truths[0])}"
    return Verdict(task.name, True, f"passed, on {len(task.cases)} inputs: {shown}")


def _call(task: Task, function: Callable, case: tuple) -> Outcome:
    try:
        # A copy, so that a function that empties its list spoils only its own input.
        return Outcome(parts=task.kind(function(*deepcopy(case))))
    except Unreadable as error:
        return Outcome(trouble=f"returned {error}")
    except NotImplementedError as error:
        # The innermost frame: a task may build on an earlier one that is not done.
        return Outcome(unfinished=traceback.extract_tb(error.__traceback__)[-1].name)
    except (_TooLong, KeyboardInterrupt):
        raise
    except BaseException as error:  # the reader's code may raise anything, SystemExit too
        return Outcome(trouble=_raised(error, function))


def _raised(error: BaseException, function: Callable) -> str:
    text = f"raised {' '.join(''.join(traceback.format_exception_only(error)).split())}"
    code = getattr(function, "__code__", None)
    lines = [
        frame.line
        for frame in traceback.extract_tb(error.__traceback__)
        if code is not None and frame.filename == code.co_filename and frame.line
    ]
    if lines:
        text += f", at `{lines[-1]}`"
    return text + (". Hint: run the cells above first" if isinstance(error, NameError) else "")


def _difference(
    task: Task, case: tuple, truth: Parts, outcomes: Sequence[Outcome], truths: Sequence[Parts]
) -> str:
    """The first wrong part of the first wrong case, and the hint if a known mistake explains it."""
    answered = [
        (case, got.parts, truth)
        for case, got, truth in zip(task.cases, outcomes, truths, strict=False)
        if got.parts is not None
    ]
    parts = next(got for this, got, _ in answered if this is case)
    key = next(key for key in truth if parts[key] != truth[key])
    where = task.call(case) + (f"[{key!r}]" if key else "")
    text = f"{where}: expected {show(truth[key])}, got {show(parts[key])}"
    hint = _hint(task, key, answered)
    return f"{text}. Hint: {hint}" if hint else text


def _hint(task: Task, key: str, answered: Sequence[tuple[tuple, Parts, Parts]]) -> str | None:
    if len(answered) > 2 and all(got == answered[0][1] for _, got, _ in answered):
        return "your answer is the same for every input"
    wrong = [(case, got, truth) for case, got, truth in answered if got != truth]
    # A mistake that gives all of the reader's answers, right and wrong, is the surest; then one
    # that gives the wrong ones; then one that gives what is wrong in the part that is shown.
    for known in (answered, wrong):
        for mistake in task.mistakes:
            if all(_same(_made(task, mistake, case), got) for case, got, _ in known):
                return mistake.hint
    for mistake in task.mistakes:
        if all(
            _same({key: _made(task, mistake, case)[key]}, {key: got[key]})
            for case, got, truth in wrong
            if got[key] != truth[key]
        ):
            return mistake.hint
    large = [
        (got[key], truth[key])
        for _, got, truth in wrong
        if isinstance(truth[key], int) and truth[key] >= 10**10
    ]
    for hint, scale in _UNITS:
        if large and all(isclose(got * scale, truth, rel_tol=0.01) for got, truth in large):
            return hint
    return None


def _made(task: Task, mistake: Mistake, case: tuple) -> Parts:
    return task.kind(mistake.formula(*case))


def _same(made: Parts, got: Parts) -> bool:
    """Whether two wrong answers are the same, fractions of a byte apart that floats blur."""
    return all(
        isclose(made[key], got[key], rel_tol=1e-12)
        if isinstance(made[key], float) and isinstance(got[key], float)
        else made[key] == got[key]
        for key in made
    )


_UNITS = (
    ("that is in GB; wanted are bytes", 10**9),
    ("that is in GiB; wanted are bytes", 2**30),
    ("that is in TB; wanted are bytes", 10**12),
    ("that is in bits; a byte has 8 of them", 1 / 8),
)


def _value(parts: Parts) -> str:
    return show(parts.get("", parts))


class _TooLong(BaseException):
    """Not an Exception, so that the reader's `except Exception` does not swallow it."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TooLong in the block after `seconds`, and again each second should it be swallowed.

    Only the main thread of a POSIX system can be interrupted so; elsewhere the block runs freely,
    and grading ends the kernel.
    """
    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TooLong

    handler = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
