"""Lab 1's checks accept whatever is right, and recognise what goes wrong.

The wrong functions here are written as a reader would write them, not taken from `lab01`.
"""

import math
from fractions import Fraction
from itertools import product

import pytest

from zerolab.accounting import PRECISIONS, STRATEGIES
from zerolab.teaching.checks import find, tasks_of
from zerolab.teaching.checks.checking import attempt, judge

pytestmark = pytest.mark.quick

TASKS = tasks_of("1")


def verdict(name, function):
    task = find(name)
    return judge(task, attempt(task, function))


# Right answers, each task's in several hands.


def state_bytes(parameters, precision):
    return parameters * precision.total


def by_adding_up(parameters, precision):
    total = 0
    for each in (precision.parameter, precision.gradient, precision.master, precision.moments):
        total += each * parameters
    return total


def by_float(parameters, precision):
    return float(parameters) * (precision.parameter + precision.gradient + precision.optimizer)


def policies(parameters, gigabytes):
    return [p for p in PRECISIONS if int(parameters * PRECISIONS[p].total / 1e9 + 0.5) == gigabytes]


def policies_as_set(parameters, gigabytes):
    found = set()
    for name, policy in PRECISIONS.items():
        if abs(parameters * policy.total - gigabytes * 10**9) < 5 * 10**8:
            found.add(name)
    return found


def policies_backwards(parameters, gigabytes):
    return tuple(reversed(policies(parameters, gigabytes)))


def waste_by_difference(parameters, ranks, precision):
    one = state_bytes(parameters, precision)
    return ranks * one - one


def waste_as_share(parameters, ranks, precision):
    return ranks * state_bytes(parameters, precision) * (1 - 1 / ranks)


def waste_as_fraction(parameters, ranks, precision):
    whole = ranks * state_bytes(parameters, precision)
    return Fraction(ranks - 1, ranks) * whole


def shard_of(parameters, ranks):
    return math.ceil(parameters / ranks)


def states(parameters, strategy, ranks, precision):
    held = {
        "parameters": precision.parameter * parameters,
        "gradients": precision.gradient * parameters,
        "optimizer": precision.optimizer * parameters,
    }
    sharded = {"ddp": (), "zero1": ["optimizer"], "zero2": ["optimizer", "gradients"]}
    for state in sharded.get(strategy, held):
        held[state] = held[state] // parameters * shard_of(parameters, ranks)
    return held


def states_with_branches(parameters, strategy, ranks, precision):
    p = g = o = parameters
    shard = (parameters + ranks - 1) // ranks
    if strategy != "ddp":
        o = shard
    if strategy == "zero2":
        g = shard
    elif strategy == "zero3":
        p = g = shard
    return {
        "optimizer": o * precision.optimizer,
        "gradients": g * precision.gradient,
        "parameters": p * precision.parameter,
        "total": "further keys are welcome",
    }


def padding(unit_sizes, ranks):
    return sum(-size % ranks for size in unit_sizes)


def padding_by_ceil(unit_sizes, ranks):
    return sum(math.ceil(size / ranks) * ranks - size for size in unit_sizes)


def padding_by_counting(unit_sizes, ranks):
    added = 0
    for size in unit_sizes:
        while size % ranks != 0:
            size += 1
            added += 1
    return added


def padding_that_uses_up_its_list(unit_sizes, ranks):
    added = 0
    while unit_sizes:
        added += -unit_sizes.pop() % ranks
    return added


def fits(parameters, ranks, precision, usable):
    return [
        s for s in STRATEGIES if sum(states(parameters, s, ranks, precision).values()) <= usable
    ]


def fits_as_set(parameters, ranks, precision, usable):
    return {s for s in STRATEGIES if s in fits(parameters, ranks, precision, usable)}


def fits_as_keys(parameters, ranks, precision, usable):
    return dict.fromkeys(fits(parameters, ranks, precision, usable)).keys()


def predict(unit_sizes, strategy, ranks, precision):
    held = states(sum(unit_sizes) + padding(unit_sizes, ranks), strategy, ranks, precision)
    return {**held, "optimizer": held["optimizer"] + 4 * len(unit_sizes)}


def predict_unit_by_unit(unit_sizes, strategy, ranks, precision):
    total = {"parameters": 0, "gradients": 0, "optimizer": 0}
    for size in unit_sizes:
        padded = math.ceil(size / ranks) * ranks
        for state, held in states(padded, strategy, ranks, precision).items():
            total[state] += held
        total["optimizer"] += 4
    return total


