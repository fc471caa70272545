"""What others count for the same run, by name."""

import json
from pathlib import Path

import pytest

from zerolab.accounting import PRECISIONS, model_states
from zerolab.accounting.conventions import CONVENTIONS, megatron_distributed_optimizer
from zerolab.accounting.estimators import deepspeed_zero2

PUBLISHED = json.loads(
    (Path(__file__).parent.parent / "data" / "bytes_per_parameter.json").read_text()
)


@pytest.mark.parametrize("row", PUBLISHED["counts"], ids=lambda row: str(row["bytes"]))
def test_every_published_count_has_a_convention(row):
    named = [c for c in CONVENTIONS.values() if c.bytes == row["bytes"]]
    assert named
    # Every source of the row is found under that count: compare by the first word of each.
    ours = " ".join(source for convention in named for source in convention.sources)
    for source in (
        row["source"].replace("the seed document", "the usual one-page summary").split("; ")
    ):
        name = {"ML": "Machine Learning"}.get(source.split()[0], source.split()[0])
        assert name in ours


def test_no_convention_counts_what_nobody_publishes():
    published = {row["bytes"] for row in PUBLISHED["counts"]}
    assert {convention.bytes for convention in CONVENTIONS.values()} == published


def test_where_a_policy_is_named_its_bytes_are_those():
    named = {c.policy: c.bytes for c in CONVENTIONS.values() if c.policy}
    assert named == {name: policy.total for name, policy in PRECISIONS.items()}


def test_the_largest_part_is_not_the_sum():
    convention = CONVENTIONS["accelerate"]
    assert convention.bytes == 8 < sum(convention.terms.values())


def test_two_gradients_are_deepspeeds_on_one_rank():
    assert deepspeed_zero2(10**9, 1) == CONVENTIONS["two-gradients"].bytes * 10**9


@pytest.mark.parametrize(
    ("parameter", "gradient", "name"),
    [
        (2, 2, "fp16_param_fp16_grad"),
        (2, 4, "bf16_param_fp32_grad"),
        (4, 4, "fp32_param_fp32_grad"),
    ],
)
def test_megatron_distributed_optimizer(parameter, gradient, name):
    alone, sharded = PUBLISHED["megatron_distributed_optimizer"][name].split(" -> ")
    assert megatron_distributed_optimizer(parameter, gradient, 1) == int(alone)
    for ranks in (2, 8, 64):
        ours = megatron_distributed_optimizer(parameter, gradient, ranks)
        assert ours == eval(sharded, {"d": ranks})


@pytest.mark.parametrize(("bytes_", "policy"), [((2, 4), "mixed_fp32_grads"), ((4, 4), "fp32")])
def test_megatrons_is_our_zero_1(bytes_, policy):
    ours = model_states(8 * 10**9, "zero1", 8, policy).total
    assert megatron_distributed_optimizer(*bytes_, 8) * 8 * 10**9 == ours
