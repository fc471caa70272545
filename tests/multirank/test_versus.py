"""The experiment's claims, from measurement: what grows with what, and where the two cross."""

import io
import itertools
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from zerolab.accounting.links import link
from zerolab.teaching.plots import versus_figure
from zerolab.teaching.tables import versus_notes, versus_table
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
    (wide,) = sweep(world_of(2), [64], SHAPE, widths=[64])
    narrow = points[1]
    assert (narrow.width, wide.width) == (32, 64)
    of_parameters = wide.parameters / narrow.parameters
    assert of_parameters > 3
    grown = wide.zero3.wire_bytes / narrow.zero3.wire_bytes
    assert grown == pytest.approx(of_parameters, rel=0.01)
    grown = wide.tensor_parallel.wire_bytes / narrow.tensor_parallel.wire_bytes
    assert grown == pytest.approx(2, rel=0.02)  # with the width, not with its square


@pytest.mark.parametrize(("ranks", "width"), [(2, 32), (4, 32), (2, 64)])
def test_they_cross_where_the_formula_says(world_of, ranks, width):
    tokens, shape = 64, replace(SHAPE, width=width)
    point = compare(world_of(ranks), tokens, shape)
    measured = tokens * point.zero3.wire_bytes / point.tensor_parallel.wire_bytes
    assert measured == pytest.approx(crossing(ranks, shape), rel=0.01)
    assert point.crossing_tokens == crossing(ranks, shape)


def test_on_either_side_of_the_crossing_another_one_sends_less(points):
    fewer = [p for p in points if p.tokens < p.crossing_tokens]
    more = [p for p in points if p.tokens > p.crossing_tokens]
    assert fewer
    assert more
    assert all(p.tensor_parallel.wire_bytes < p.zero3.wire_bytes for p in fewer)
    assert all(p.tensor_parallel.wire_bytes > p.zero3.wire_bytes for p in more)