RIGHT = [
    ("1.1", state_bytes),
    ("1.1", by_adding_up),
    ("1.1", by_float),
    ("1.2", policies),
    ("1.2", policies_as_set),
    ("1.2", policies_backwards),
    ("1.3", waste_by_difference),
    ("1.3", waste_as_share),
    ("1.3", waste_as_fraction),
    ("1.3", lambda parameters, ranks, precision: (ranks - 1) * parameters * precision.total),
    ("1.4", states),
    ("1.4", states_with_branches),
    ("1.5", padding),
    ("1.5", padding_by_ceil),
    ("1.5", padding_by_counting),
    ("1.5", padding_that_uses_up_its_list),
    ("1.6", fits),
    ("1.6", fits_as_set),
    ("1.6", fits_as_keys),
    ("1.7", predict),
    ("1.7", predict_unit_by_unit),
]


@pytest.mark.parametrize(("name", "function"), RIGHT)
def test_right_answers_pass_however_they_are_written(name, function):
    result = verdict(name, function)
    assert result.passed, result.message


# Wrong answers: (task, what is wrong, the function, what the hint must say).


def dict_of(p, g, o):
    return {"parameters": p, "gradients": g, "optimizer": o}


def held_by(shard, p_from=3, g_from=2, o_from=1):
    """The states, with another shard or with other stages at which each state is sharded."""

    def wrong(parameters, strategy, ranks, precision):
        stage = STRATEGIES.index(strategy)
        part = shard(parameters, ranks)
        return dict_of(
            precision.parameter * (part if stage >= p_from else parameters),
            precision.gradient * (part if stage >= g_from else parameters),
            precision.optimizer * (part if stage >= o_from else parameters),
        )

    return wrong


def bytes_cut_up(parameters, strategy, ranks, precision):
    held = states(parameters, "ddp", 1, precision)
    for state in {"zero1": ["optimizer"], "zero2": ["optimizer", "gradients"]}.get(
        strategy, held if strategy == "zero3" else []
    ):
        held[state] = math.ceil(held[state] / ranks)
    return held


def without_master_copy(parameters, strategy, ranks, precision):
    held = states(parameters, strategy, ranks, precision)
    held["optimizer"] = held["optimizer"] // precision.optimizer * precision.moments
    return held


def with_gradients_in_fp32(parameters, strategy, ranks, precision):
    held = states(parameters, strategy, ranks, precision)
    held["gradients"] = held["gradients"] // precision.gradient * 4
    return held


def first_fit(parameters, ranks, precision, usable):
    for strategy in STRATEGIES:
        if sum(states(parameters, strategy, ranks, precision).values()) <= usable:
            return [strategy]
    return []


def exact_fit_refused(parameters, ranks, precision, usable):
    return [s for s in STRATEGIES if sum(states(parameters, s, ranks, precision).values()) < usable]


def gib_against_gb(parameters, ranks, precision, usable):
    return [
        s
        for s in STRATEGIES
        if sum(states(parameters, s, ranks, precision).values()) / 2**30 <= usable / 1e9
    ]


def predict_without_counters(unit_sizes, strategy, ranks, precision):
    return states(sum(unit_sizes) + padding(unit_sizes, ranks), strategy, ranks, precision)


def predict_with_one_counter(unit_sizes, strategy, ranks, precision):
    held = predict_without_counters(unit_sizes, strategy, ranks, precision)
    return {**held, "optimizer": held["optimizer"] + 4}


def predict_with_sharded_counters(unit_sizes, strategy, ranks, precision):
    held = predict_without_counters(unit_sizes, strategy, ranks, precision)
    return {**held, "optimizer": held["optimizer"] + 4 * len(unit_sizes) / ranks}


def predict_without_padding(unit_sizes, strategy, ranks, precision):
    held = states(sum(unit_sizes), strategy, ranks, precision)
    return {**held, "optimizer": held["optimizer"] + 4 * len(unit_sizes)}


def predict_with_padding_of_shards_only(unit_sizes, strategy, ranks, precision):
    exact = predict(unit_sizes, strategy, ranks, precision)
    bare = predict_without_padding(unit_sizes, strategy, ranks, precision)
    stage = STRATEGIES.index(strategy)
    return dict_of(
        (exact if stage >= 3 else bare)["parameters"],
        (exact if stage >= 2 else bare)["gradients"],
        (exact if stage >= 1 else bare)["optimizer"],
    )


