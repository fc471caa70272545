"""The notebook's calculator, driven as its controls drive it: by trait changes."""

import re
import time
from itertools import product
from statistics import median

import pytest

from zerolab.accounting import (
    GPUS,
    MODELS,
    PRECISIONS,
    STRATEGIES,
    InputError,
    gibibytes,
    gigabytes,
    model_states,
    wire_bytes,
)
from zerolab.accounting.verdict import Choice
from zerolab.teaching.widgets import OWN, Calculator, verdict_sentence

pytestmark = pytest.mark.quick


def cells(calculator: Calculator) -> list[list[str]]:
    """The table's numbers: bytes, GB and GiB of each state, the total, what is sent."""
    rows = re.findall(r"<tr>(.*?)</tr>", calculator.result.value)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]


def expected_cells(parameters: int, chosen: Choice) -> list[list[str]]:
    setup = (parameters, chosen.strategy, chosen.ranks, chosen.precision)
    sizes = [*model_states(*setup).as_dict().values(), wire_bytes(*setup)]
    return [[f"{size:,}", gigabytes(size), gibibytes(size)] for size in sizes]


def test_shows_what_the_accounting_says_after_every_change():
    calculator = Calculator()
    shown = set()
    for strategy, precision, ranks in product(STRATEGIES, PRECISIONS, (1, 7, 64)):
        calculator.strategy.value = strategy
        calculator.precision.value = precision
        calculator.ranks.value = ranks
        chosen = Choice(strategy, ranks, precision)
        count = MODELS["llama-2-7b"].parameters
        assert cells(calculator) == expected_cells(count, chosen)
        assert verdict_sentence(count, chosen, GPUS["h100-80gb"].memory) in calculator.verdict.value
        shown.add(calculator.result.value)
    assert len(shown) == len(STRATEGIES) * len(PRECISIONS) * 3


def test_the_gpu_decides_what_fits():
    calculator = Calculator(strategy="zero2")
    assert "✓ Fits: 60.25 GB" in calculator.verdict.value
    calculator.gpu.value = "t4-16gb"
    assert "✗ Does not fit: 9.16 GB" in calculator.verdict.value
    assert "the cheapest change that fits: ZeRO-3" in calculator.verdict.value
    assert "t4-16gb: 16.11 GB (15.00 GiB)" in calculator.result.value


def test_a_model_brings_its_exact_count():
    calculator = Calculator()
    for name, shape in MODELS.items():
        calculator.model.value = name
        assert int(calculator.parameters.value) == shape.parameters
        assert calculator.model.value == name
        assert cells(calculator) == expected_cells(shape.parameters, Choice("ddp", 8, "mixed"))


def test_a_typed_count_names_the_model_that_has_it():
    calculator = Calculator()
    calculator.parameters.value = "7B"
    assert calculator.model.value == OWN
    assert cells(calculator) == expected_cells(7 * 10**9, Choice("ddp", 8, "mixed"))
    calculator.parameters.value = str(MODELS["mixtral-8x7b"].parameters)
    assert calculator.model.value == "mixtral-8x7b"


@pytest.mark.parametrize("wrong", ["", "-1", "0", "nan", "7e9GB", "1e30", "<b>"])
def test_a_wrong_count_is_explained_and_nothing_jumps(wrong):
    calculator = Calculator()
    before = calculator.result.value
    calculator.parameters.value = wrong
    assert "accepted is a whole number from 1 to 1e+15" in calculator.verdict.value
    assert calculator.result.layout.visibility == "hidden"
    assert calculator.result.value == before  # still there: what is hidden keeps its place
    calculator.parameters.value = "7B"
    assert calculator.result.layout.visibility == "visible"


def test_ranks_stay_in_their_range():
    calculator = Calculator()
    calculator.ranks.value = 0
    assert calculator.ranks.value == 1
    calculator.ranks.value = 10**9
    assert calculator.ranks.value == 10**6


def test_bars_are_to_scale_and_cut_where_they_are_too_long():
    calculator = Calculator(strategy="zero3", ranks=64)
    states = model_states(MODELS["llama-2-7b"].parameters, "ddp", 64, "mixed")
    widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", calculator.result.value)]
    (limit,) = {float(left) for left in re.findall(r"left: ([\d.]+)%", calculator.result.value)}
    sizes = (states.parameters, states.gradients, states.optimizer)
    for width, size in zip(widths[:3], sizes, strict=True):
        assert width / limit == pytest.approx(size / GPUS["h100-80gb"].memory, rel=1e-3)
    assert "»" not in calculator.result.value
    calculator.model.value = "gpt-3-175b"
    assert calculator.result.value.count(" »") == 3  # ZeRO-3 on 64 ranks is short enough
    widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", calculator.result.value)]
    assert all(sum(widths[i : i + 3]) <= 100.01 for i in range(0, 12, 3))


def test_every_control_has_a_label_and_the_chart_has_words():
    calculator = Calculator()
    controls = calculator.children[0].children
    labels = ["Model", "Parameters", "Precision", "Strategy", "Ranks", "GPU"]
    assert [control.description for control in controls] == labels
    assert 'role="img" aria-label="Bytes that a rank keeps, against 85.52 GB (79.65 GiB)' in (
        calculator.result.value
    )
    assert "ZeRO-1 37.06 GB, fits" in calculator.result.value
    assert 'role="status"' in calculator.verdict.value


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ({"model": "llama-2-7"}, "llama-2-7b"),
        ({"precision": "mixd"}, "mixed"),
        ({"strategy": "zero4"}, "zero"),
        ({"gpu": "h100"}, "h100-80gb"),
        ({"ranks": 0}, "whole number"),
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong, nearest):
    with pytest.raises(InputError, match=nearest):
        Calculator(**wrong)


def test_a_change_takes_less_than_a_tenth_of_a_second():
    calculator = Calculator()
    took = []
    for ranks in range(9, 30):
        start = time.perf_counter()
        calculator.ranks.value = ranks
        took.append(time.perf_counter() - start)
    assert median(took) < 0.1
