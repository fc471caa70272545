"""The notebook's calculator, driven as its controls drive it: by trait changes."""

import html
import re
import time
from dataclasses import asdict
from itertools import product

import pytest

from zerolab.accounting import (
    GPUS,
    LINKS,
    MODELS,
    PRECISIONS,
    STRATEGIES,
    InputError,
    gibibytes,
    gigabytes,
    model_states,
    peak,
    wire_bytes,
)
from zerolab.accounting.step_time import step_time
from zerolab.teaching.calculator import duration, monitor_sentence, sentence
from zerolab.teaching.controls import CONTROLS, OWN, Controls
from zerolab.teaching.widgets import Calculator

pytestmark = pytest.mark.quick


def tables(calculator: Calculator) -> list[dict[str, list[str]]]:
    """The memory's table and the time's: the first cell of each line -> the others."""
    found = []
    for table in re.findall(r"<table.*?</table>", calculator.result.value):
        rows = re.findall(r'<tr><th scope="row"[^>]*>(.*?)</th>(.*?)</tr>', table)
        found.append({name: re.findall(r"<td[^>]*>(.*?)</td>", cells) for name, cells in rows})
    return found


def sizes(size: int) -> list[str]:
    return [gigabytes(size), gibibytes(size), f"{size:,}"]


def said(calculator: Calculator) -> str:
    return html.unescape(re.sub("<.*?>", "", calculator.verdict.value))[2:]


def set_all(calculator: Calculator, **values) -> None:
    for name, value in values.items():
        calculator.controls[name].value = value


def test_states_are_what_the_accounting_says_after_every_change():
    calculator = Calculator(count="states")
    count = MODELS["llama-2-7b"].parameters
    for strategy, precision, ranks in product(STRATEGIES, PRECISIONS, (1, 7, 64)):
        set_all(calculator, strategy=strategy, precision=precision, ranks=ranks)
        setup = (count, strategy, ranks, precision)
        lines = model_states(*setup).as_dict() | {"sent a step": wire_bytes(*setup)}
        memory, times = tables(calculator)
        assert memory == {name: sizes(size) for name, size in lines.items()}
        seconds = LINKS["nvlink4"].seconds(lines["sent a step"], _messages(strategy, ranks))
        assert times[calculator.controls["strategy"].label][2] == duration(seconds)


def _messages(strategy: str, ranks: int) -> int:
    return {"ddp": 2, "zero1": 2, "zero2": 2, "zero3": 3}[strategy] * (ranks - 1)


