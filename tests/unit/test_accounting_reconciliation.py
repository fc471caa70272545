"""What public calculators print, a test a cell."""

import json
from pathlib import Path

import pytest

from zerolab.accounting.activations import HUGGING_FACE, Keeping, block
from zerolab.accounting.estimators import deepspeed_zero2, deepspeed_zero3
from zerolab.accounting.reconciliation import CASES, TOOLS, Cell, autograd

PRINTED = json.loads((Path(__file__).parent.parent / "data" / "calculators.json").read_text())
CELLS = [
    (tool, case, part, figure)
    for tool, cases in PRINTED["tools"].items()
    for case, parts in cases.items()
    for part, figure in parts.items()
]
# Rebuilt as well, where no printed figure was noted.
UNPRINTED = {
    ("Ultra-Scale Playbook widget", "c", "activations, selective"),
    ("gpu_poor", "a", "activations"),
    ("gpu_poor", "c", "activations"),
    ("gpu_poor", "d", "activations"),
}


def rounding(figure):
    """Half of the last digit, in GB, and as much of two decimals of GiB, as most tools print."""
    decimals = len(figure.partition(".")[2])
    return 0.5 * 10**-decimals + 0.005 * 2**30 / 1e9


@pytest.mark.parametrize(("tool", "case", "part", "figure"), CELLS)
def test_printed_is_ours_and_the_terms_that_differ(tool, case, part, figure):
    cell = TOOLS[tool].cells(CASES[case])[part]
    assert cell.printed / 1e9 == pytest.approx(float(figure), abs=rounding(figure))
    # Each term has a name, and what is right does not depend on the tool's figure.
    assert cell.policy
    assert all(cell.terms)
    assert cell.ours > 0


def test_every_printed_cell_is_rebuilt_and_nothing_is_claimed_that_is_not_tested():
    rebuilt = {
        (tool, case, part)
        for tool, rebuilt in TOOLS.items()
        for case, setup in CASES.items()
        for part in rebuilt.cells(setup)
    }
    assert rebuilt == {cell[:3] for cell in CELLS} | UNPRINTED


@pytest.mark.parametrize("tool", TOOLS)
def test_where_a_tool_has_no_figure_the_data_say_why(tool):
    none = PRINTED["none"].get(tool, {})
    assert {case for case in CASES if not TOOLS[tool].cells(CASES[case])} == set(none)
    assert set(PRINTED["tools"][tool]) | set(none) == set(CASES)


def test_cells_that_are_reproduced_without_a_wrong_term():
    """Within their rounding and by a policy's name alone."""
    right = {
        tool
        for tool, case, part, figure in CELLS
        if TOOLS[tool].cells(CASES[case])[part].ours / 1e9
        == pytest.approx(float(figure), abs=rounding(figure))
    }
    assert {"Megatron theoretical memory", "SimuMax", "xtuner"} <= right


@pytest.mark.parametrize(
    ("tool", "case", "part", "term", "gigabytes"),
    [
        ("EleutherAI calculator", "c", "gradients", "not divided by TP", 613.3),
        ("Ultra-Scale Playbook widget", "c", "parameters", "not divided by TP", 305.6),
        ("accelerate estimate-memory", "b", "total", "the largest part, not the sum", -67.4),
        ("Megatron theoretical memory", "b", "activations, sequence parallel", "SwiGLU", -2.9),
        ("llm-analysis", "b", "peak", "gradients and activations never meet", -22.4),
        ("llm-analysis", "d", "peak", "no output head", -0.1),
        ("SimuMax", "c", "activations", "GELU keeps three tensors, as SwiGLU", 4.8),
        ("SimuMax", "d", "total", "gathered units left out", -2.2),
        ("xtuner", "c", "total", "the feed-forward's optimizer state by 64, not 8", -38.1),
        ("gpu_poor", "c", "total", "states divided by nothing", 2979.2),
    ],
)
def test_size_of_the_wrong_term(tool, case, part, term, gigabytes):
    """The terms that the tools are known for, as wrong as a closer look by hand has them."""
    terms = TOOLS[tool].cells(CASES[case])[part].terms
    [size] = [size for name, size in terms.items() if name.startswith(term)]
    assert size / 1e9 == pytest.approx(gigabytes, abs=0.06)


def test_deepspeed_prints_what_its_estimators_return():
    setup = CASES["a"]
    embedding = setup.shape.vocabulary * setup.shape.hidden
    zero3 = TOOLS["DeepSpeed estimators"].cells(setup)["total"].printed
    assert zero3 == pytest.approx(deepspeed_zero3(setup.count, embedding, setup.ranks))
    setup = CASES["b"]
    zero2 = TOOLS["DeepSpeed estimators"].cells(setup)["total"].printed
    assert zero2 == pytest.approx(deepspeed_zero2(setup.count, setup.ranks))


def test_a_total_has_the_terms_of_its_parts():
    one, other = Cell("a", 10, {"same": 1, "first": 2}), Cell("b", 20, {"same": 3})
    total = Cell.total("both", one, other).plus({"more": -4})
    assert total == Cell("both", 30, {"same": 4, "first": 2, "more": -4})
    assert total.printed == one.printed + other.printed - 4


@pytest.mark.parametrize("case", CASES)
def test_our_states(case):
    setup = CASES[case]
    for policy, name in (("mixed", "16 bytes"), ("mixed_fp32_grads", "18 bytes")):
        states = sum(setup.states(policy, setup.count).values())
        assert states / 1e9 == pytest.approx(PRINTED["ours"][case][name], abs=0.05)


@pytest.mark.parametrize(
    ("case", "name", "keeping"),
    [
        ("b", "fused", Keeping()),
        ("b", "hugging face", HUGGING_FACE),
        ("d", "fused", Keeping()),
        ("d", "hugging face", HUGGING_FACE),
    ],
)
def test_what_autograd_keeps(case, name, keeping):
    kept = autograd(CASES[case], keeping)
    assert kept / 1e9 == pytest.approx(PRINTED["ours"][case][name], abs=0.011)


@pytest.mark.parametrize(
    ("name", "keeping"),
    [
        ("hugging face", HUGGING_FACE),
        ("fused norm", Keeping(activation="eager")),
        ("fused", Keeping()),
    ],
)
def test_what_autograd_keeps_of_a_layer(name, keeping):
    setup = CASES["b"]
    each, whole = PRINTED["kept a layer"][name]
    one = sum(block(setup.shape, setup.batch(), keeping).values())
    width = setup.sequence * setup.shape.hidden
    assert one / width == pytest.approx(float(each), abs=0.01)
    assert autograd(setup, keeping) / 2**30 == pytest.approx(float(whole), abs=0.01)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_what_autograd_keeps_under_tensor_parallelism(sequence_parallel):
    name = "sequence parallel" if sequence_parallel else "tensor parallel"
    # The published count leaves out the statistics of norms and the row sums of attention.
    keeping = Keeping(dropout=True, recompute="selective")
    kept = autograd(CASES["c"], keeping, sequence_parallel)
    assert kept / 1e9 == pytest.approx(PRINTED["ours"]["c"][name], abs=0.012)