def test_what_is_whole_and_what_is_split(points):
    tokens, width = TOKENS[0], SHAPE.width
    zero3, tensor = points[0].zero3, points[0].tensor_parallel
    assert zero3.weight_computed == (3 * width, width)
    assert zero3.product == (tokens // 2, 3 * width)
    assert tensor.weight_computed == (3 * width // 2, width)
    assert tensor.product == (tokens, 3 * width // 2)
    assert zero3.between == (tokens // 2, width)
    assert tensor.between == (tokens, width)


def test_only_tensor_parallelism_waits_inside_a_layer(points):
    assert {point.zero3.inside_a_layer for point in points} == {0}
    assert {point.tensor_parallel.inside_a_layer for point in points} == {4}


def test_both_keep_a_share_of_the_states(points):
    whole = 16 * points[0].parameters  # fp32 parameters, gradients and two moments
    for point in points:
        assert point.zero3.persistent == pytest.approx(whole / 2, rel=0.01)
        assert whole / 2 < point.tensor_parallel.persistent < 0.6 * whole  # norms are on all ranks


def test_tensor_parallelism_divides_only_what_is_inside_a_layer(world_of):
    """Of each token that a rank computes, ZeRO-3 has every activation whole, however many ranks
    there are. Tensor parallelism has its share of those inside a layer, and all between layers."""
    two, four = (compare(world_of(ranks), 128, SHAPE) for ranks in (2, 4))
    zero3 = two.zero3.activations_inside / 64, four.zero3.activations_inside / 32
    tensor = two.tensor_parallel.activations_inside, four.tensor_parallel.activations_inside
    assert zero3[0] > 4 * SHAPE.layers * 12 * SHAPE.width  # 3 C, C, 4 C and 4 C at least, in fp32
    assert zero3[0] == pytest.approx(zero3[1], rel=0.01)
    assert tensor[0] / 128 == pytest.approx(zero3[0] / 2, rel=0.01)
    assert tensor[1] / 128 == pytest.approx(zero3[0] / 4, rel=0.01)
    assert two.tensor_parallel.between == four.tensor_parallel.between
    outside = [
        side.activations - side.activations_inside
        for side in (two.tensor_parallel, four.tensor_parallel)
    ]
    # Between layers nothing is divided; the logits are, and lie outside of the layers too.
    assert 0.8 * outside[0] < outside[1] < outside[0]


def test_a_slow_link_is_waited_for_in_tensor_parallelism_and_hidden_in_zero3(world_of):
    """Enough tokens that ZeRO-3 has something to compute meanwhile. A busy machine makes ranks wait
    for each other as well: the best of a few attempts counts."""
    shape, told = replace(SHAPE, context=64, width=128), []
    for _ in range(4):
        point = compare(world_of(2), 1024, shape, link="1gbe")
        zero3, tensor = point.zero3, point.tensor_parallel
        for side in (zero3, tensor):
            delivered = link("1gbe").seconds(side.wire_bytes, side.messages)
            assert side.communication_seconds >= 0.99 * delivered
            assert side.step_seconds_in_turn >= 0.99 * delivered
        assert tensor.step_seconds >= tensor.waiting_seconds > 0
        told.append(
            (
                zero3.waiting_seconds / zero3.communication_seconds,
                zero3.step_seconds / zero3.step_seconds_in_turn,
                tensor.waiting_seconds / tensor.communication_seconds,
            )
        )
        waiting, of_in_turn, tensor_waiting = told[-1]
        if waiting < 0.8 and of_in_turn < 0.95 and tensor_waiting > 0.95:
            return
    pytest.fail(f"(ZeRO-3 waiting, its step over one in turn, tensor waiting): {told}")


def test_tables_and_figure_show_what_was_measured(points):
    console = Console(width=80, file=io.StringIO())
    console.print(versus_table(points), versus_notes(points))
    shown = " ".join(console.file.getvalue().split())
    assert f"{points[0].crossing_tokens:,.0f} (32 wide)" in shown
    assert "…" not in shown  # nothing was cut off
    wire, time = versus_figure(points).axes
    curves = {line.get_label(): list(line.get_ydata()) for line in [*wire.lines, *time.lines]}
    sent = [point.tensor_parallel.wire_bytes / 1e6 for point in points]
    assert curves["tensor parallelism, 32 wide"] == sent
    assert curves["ZeRO-3, link: none"] == [p.zero3.step_seconds * 1e3 for p in points]


def test_the_command_prints_the_sweep(tmp_path):
    options = ["--tokens", "32,64", "--width", "32,64", "--link", "none,10gbe", "--json"]
    figure = ["--figure", str(tmp_path / "sweep.svg")]
    run = subprocess.run(
        [sys.executable, "-m", "zerolab", "versus", *options, *figure],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(run.stdout)["sweep"]
    places = [(point["width"], point["link"], point["tokens"]) for point in found]
    assert places == list(itertools.product([32, 64], ["none", "10gbe"], [32, 64]))
    keys = {"wire_bytes", "messages", "persistent", "activations", "step_seconds"}
    for point in found:
        for side in SIDES:
            assert keys <= point[side].keys()
    sent = [[point[side]["wire_bytes"] for side in SIDES] for point in found]
    assert sent[0:2] == sent[2:4]  # a link does not change what is sent
    assert sent[4:6] == sent[6:8]
    assert (tmp_path / "sweep.svg").stat().st_size > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ranks", "3"], "--ranks: got 3; accepted is a number from 2 that divides the 4 heads"),
        (["--ranks", "1"], "--ranks: got '1'; accepted is a whole number from 2"),
        (["--tokens", "65"], "a multiple of 2 ranks × 64 tokens, or fewer that divide by 2"),
        (["--tokens", "0"], "--tokens: got '0'; accepted is a whole number"),
        (["--width", "64,30"], "--width: got '30'; accepted is a multiple of"),
        (["--link", "none,nvlnk4"], "--link: got 'nvlnk4'; accepted is one of nvlink4"),
        (["--figure", "sweep.txt"], "--figure: got 'sweep.txt'; accepted is a file name ending"),
    ],
)
def test_wrong_input_is_one_line(options, message):
    run = subprocess.run(
        [sys.executable, "-m", "zerolab", "versus", *options], capture_output=True, text=True
    )
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert message in run.stderr
