"""Model states against the published figures, and the laws that any shares of a whole obey."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerolab.accounting import (
    PRECISIONS,
    SHARDING,
    STRATEGIES,
    InputError,
    largest_model,
    model_states,
    padding,
    persistent_states,
)
from zerolab.accounting.estimators import deepspeed_zero2, deepspeed_zero3
from zerolab.accounting.memory import STEP_COUNTER

DATA = Path(__file__).parent.parent / "data"
ZERO = json.loads((DATA / "zero_tables.json").read_text())
STAGES = {"P_os": "zero1", "P_os+g": "zero2", "P_os+g+p": "zero3"}
PARTS = ("parameters", "gradients", "optimizer")

sizes = st.lists(st.integers(1, 10**12), min_size=1, max_size=12)
ranks = st.integers(1, 4096)
strategies = st.sampled_from(STRATEGIES)
precisions = st.sampled_from(sorted(PRECISIONS))


def test_zero_paper_table_1():
    table = dict(ZERO["table1"])
    stages = [STAGES[name] for name in table.pop("stages")]
    checked = 0
    for parameters, rows in table.items():
        tolerance = 0.06 if parameters == "7.5e9" else 1  # the larger columns are truncated
        for degree, row in rows.items():
            for stage, printed in zip(stages, row, strict=True):
                ours = model_states(int(float(parameters)), stage, int(degree), "mixed").total
                assert abs(ours / 1e9 - printed) < tolerance, (parameters, degree, stage)
                checked += 1
    assert checked == 3 * 6 * 3


def test_zero_paper_figure_1():
    figure = ZERO["figure1"]
    for name, printed in figure["GB"].items():
        strategy = "ddp" if name == "baseline" else STAGES[name]
        ours = model_states(int(figure["parameters"]), strategy, figure["ranks"], "mixed").total
        assert ours / 1e9 == pytest.approx(printed, abs=0.05), name


def test_zero_paper_table_2_largest_model_in_32_gb():
    table = ZERO["table2"]
    for name in ("baseline", *STAGES):
        strategy = "ddp" if name == "baseline" else STAGES[name]
        exact = largest_model(32 * 10**9, strategy, 64, "mixed") / 1e9
        for degree, printed in zip(table["mp"], table[name], strict=True):
            # The paper rounds the first column and multiplies it.
            assert printed == pytest.approx(round(exact, 1) * degree), (name, degree)


def test_largest_model_is_the_largest():
    for strategy in STRATEGIES:
        best = largest_model(10**6, strategy, 7, "mixed")
        assert model_states(best, strategy, 7, "mixed").total <= 10**6
        assert model_states(best + 1, strategy, 7, "mixed").total > 10**6
    assert largest_model(15, "ddp", 1, "mixed") == 0


def test_one_page_summary_84_gb_and_8400_gb_on_100_ranks():
    states = model_states(7 * 10**9, "ddp", 100, "no_master")
    assert states.as_dict() == {
        "parameters": 14 * 10**9,
        "gradients": 14 * 10**9,
        "optimizer": 56 * 10**9,
        "total": 84 * 10**9,
    }
    assert 100 * states.total == 84 * 10**11


def test_bytes_a_parameter_that_others_count_where_a_policy_reproduces_them():
    published = {
        row["bytes"]
        for row in json.loads((DATA / "bytes_per_parameter.json").read_text())["counts"]
    }
    for name, count in {"no_master": 12, "mixed": 16, "mixed_fp32_grads": 18}.items():
        assert PRECISIONS[name].total == count
        assert count in published


@pytest.mark.parametrize("check", json.loads((DATA / "estimators.json").read_text())["checks"])
def test_deepspeed_estimators(check):
    parameters, gib = int(check["P"]), 2**30
    if "zero2" in check:
        assert deepspeed_zero2(parameters, check["N"]) / gib == pytest.approx(
            check["zero2"], abs=0.005
        )
    for name, offload in (
        ("zero3", "none"),
        ("zero3_optimizer_offloaded", "optimizer"),
        ("zero3_all_offloaded", "all"),
    ):
        if name in check:
            ours = deepspeed_zero3(parameters, int(check["largest"]), check["N"], offload)
            assert ours / gib == pytest.approx(check[name], abs=0.005)


def test_persistent_states_by_hand():
    # 10 and 3 elements on 4 ranks: padded to 12 and 4, shards of 3 and 1.
    assert padding([10, 3], 4) == 3
    counters = 2 * STEP_COUNTER
    expected = {
        "ddp": (2 * 16, 2 * 16, 12 * 16 + counters),
        "zero1": (2 * 16, 2 * 16, 12 * 4 + counters),
        "zero2": (2 * 16, 2 * 4, 12 * 4 + counters),
        "zero3": (2 * 4, 2 * 4, 12 * 4 + counters),
    }
    for strategy, parts in expected.items():
        states = persistent_states([10, 3], strategy, 4, "mixed")
        assert (states.parameters, states.gradients, states.optimizer) == parts


@given(sizes, ranks, strategies, precisions)
def test_shards_sum_to_the_whole_plus_the_stated_padding(unit_sizes, ranks, strategy, precision):
    policy = PRECISIONS[precision]
    states = persistent_states(unit_sizes, strategy, ranks, precision)
    elements = sum(unit_sizes) + padding(unit_sizes, ranks)
    counters = STEP_COUNTER * len(unit_sizes)
    width = {
        "parameters": policy.parameter,
        "gradients": policy.gradient,
        "optimizer": policy.optimizer,
    }
    for part, kept in SHARDING[strategy]._asdict().items():
        held = getattr(states, part) - (counters if part == "optimizer" else 0)
        copies = ranks if kept == "whole" else 1
        assert held * ranks == copies * elements * width[part]


@given(sizes, ranks)
def test_padding_is_less_than_one_element_a_rank_and_unit(unit_sizes, ranks):
    added = padding(unit_sizes, ranks)
    assert 0 <= added <= len(unit_sizes) * (ranks - 1)
    assert padding(unit_sizes, 1) == 0


@given(sizes, ranks, precisions)
def test_a_higher_stage_never_raises_a_category(unit_sizes, ranks, precision):
    for count in (
        lambda strategy: persistent_states(unit_sizes, strategy, ranks, precision),
        lambda strategy: model_states(sum(unit_sizes), strategy, ranks, precision),
    ):
        rows = [count(strategy) for strategy in STRATEGIES]
        for lower, higher in pairwise(rows):
            assert all(getattr(higher, part) <= getattr(lower, part) for part in PARTS)


@given(sizes, ranks, ranks, strategies, precisions)
def test_more_ranks_never_raise_persistent_bytes(unit_sizes, one, other, strategy, precision):
    few, many = sorted((one, other))
    for part in PARTS:
        textbook = [
            getattr(model_states(sum(unit_sizes), strategy, n, precision), part)
            for n in (few, many)
        ]
        assert textbook[1] <= textbook[0]
        # What is whole carries its padding, which is all that may grow.
        allowed = 0
        if getattr(SHARDING[strategy], part) == "whole":
            allowed = padding(unit_sizes, many) * PRECISIONS[precision].total
        engine = [
            getattr(persistent_states(unit_sizes, strategy, n, precision), part)
            for n in (few, many)
        ]
        assert engine[1] <= engine[0] + allowed


@given(sizes, st.integers(1, 10**9), ranks, strategies, precisions)
def test_a_larger_model_never_needs_less(unit_sizes, more, ranks, strategy, precision):
    larger = [unit_sizes[0] + more, *unit_sizes[1:]]
    for count, small, large in (
        (persistent_states, unit_sizes, larger),
        (model_states, sum(unit_sizes), sum(larger)),
    ):
        before, after = (count(size, strategy, ranks, precision) for size in (small, large))
        assert all(getattr(before, part) <= getattr(after, part) for part in PARTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, "ddp", 1, "mixed"), "--params: got 0; accepted is a whole number from 1 to"),
        ((7.5, "ddp", 1, "mixed"), "--params: got 7.5; accepted is a whole number from 1 to"),
        ((7, "zero4", 1, "mixed"), "--strategy: got 'zero4'; accepted is one of zero3, ddp"),
        ((7, "ddp", 0, "mixed"), "--ranks: got 0; accepted is a whole number from 1 to 1000000"),
        ((7, "ddp", 1, "bf16"), "--precision: got 'bf16'; accepted is one of"),
    ],
)
def test_bad_input_is_named_in_one_line(arguments, message):
    with pytest.raises(InputError) as caught:
        model_states(*arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
