"""Plans: the fastest that fits, why the next one lost, and what would help where nothing fits."""

import re
from dataclasses import replace

import pytest

from zerolab.accounting import STRATEGIES, InputError, link
from zerolab.accounting.activations import Batch, Keeping
from zerolab.accounting.beside import beside
from zerolab.accounting.catalogue import model
from zerolab.accounting.gpus import GPUS, gpu
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


def every_set_up(shape, gpus, sequences):
    """Written anew, without the planner: all it may choose from, `sequences` for each GPU."""
    for degree in (1, 2, 4, 8):
        if gpus % degree or shape.heads % degree or shape.kv_heads % degree:
            continue
        each = sequences * degree
        for size in (size for size in range(1, 65) if each % size == 0):
            for strategy in STRATEGIES if gpus > degree else ["ddp"]:
                for recompute in ("none", "full"):
                    yield Setup(
                        shape=shape,
                        strategy=strategy,
                        ranks=gpus // degree,
                        precision="mixed",
                        batch=Batch(
                            size=size,
                            sequence=4096,
                            tensor_parallel=degree,
                            sequence_parallel=degree > 1,
                        ),
                        keeping=Keeping(recompute=recompute),
                        micro_batches=each // size,
                    )


def needed(setup):
    total = peak(setup).total
    gpus = setup.ranks * setup.batch.tensor_parallel
    return total + sum(a.high for a in beside(total, gpus))


@pytest.mark.parametrize(("name", "device", "gpus", "wire"), CASES)
def test_the_best_is_what_trying_everything_finds(name, device, gpus, wire):
    shape, device, wire = model(name), gpu(device), link(wire)
    found = plan(shape, device, gpus, wire)
    tried = list(every_set_up(shape, gpus, sequences=4))
    assert {repr(c.setup) for c in found.candidates} == {repr(setup) for setup in tried}
    for candidate in found.candidates:
        assert candidate.needed == needed(candidate.setup)
    fitting = [setup for setup in tried if needed(setup) <= device.memory]
    times = [step_time(setup, device, wire, wire).total for setup in fitting]
    if fitting:
        assert found.best.time.total == pytest.approx(min(times), rel=1e-5)
    else:
        assert found.best is None


def test_70b_on_64_gpus_without_tensor_parallelism_fits_under_zero_3_only():
    found = plan(model("llama-2-70b"), H100, 64, HDR, machine=1)
    assert found.best.setup.strategy == "zero3"
    assert found.runner_up is None
    assert found.advice.endswith("nothing else fits.")


def test_inside_machines_with_a_fast_link_tensor_parallelism_wins():
    found = plan(model("llama-2-70b"), H100, 64, HDR, machine_link=link("nvlink4"))
    assert found.best.kind == ("zero3", 8)
    assert found.best.setup.ranks == 8
    assert {c.kind for c in found.candidates if c.fits} > {("zero1", 8), ("zero2", 8), ("zero3", 1)}
    slow = plan(model("llama-2-70b"), H100, 64, HDR, machine_link=link("10gbe"))
    assert slow.best.kind == ("zero3", 1)


def test_a_job_inside_one_machine_uses_its_link_only():
    shape, fast = model("llama-2-7b"), link("nvlink4")
    alone = plan(shape, H100, 8, link("1gbe"), machine_link=fast)
    assert alone == plan(shape, H100, 8, fast)
    across = plan(shape, H100, 16, link("1gbe"), machine_link=fast)
    assert across.best.time.exposed > 100 * alone.best.time.exposed


def test_tensor_parallelism_makes_smaller_batches_possible():
    found = plan(model("llama-2-7b"), H100, 64, HDR, global_batch=8, machine_link=link("nvlink4"))
    assert {c.setup.batch.tensor_parallel for c in found.candidates} == {8}
    assert all(c.setup.batch.size * c.setup.micro_batches == 1 for c in found.candidates)


def test_the_runner_up_is_of_another_kind_and_the_advice_says_why_it_lost():
    found = plan(model("llama-2-7b"), H100, 8, link("nvlink4"))
    best, other = found.best, found.runner_up
    assert best.kind != other.kind
    assert best.time.total <= other.time.total
    assert found.advice.startswith(f"{best.name}; {other.name} takes ")
    assert found.advice.endswith("by more waiting for data parallelism.")


