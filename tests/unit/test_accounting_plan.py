"""Plans: the fastest that fits, why the next one lost, and what would help where nothing fits."""

import re
from dataclasses import replace

import pytest

from zerolab.accounting import STRATEGIES, InputError, link
from zerolab.accounting.activations import Batch
from zerolab.accounting.beside import beside
from zerolab.accounting.catalogue import model
from zerolab.accounting.gpus import gpu
from zerolab.accounting.moments import Setup, peak
from zerolab.accounting.plan import crossover, plan
from zerolab.accounting.step_time import step_time

H100, HDR = gpu("h100-80gb"), link("ib-hdr")

CASES = [
    ("gpt2", "t4-16gb", 4, "pcie4"),
    ("llama-2-7b", "h100-80gb", 8, "nvlink4"),
    ("llama-2-7b", "a100-80gb", 64, "10gbe"),
    ("llama-2-13b", "a100-40gb", 32, "100gbe"),
    ("llama-2-70b", "h100-80gb", 64, "ib-hdr"),
    ("llama-2-70b", "h100-80gb", 8, "ib-hdr"),
    ("mixtral-8x7b", "h200-141gb", 16, "ib-ndr"),
]


@pytest.mark.parametrize(("name", "device", "gpus", "wire"), CASES)
def test_the_best_is_what_trying_everything_finds(name, device, gpus, wire):
    found = plan(model(name), gpu(device), gpus, link(wire))
    assert len(found.candidates) == len(STRATEGIES) * 2 * 3  # recomputation; 1, 2 or 4 sequences
    fitting = []
    for candidate in found.candidates:
        total = peak(candidate.setup).total
        needed = total + sum(a.high for a in beside(total, gpus))
        assert candidate.needed == needed
        assert candidate.setup.batch.size * candidate.setup.micro_batches == 4
        if needed <= gpu(device).memory:
            fitting.append(step_time(candidate.setup, gpu(device), link(wire)).total)
    if fitting:
        assert found.best.time.total == pytest.approx(min(fitting), rel=1e-5)
    else:
        assert found.best is None


def test_70b_on_64_gpus_fits_under_zero_3_only_and_says_so():
    found = plan(model("llama-2-70b"), H100, 64, HDR)
    assert found.best.setup.strategy == "zero3"
    assert found.runner_up is None
    assert found.advice.endswith("no other strategy fits.")


def test_the_runner_up_is_another_strategy_and_the_advice_says_why_it_lost():
    found = plan(model("llama-2-7b"), H100, 8, link("nvlink4"))
    best, other = found.best, found.runner_up
    assert best.setup.strategy != other.setup.strategy
    assert best.time.total <= other.time.total
    assert found.advice.startswith(f"{best.name}; {other.name} takes ")


def test_where_nothing_fits_the_advice_holds():
    found = plan(model("llama-2-70b"), H100, 8, HDR)
    assert found.best is None
    nearest = found.candidates[0]
    lacking, enough = re.fullmatch(
        r"nothing fits: .* lacks ([\d.]+) GiB a GPU; it would fit on (\d+) of them\.", found.advice
    ).groups()
    assert float(lacking) == pytest.approx((nearest.needed - H100.memory) / 2**30, abs=0.01)
    for ranks, fits in ((int(enough), True), (int(enough) // 2, False)):
        total = peak(replace(nearest.setup, ranks=ranks)).total
        assert (total + sum(a.high for a in beside(total, ranks)) <= H100.memory) == fits


def test_where_no_number_of_gpus_would_do():
    found = plan(model("llama-3.1-405b"), gpu("t4-16gb"), 8, HDR)
    assert found.best is None
    assert "no number of them would do" in found.advice


def test_zero_2_wins_below_a_bandwidth_that_is_a_number():
    setup = Setup(
        shape=model("llama-2-7b"),
        strategy="zero3",
        ranks=64,
        precision="mixed",
        batch=Batch(size=1, sequence=4096),
    )
    bandwidth = crossover(setup, H100, HDR.latency)
    for factor, faster in ((0.9, "zero2"), (1.1, "zero3")):
        wire = replace(HDR, bandwidth=bandwidth * factor)
        times = {
            strategy: step_time(replace(setup, strategy=strategy), H100, wire).total
            for strategy in ("zero2", "zero3")
        }
        assert min(times, key=times.get) == faster
    # One rank has no link to be slow.
    assert crossover(replace(setup, ranks=1), H100, HDR.latency) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": 0}, "--gpus: got 0; accepted is a whole number from 1"),
        ({"global_batch": 0}, "--batch: got 0; accepted is a whole number from 1"),
        ({"global_batch": 12}, "--batch: got 12; accepted is a multiple of the 8 GPUs"),
        ({"sequence": 0}, "--sequence: got 0; "),
        ({"precision": "fp8"}, "--precision: got 'fp8'; "),
    ],
)
def test_bad_input(change, message):
    arguments = {"shape": model("gpt2"), "gpu": H100, "gpus": 8, "link": HDR, **change}
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        plan(**arguments)
