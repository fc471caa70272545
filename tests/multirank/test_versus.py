"""The experiment's claims, from measurement: what grows with what, and where the two cross."""

import json
import subprocess
import sys

import pytest

from zerolab.training.gpt import GPTShape
from zerolab.training.versus import SIDES, compare, crossing, sweep

SHAPE = GPTShape(vocabulary=64, context=32, layers=2, heads=4, width=32)
TOKENS = [16, 64, 128, 256]


@pytest.fixture(scope="module")
def points(world_of):
    return sweep(world_of(2), TOKENS, SHAPE)


def test_zero3s_traffic_does_not_grow_with_tokens(points):
    assert len({point.zero3.wire_bytes for point in points}) == 1
    assert len({point.zero3.messages for point in points}) == 1


def test_tensor_parallelisms_traffic_is_proportional_to_tokens(points):
    per_token = {point.tensor_parallel.wire_bytes / point.tokens for point in points}
    assert len(per_token) == 1
    assert len({point.tensor_parallel.messages for point in points}) == 1


def test_traffic_grows_with_what_it_should(world_of, points):
    wide = compare(world_of(2), 64, GPTShape(**{**vars(SHAPE), "width": 64}))
    narrow = points[1]
    of_parameters = wide.parameters / narrow.parameters
    assert of_parameters > 3
    grown = wide.zero3.wire_bytes / narrow.zero3.wire_bytes
    assert grown == pytest.approx(of_parameters, rel=0.01)
    grown = wide.tensor_parallel.wire_bytes / narrow.tensor_parallel.wire_bytes
    assert grown == pytest.approx(2, rel=0.02)  # with the width, not with its square


@pytest.mark.parametrize("ranks", [2, 4])
def test_they_cross_where_the_formula_says(world_of, ranks):
    tokens = 64
    point = compare(world_of(ranks), tokens, SHAPE)
    measured = tokens * point.zero3.wire_bytes / point.tensor_parallel.wire_bytes
    assert measured == pytest.approx(crossing(ranks, SHAPE), rel=0.01)


def test_what_is_whole_and_what_is_split(points):
    tokens, width = TOKENS[0], SHAPE.width
    zero3, tensor = points[0].zero3, points[0].tensor_parallel
    assert zero3.weight_computed == (3 * width, width)
    assert zero3.product == (tokens // 2, 3 * width)
    assert tensor.weight_computed == (3 * width // 2, width)
    assert tensor.product == (tokens, 3 * width // 2)


def test_only_tensor_parallelism_waits_inside_a_layer(points):
    assert {point.zero3.inside_a_layer for point in points} == {0}
    assert {point.tensor_parallel.inside_a_layer for point in points} == {4}


def test_both_keep_a_share_of_the_states(points):
    whole = 16 * points[0].parameters  # fp32 parameters, gradients and two moments
    for point in points:
        assert point.zero3.persistent == pytest.approx(whole / 2, rel=0.01)
        assert whole / 2 < point.tensor_parallel.persistent < 0.6 * whole  # norms are on all ranks


def test_tensor_parallelism_divides_only_what_is_inside_a_layer(points):
    """For the same tokens a step, ZeRO-3's rank has half of every activation. Tensor parallelism
    has all of those between layers, and half of those within."""
    for point in points[1:]:
        ratio = point.tensor_parallel.activations / point.zero3.activations
        assert 1.1 < ratio < 2


def test_the_command_prints_the_sweep():
    run = subprocess.run(
        [sys.executable, "-m", "zerolab", "versus", "--tokens", "32,64", "--width", "32", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(run.stdout)
    assert [point["tokens"] for point in found["sweep"]] == [32, 64]
    keys = {"wire_bytes", "messages", "persistent", "activations", "step_seconds"}
    for point in found["sweep"]:
        for side in SIDES:
            assert keys <= point[side].keys()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ranks", "3"], "--ranks: got 3; accepted is a number that divides the 4 heads"),
        (["--tokens", "65"], "--tokens: got 65; accepted is a multiple of 2 ranks"),
        (["--tokens", "0"], "--tokens: got '0'; accepted is a whole number"),
        (["--width", "30"], "--width: got '30'; accepted is a multiple of"),
        (["--link", "nvlnk4"], "--link: got 'nvlnk4'; accepted is one of nvlink4"),
    ],
)
def test_wrong_input_is_one_line(options, message):
    run = subprocess.run(
        [sys.executable, "-m", "zerolab", "versus", *options], capture_output=True, text=True
    )
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert message in run.stderr