def test_best_of_each_kind_keeps_the_order():
    found = plan(model("llama-2-7b"), H100, 8, link("nvlink4"))
    kinds = [candidate.kind for candidate in found.best_of_each]
    assert len(kinds) == len(set(kinds)) == 4 * 3 + 1  # three degrees, and 8 GPUs as one rank
    assert set(kinds) == {candidate.kind for candidate in found.candidates}
    places = [found.candidates.index(candidate) for candidate in found.best_of_each]
    assert places == sorted(places)


def test_where_nothing_fits_the_advice_holds():
    found = plan(model("llama-2-70b"), H100, 8, HDR, machine=1)
    assert found.best is None
    nearest = found.candidates[0]
    lacking, enough, instead = re.fullmatch(
        r"nothing fits: .* lacks [\d.]+ GB \(([\d.]+) GiB\) a GPU; it would fit on (\d+) of them, "
        r"or on 8 (.*)\.",
        found.advice,
    ).groups()
    assert float(lacking) == pytest.approx((nearest.needed - H100.memory) / 2**30, abs=0.01)
    for ranks, fits in ((int(enough), True), (int(enough) // 2, False)):
        assert (needed(replace(nearest.setup, ranks=ranks)) <= H100.memory) == fits
    assert nearest.needed <= gpu(instead).memory
    between = [g for g in GPUS.values() if H100.memory < g.memory < gpu(instead).memory]
    assert all(nearest.needed > other.memory for other in between)


def test_shorter_sequences_and_a_chunked_loss_help_where_one_sequence_is_too_long():
    shape = model("llama-3-8b")
    found = plan(shape, gpu("a100-40gb"), 8, link("nvlink3"), sequence=131_072, machine=1)
    assert found.best is None
    longest = int(re.search(r"with sequences of ([\d,]+)", found.advice)[1].replace(",", ""))
    for sequence, fits in ((longest, True), (2 * longest, False)):
        again = plan(shape, gpu("a100-40gb"), 8, link("nvlink3"), sequence=sequence, machine=1)
        assert (again.best is not None) == fits
    some = plan(shape, gpu("a100-40gb"), 8, link("nvlink3"), sequence=32_768, machine=1)
    assert "with the loss computed in chunks" in some.advice


def test_where_nothing_would_do():
    found = plan(model("llama-3.1-405b"), gpu("t4-16gb"), 8, HDR, machine=1)
    assert found.best is None
    assert found.advice.endswith("nor shorter sequences would do.")


def test_the_border_of_a_plan_is_that_of_its_first_candidate():
    found = plan(model("llama-2-7b"), H100, 64, HDR, machine_link=link("nvlink4"))
    for factor, faster in ((0.9, "zero2"), (1.1, "zero3")):
        wire = replace(HDR, bandwidth=found.border * factor)
        times = {
            strategy: step_time(
                replace(found.best.setup, strategy=strategy), H100, wire, link("nvlink4")
            ).total
            for strategy in ("zero2", "zero3")
        }
        assert min(times, key=times.get) == faster
    assert plan(model("gpt2"), H100, 1, HDR).border is None


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
        (
            {"global_batch": 7},
            "--batch: got 7; accepted is a multiple of 2: of the 8 GPUs, in groups of at most 4",
        ),
        ({"global_batch": 4096}, "--batch: got 4096; accepted is a whole number from 1 to 2048"),
        ({"global_batch": 12, "machine": 1}, "--batch: got 12; accepted is a multiple of 8: of"),
        ({"machine": 0}, "--machine: got 0; accepted is a whole number from 1"),
        ({"sequence": 0}, "--sequence: got 0; "),
        ({"precision": "fp8"}, "--precision: got 'fp8'; "),
    ],
)
def test_bad_input(change, message):
    arguments = {"shape": model("gpt2"), "gpu": H100, "gpus": 8, "link": HDR, **change}
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        plan(**arguments)
