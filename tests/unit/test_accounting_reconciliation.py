"""What public calculators print, a test a cell."""

import json
from pathlib import Path

import pytest

from zerolab.accounting.activations import HUGGING_FACE, Keeping
from zerolab.accounting.reconciliation import CASES, TOOLS, autograd

PRINTED = json.loads((Path(__file__).parent.parent / "data" / "calculators.json").read_text())
CELLS = [
    (tool, case, part, figure)
    for tool, cases in PRINTED["tools"].items()
    for case, parts in cases.items()
    for part, figure in parts.items()
]


def equal_as_printed(ours, printed):
    # Two decimals of GiB, then two of GB; the figures above 1000 have no decimals.
    return ours / 1e9 == pytest.approx(printed, abs=0.011, rel=2e-4)


@pytest.mark.parametrize(("tool", "case", "part", "figure"), CELLS)
def test_cell(tool, case, part, figure):
    assert equal_as_printed(TOOLS[tool].parts(CASES[case])[part], figure)


def test_eight_tools_are_rebuilt_and_nothing_is_claimed_that_is_not_tested():
    assert set(TOOLS) == set(PRINTED["tools"])
    assert len(TOOLS) >= 8
    claimed = {
        (tool, case, part)
        for tool, rebuilt in TOOLS.items()
        for case, setup in CASES.items()
        if case in PRINTED["tools"][tool]
        for part in rebuilt.parts(setup)
    }
    assert claimed == {cell[:3] for cell in CELLS}


@pytest.mark.parametrize("case", CASES)
def test_our_states(case):
    setup = CASES[case]
    parameters = setup.parameters or setup.shape.parameters
    for gradient, name in ((2, "16 bytes"), (4, "18 bytes")):
        states = sum(setup.states(parameters, gradient).values())
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
    assert equal_as_printed(autograd(CASES[case], keeping), PRINTED["ours"][case][name])


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_what_autograd_keeps_under_tensor_parallelism(sequence_parallel):
    name = "sequence parallel" if sequence_parallel else "tensor parallel"
    # The published count leaves out the statistics of norms and the row sums of attention.
    keeping = Keeping(dropout=True, recompute="selective")
    kept = autograd(CASES["c"], keeping, sequence_parallel)
    assert kept / 1e9 == pytest.approx(PRINTED["ours"]["c"][name], abs=0.012)