def test_the_peak_and_the_time_are_what_the_accounting_says_after_every_change():
    calculator = Calculator(model="llama-3-8b")
    changes = (
        {"batch": 4},
        {"strategy": "zero3", "micro_batches": 3},
        {"recompute": "full", "loss": "fused", "precision": "fp32"},
        {"tensor_parallel": 4, "sequence_parallel": True, "link": "10gbe"},
        {"attention": "eager", "repeated_kv": True, "dropout": True, "sequence": 777},
        {"model": "gpt2-xl", "tensor_parallel": 5, "norm": "eager", "activation": "eager"},
        {"gpu": "t4-16gb"},
    )
    values = asdict(Controls(model="llama-3-8b"))
    for change in changes:
        set_all(calculator, **change)
        values |= change
        asked = Controls(**values).asked()
        tightest = peak(asked.setup)
        memory, times = tables(calculator)
        assert memory["total"] == sizes(tightest.total)
        for name, size in tightest.parts.items():
            assert memory.get(name, sizes(0)) == sizes(size)
        assert memory[f"at {tightest.name}"] == sizes(tightest.total)
        assert gigabytes(tightest.total // 10) in memory["fragmentation, range"][0]
        expected = step_time(asked.setup, asked.gpu, asked.link, asked.tensor_link)
        assert times[calculator.controls["strategy"].label][2] == duration(expected.compute)
        assert said(calculator) == sentence(asked)


def test_the_gpu_decides_what_fits():
    calculator = Calculator(count="states", strategy="zero2")
    assert "✓ Fits: 60.25 GB" in calculator.verdict.value
    calculator.controls["gpu"].value = "t4-16gb"
    assert "✗ Does not fit: 9.16 GB" in calculator.verdict.value
    assert "the cheapest change that fits: ZeRO-3" in calculator.verdict.value
    assert "t4-16gb: 16.11 GB (15.00 GiB)" in calculator.result.value


def test_a_peak_that_only_just_fits_is_called_tight():
    calculator = Calculator(strategy="zero1", batch=2)
    assert said(calculator).startswith("Fits: ")
    calculator.controls["batch"].value = 3
    assert said(calculator).startswith("Tight: ")
    assert said(calculator).endswith("; the cheapest change that surely fits: ZeRO-3.")
    calculator.controls["batch"].value = 4
    assert said(calculator).startswith("Does not fit: ")


def test_a_model_brings_its_exact_count():
    calculator = Calculator(count="states")
    for name, shape in MODELS.items():
        calculator.controls["model"].value = name
        assert int(calculator.controls["params"].value) == shape.parameters
        assert calculator.controls["model"].value == name
        expected = model_states(shape.parameters, "ddp", 8, "mixed").total
        assert tables(calculator)[0]["total"] == sizes(expected)


def test_a_typed_count_names_the_model_that_has_it():
    calculator = Calculator()
    calculator.controls["params"].value = "7B"
    assert calculator.controls["model"].value == OWN
    assert tables(calculator)[0]["total"] == sizes(16 * 7 * 10**9)
    # A bare number has no activations: it is about model states, and what a peak needs is away.
    assert calculator.step.layout.display == "none"
    calculator.controls["params"].value = str(MODELS["mixtral-8x7b"].parameters)
    assert calculator.controls["model"].value == "mixtral-8x7b"
    assert calculator.step.layout.display == ""


@pytest.mark.parametrize("wrong", ["", "-1", "0", "nan", "7e9GB", "1e30", "<b>"])
def test_a_wrong_count_is_explained_and_nothing_jumps(wrong):
    calculator = Calculator()
    before = calculator.result.value
    calculator.controls["params"].value = wrong
    assert "Parameters: accepted is a" in calculator.verdict.value
    assert calculator.result.layout.visibility == "hidden"
    assert calculator.result.value == before  # still there: what is hidden keeps its place
    calculator.controls["params"].value = "7B"
    assert calculator.result.layout.visibility == "visible"


def test_a_model_with_learned_positions_has_sequences_that_fit():
    assert Controls(params=str(MODELS["gpt2"].parameters)).sequence == 1024
    calculator = Calculator(model="gpt2")
    sequence, model = calculator.controls["sequence"], calculator.controls["model"]
    assert sequence.value == 1024
    assert calculator.result.layout.visibility == "visible"
    model.value = "llama-2-7b"
    sequence.value = 9000
    model.value = "opt-1.3b"
    assert sequence.value == MODELS["opt-1.3b"].positions
    assert said(calculator) == sentence(Controls(model="opt-1.3b").asked())
    sequence.value = 4096
    assert said(calculator) == "Sequence length: accepted is a whole number from 1 to 2050."


def test_numbers_stay_in_their_range():
    calculator = Calculator()
    for name, control in CONTROLS.items():
        if control.most:
            calculator.controls[name].value = -1
            assert calculator.controls[name].value == (name != "shown")
    calculator.controls["ranks"].value = 10**9
    assert calculator.controls["ranks"].value == 10**6


def test_what_a_monitor_shows_is_taken_apart():
    calculator = Calculator(strategy="zero3")
    assert "unexplained" not in calculator.result.value
    calculator.controls["shown"].value = 70_000
    asked = Controls(strategy="zero3").asked()
    explained = monitor_sentence(70_000 * 2**20, asked.setup)
    assert explained in html.unescape(calculator.result.value)
    beyond = 70_000 * 2**20 - peak(asked.setup).total
    assert f"{gigabytes(beyond)} remain" in explained


def test_bars_are_to_scale_and_cut_where_they_are_too_long():
    calculator = Calculator(count="states", strategy="zero3", ranks=64)
    states = model_states(MODELS["llama-2-7b"].parameters, "ddp", 64, "mixed")
    drawn = calculator.result.value.split("<table")[0]  # the first chart is the memory's
    widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", drawn)]
    (limit,) = {float(left) for left in re.findall(r"left: ([\d.]+)%", drawn)}
    for width, size in zip(
        widths[:3], (states.parameters, states.gradients, states.optimizer), strict=True
    ):
        assert width / limit == pytest.approx(size / GPUS["h100-80gb"].memory, rel=1e-3)
    assert "»" not in calculator.result.value
    calculator.controls["model"].value = "gpt-3-175b"
    assert calculator.result.value.count(" »") == 3  # ZeRO-3 on 64 ranks is short enough
    drawn = calculator.result.value.split("<table")[0]
    widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", drawn)]
    assert all(sum(widths[i : i + 3]) <= 100.01 for i in range(0, 12, 3))


def test_every_control_has_a_label_and_the_charts_have_words():
    calculator = Calculator(count="states")
    labels = [control.description for control in calculator.controls.values()]
    assert labels == [control.label for control in CONTROLS.values()]
    assert len(set(labels)) == len(labels)
    result = calculator.result.value
    assert 'role="img" aria-label="Bytes on a rank, against 85.52 GB (79.65 GiB)' in result
    assert "ZeRO-1 37.06 GB, fits" in result
    assert 'role="img" aria-label="Time to send a step&#x27;s bytes on nvlink4: DDP' in result
    assert 'role="status"' in calculator.verdict.value


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ({"model": "llama-2-7"}, "llama-2-7b"),
        ({"precision": "mixd"}, "mixed"),
        ({"strategy": "zero4"}, "zero"),
        ({"gpu": "h100"}, "h100-80gb"),
        ({"link": "nvlink"}, "nvlink"),
        ({"attention": "flsh"}, "one of flash"),
        ({"ranks": 0}, "whole number"),
        ({"batch": 10**9}, "whole number from 1 to 1024"),
        ({"model": OWN}, "a number of parameters"),
        ({"tensor_parallel": 3}, "divides the 32 heads and 32 key-value heads"),
        ({"model": "gpt2", "sequence": 4096}, "sequence: .* whole number from 1 to 1024"),
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong, nearest):
    with pytest.raises(InputError, match=nearest):
        Calculator(**wrong)


@pytest.mark.parametrize("setup", [{}, {"model": "llama-3.1-405b", "ranks": 64}])
def test_a_change_takes_less_than_a_tenth_of_a_second(setup):
    calculator = Calculator(**setup)
    took = []
    for sequence in range(4097, 4104):
        start = time.perf_counter()
        calculator.controls["sequence"].value = sequence
        took.append(time.perf_counter() - start)
    assert min(took) < 0.1  # others on the machine only add to it
