"""A check survives whatever a reader's function does, and says it in one line."""

import sys
import threading
import time
from contextlib import suppress
from decimal import Decimal

import numpy
import pytest
import torch

from zerolab.accounting import PRECISIONS, Precision
from zerolab.teaching.checks import check, find
from zerolab.teaching.checks.answers import Unreadable, names, number, show, states
from zerolab.teaching.checks.checking import Outcome, attempt, judge

pytestmark = pytest.mark.quick

WASTE = find("1.3")


def message(function, task=WASTE, seconds=10.0):
    verdict = judge(task, attempt(task, function, seconds))
    assert not verdict.passed
    assert "\n" not in verdict.message
    return verdict.message


def raising(error):
    def function(*case):
        raise error

    return function


class Rude:
    """An object that refuses everything."""

    def refuse(self, *args):
        raise RuntimeError("refused")

    __repr__ = __str__ = __eq__ = __hash__ = __index__ = __float__ = __len__ = __iter__ = refuse


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda *case: None, "returned None (is a `return` missing?)"),
        (lambda *case: "8.3 TB", "returned a str, '8.3 TB'; wanted is a number"),
        (lambda *case: [1, 2], "returned a list, [1, 2]; wanted is a number"),
        (lambda *case: True, "returned a bool, True; wanted is a number"),
        (lambda *case: (1 for _ in case), "returned a generator"),
        (lambda *case: WASTE.truth, "returned a function"),
        (lambda *case: 1j, "returned a complex"),
        (lambda *case: 1 << 10_000, "a number far beyond any memory"),
        (lambda *case: Rude(), "raised RuntimeError: refused"),
        (lambda: 1, "raised TypeError: "),
        (lambda a, ranks, b: 1 // (ranks - 100), "raised ZeroDivisionError: "),
        (lambda *case: undefined, "Hint: run the cells above first"),  # noqa: F821
        (raising(SystemExit(3)), "raised SystemExit: 3"),
        (raising(ValueError("two\nlines")), "raised ValueError: two lines"),
        (lambda *case: message.__wrapped__(case), "raised AttributeError"),
        (5, 'give the function itself, check("1.3", waste)'),
        (None, "not done yet: complete waste"),
        (raising(NotImplementedError), "not done yet: complete function"),
        (raising(KeyboardInterrupt), "was stopped before it returned"),
    ],
)
def test_what_is_no_answer_is_named(function, said):
    assert said in message(function)


def test_an_exception_is_shown_with_the_readers_own_line():
    def waste(parameters, ranks, precision):
        return parameters / (ranks - 100)

    assert message(waste).endswith("division by zero, at `return parameters / (ranks - 100)`")


def test_recursion_without_end_is_reported():
    def waste(*case):
        return waste(*case)

    assert "raised RecursionError" in message(waste)


def test_a_task_names_the_earlier_one_that_is_not_done():
    def state_bytes(parameters, precision):
        raise NotImplementedError

    def waste(parameters, ranks, precision):
        return (ranks - 1) * state_bytes(parameters, precision)

    assert message(waste) == "not done yet: complete state_bytes"


def forever(*case):
    while True:
        pass


def forever_in_spite_of_exceptions(*case):
    while True:
        with suppress(Exception):
            time.sleep(0.01)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGALRM: grading ends the kernel instead")
@pytest.mark.parametrize("function", [forever, forever_in_spite_of_exceptions])
def test_a_loop_without_end_is_stopped(function):
    assert "had not returned after 0.2 s" in message(function, seconds=0.2)


def test_elsewhere_than_on_the_main_thread_checks_work_without_the_time_limit():
    verdicts = []
    thread = threading.Thread(
        target=lambda: verdicts.append(judge(WASTE, attempt(WASTE, WASTE.truth)))
    )
    thread.start()
    thread.join(10)
    assert verdicts[0].passed