WRONG = [
    ("1.1", "no master", lambda n, p: n * (p.parameter + p.gradient + p.moments), "master copy is"),
    ("1.1", "master twice", lambda n, p: n * (p.total + p.master), "master copy is counted twice"),
    ("1.1", "parameters alone", lambda n, p: n * p.parameter, "parameters alone"),
    ("1.1", "no gradients", lambda n, p: n * (p.parameter + p.optimizer), "gradients are missing"),
    ("1.1", "fp32 gradients", lambda n, p: n * (p.parameter + 4 + p.optimizer), "in fp32"),
    ("1.1", "16 for all", lambda n, p: 16 * n, "16 bytes a parameter whatever"),
    ("1.1", "moments twice", lambda n, p: n * (p.total + p.moments), "both of Adam's moments"),
    ("1.1", "one moment", lambda n, p: n * (p.total - p.moments / 2), "do not halve"),
    ("1.1", "GB", lambda n, p: n * p.total / 1e9, "that is in GB"),
    ("1.1", "GiB", lambda n, p: n * p.total / 2**30, "that is in GiB"),
    ("1.1", "bits", lambda n, p: 8 * n * p.total, "bits"),
    ("1.1", "one parameter", lambda n, p: p.total, "multiply by how many"),
    (
        "1.2",
        "GiB",
        lambda n, gb: [k for k, p in PRECISIONS.items() if round(n * p.total / 2**30) == gb],
        "gives GiB",
    ),
    ("1.2", "first only", lambda n, gb: policies(n, gb)[:1], "return them all"),
    (
        "1.2",
        "to the byte",
        lambda n, gb: [k for k, p in PRECISIONS.items() if n * p.total == gb * 10**9],
        "rounded to whole GB",
    ),
    (
        "1.2",
        "cut off",
        lambda n, gb: [k for k, p in PRECISIONS.items() if int(n * p.total / 1e9) == gb],
        "round to the nearest",
    ),
    (
        "1.2",
        "no master",
        lambda n, gb: [
            k for k, p in PRECISIONS.items() if round(n * (p.total - p.master) / 1e9) == gb
        ],
        "master copy is missing",
    ),
    ("1.3", "all copies", lambda n, r, p: r * n * p.total, "one copy is needed"),
    ("1.3", "one copy", lambda n, r, p: n * p.total, "what the other ranks repeat"),
    ("1.3", "parameters", lambda n, r, p: (r - 1) * n * p.parameter, "parameters alone"),
    ("1.3", "average", lambda n, r, p: (r - 1) / r * n * p.total, "wanted is their sum"),
    ("1.3", "no master", lambda n, r, p: (r - 1) * n * (p.total - p.master), "master copy is"),
    ("1.3", "TB", lambda n, r, p: (r - 1) * n * p.total / 1e12, "that is in TB"),
    ("1.4", "all by N", held_by(shard_of, 1, 1, 1), "divides everything by N"),
    ("1.4", "all by N, DDP too", held_by(shard_of, 0, 0, 0), "divides everything by N"),
    ("1.4", "fractions", held_by(lambda n, r: n / r), "whole number of them"),
    ("1.4", "floor", held_by(lambda n, r: n // r), "rounded down"),
    ("1.4", "round", held_by(lambda n, r: round(n / r)), "rounded to the nearest"),
    ("1.4", "bytes cut up", bytes_cut_up, "cut the parameters into shards first"),
    ("1.4", "one step off", held_by(shard_of, 4, 3, 2), "one step off"),
    ("1.4", "turned round", held_by(shard_of, 1, 2, 3), "order is turned round"),
    ("1.4", "nothing sharded", held_by(shard_of, 9, 9, 9), "nothing is sharded"),
    ("1.4", "no master", without_master_copy, "master copy is missing"),
    ("1.4", "fp32 gradients", with_gradients_in_fp32, "counted in fp32"),
    ("1.5", "the sum", lambda sizes, r: -sum(sizes) % r, "pads the sum"),
    ("1.5", "a full step", lambda sizes, r: sum(r - s % r for s in sizes), "needs no padding"),
    ("1.5", "remainder", lambda sizes, r: sum(s % r for s in sizes), "left over"),
    ("1.5", "padded size", lambda sizes, r: sum(-(-s // r) * r for s in sizes), "padded size"),
    ("1.5", "last unit", lambda sizes, r: [0, *(-s % r for s in sizes)][-1], "last unit alone"),
    ("1.6", "first fit", first_fit, "stops at the first"),
    ("1.6", "best fit", lambda *case: fits(*case)[-1:], "shards most"),
    ("1.6", "refuses exact fit", exact_fit_refused, "compare with <="),
    ("1.6", "GiB against GB", gib_against_gb, "GiB against GB"),
    (
        "1.6",
        "parameters alone",
        lambda n, r, p, usable: [
            s for s in STRATEGIES if states(n, s, r, p)["parameters"] <= usable
        ],
        "gradients and optimizer states count",
    ),
    (
        "1.6",
        "all by N",
        lambda n, r, p, usable: list(STRATEGIES) if shard_of(n, r) * p.total <= usable else [],
        "divides everything by N",
    ),
    (
        "1.6",
        "the opposite",
        lambda *case: [s for s in STRATEGIES if s not in fits(*case)],
        "do not fit",
    ),
    ("1.7", "no counters", predict_without_counters, "step counters are missing"),
    ("1.7", "one counter", predict_with_one_counter, "one for each unit"),
    ("1.7", "counters sharded", predict_with_sharded_counters, "not sharded"),
    ("1.7", "no padding", predict_without_padding, "padding is missing"),
    ("1.7", "shards padded", predict_with_padding_of_shards_only, "keeps its padding too"),
    (
        "1.7",
        "the textbook",
        lambda sizes, *case: states(sum(sizes), *case),
        "textbook's count",
    ),
]


@pytest.mark.parametrize(
    ("name", "function", "hint"),
    [pytest.param(name, f, hint, id=f"{name} {what}") for name, what, f, hint in WRONG],
)
def test_a_wrong_answer_gets_the_hint_for_its_mistake(name, function, hint):
    result = verdict(name, function)
    assert not result.passed
    _, _, given = result.message.partition("Hint: ")
    assert hint in given, result.message
    assert "\n" not in str(result)


def test_every_task_is_tried_on_four_wrong_answers_or_more():
    wrong = [name for name, *_ in WRONG]
    right = [name for name, _ in RIGHT]
    assert {t.name for t in TASKS} == set(wrong) == set(right)
    assert min(wrong.count(name) for name in wrong) >= 4
    assert min(right.count(name) for name in right) >= 2


def test_the_case_that_is_shown_is_true_and_can_be_pasted():
    result = verdict("1.3", lambda n, r, p: r * n * p.total)
    call, _, rest = result.message.partition(": expected ")
    expected, _, rest = rest.partition(", got ")
    got, _, _ = rest.partition(". ")
    names = {"PRECISIONS": PRECISIONS, "waste": waste_by_difference}
    assert eval(call, names) == int(expected)
    assert eval(call, {**names, "waste": lambda n, r, p: r * n * p.total}) == int(got)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_known_mistake_is_wrong_and_is_told_from_the_others(task):
    for mistake in task.mistakes:
        result = judge(task, attempt(task, mistake.formula))
        assert not result.passed, mistake.hint
        assert result.message.endswith(f"Hint: {mistake.hint}")


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_no_constant_passes(task):
    answers = {str(answer): answer for answer in (task.truth(*case) for case in task.cases)}
    for answer in answers.values():
        result = judge(task, attempt(task, lambda *_, answer=answer: answer))
        assert not result.passed
        assert "the same for every input" in result.message


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_no_wrong_case_goes_unnoticed(task):
    """An answer that is right everywhere but once fails, wherever that is."""
    for odd in (*task.cases[::10], task.cases[-1]):
        spoiled = {"number": -1, "names": ["none"], "states": dict_of(-1, -1, -1)}

        def function(*case, odd=odd, value=spoiled[task.kind.__name__]):
            return value if case == odd else task.truth(*case)

        result = judge(task, attempt(task, function))
        assert not result.passed
        assert task.call(odd) in result.message


def test_floats_are_exact_on_every_case():
    """Whoever computes in floats must not fail for it: no truth is beyond 2**53."""
    for task in TASKS:
        for case in task.cases:
            parts = task.kind(task.truth(*case)).values()
            assert all(part <= 2**53 for part in parts if not isinstance(part, list))


def test_ceil_of_a_float_is_exact_on_every_shard():
    for (count, *_), (_, _, ranks, _) in product(find("1.4").cases, repeat=2):
        assert math.ceil(count / ranks) == -(-count // ranks)