def test_a_function_that_prints_does_not_drown_the_verdict(capsys):
    def waste(*case):
        print("working on", case)
        return WASTE.truth(*case)

    check("1.3", waste)
    assert capsys.readouterr().out.count("\n") == 1


def test_check_prints_one_line_and_returns_nothing(capsys):
    assert check("1.3", WASTE.truth) is None
    check("1.3", lambda *case: None)
    right, wrong = capsys.readouterr().out.splitlines()
    assert right.startswith("✓ 1.3 passed, on 106 inputs: waste(7_000_000_000, 100, ")
    assert right.endswith("is 8_316_000_000_000")
    assert wrong.startswith("✗ 1.3 waste(7_000_000_000, 100, PRECISIONS['no_master']) returned")


def test_an_unknown_task_is_named_with_those_there_are():
    with pytest.raises(ValueError, match=r"no task '9\.9'; there are 1\.1, 1\.2"):
        check("9.9", forever)


def test_answers_that_stop_half_way_do_not_pass():
    outcomes = attempt(WASTE, WASTE.truth)
    assert "50 of 106 calls" in judge(WASTE, outcomes[:50]).message
    assert not judge(WASTE, []).passed


def test_the_first_wrong_part_of_a_dict_is_the_one_shown():
    task = find("1.4")

    def function(*case):
        return {**task.truth(*case), "gradients": 3}

    text = message(function, task)
    assert "PRECISIONS['mixed'])['gradients']: expected 15_000_000_000, got 3" in text


@pytest.mark.parametrize(
    "value",
    [16, 16.0, Decimal(16), numpy.int64(16), numpy.float32(16), torch.tensor(16)],
    ids=lambda value: type(value).__name__,
)
def test_a_number_is_a_number_whatever_its_type(value):
    assert number(value) == {"": 16}


def test_fractions_and_infinities_are_numbers_but_never_right():
    assert number(2.5) == {"": 2.5}
    assert "got inf" in message(lambda *case: float("inf") * case[1])
    assert "got nan" in message(lambda *case: float("nan"))


@pytest.mark.parametrize(
    ("kind", "answer", "said"),
    [
        (names, "zero3", "one name, 'zero3'; wanted is a list, such as ['zero3']"),
        (names, 3, "an int, 3; wanted is a list of names"),
        (names, ["ddp", 3], "a list that holds an int, 3"),
        (names, {"ddp": True}, "a dict, {'ddp': True}; wanted is a list"),
        (states, (1, 2, 3), "a tuple, (1, 2, 3); wanted is a dict with the keys parameters, grad"),
        (states, {"parameters": 1, "Gradients": 2}, "a dict without 'gradients', 'optimizer'"),
        (
            states,
            {"parameters": 1, "gradients": None, "optimizer": 2},
            "a dict that holds None",
        ),
    ],
)
def test_an_answer_of_the_wrong_kind_is_described(kind, answer, said):
    with pytest.raises(Unreadable) as raised:
        kind(answer)
    assert said in str(raised.value)


def test_what_is_shown_can_be_pasted_and_is_never_long():
    odd = Precision("odd", 1, 2, 3, 4)
    case = (7_000_000_000, "zero1", 1.5, PRECISIONS["mixed"], odd, [1_000, 2], {"a": None})
    names = {"PRECISIONS": PRECISIONS, "Precision": Precision}
    assert eval(f"({', '.join(map(show, case))})", names) == case
    endless: list = []
    endless.append(endless)
    for value in (list(range(10_000)), "x" * 10_000, numpy.zeros((99, 99)), endless, 10**5_000):
        assert len(show(value)) < 200
        assert "\n" not in show(value)


def test_outcomes_survive_json():
    import json
    from dataclasses import asdict

    for task in (WASTE, find("1.4"), find("1.6")):
        sent = json.loads(json.dumps([asdict(o) for o in attempt(task, task.truth)]))
        assert judge(task, [Outcome(**o) for o in sent]).passed
