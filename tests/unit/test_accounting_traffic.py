"""Bytes a step against the published volumes, and the links that carry them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerolab.accounting import (
    LINKS,
    PRECISIONS,
    STRATEGIES,
    InputError,
    link,
    unit_wire_bytes,
    wire_bytes,
)
from zerolab.accounting.activations import Batch, Keeping
from zerolab.accounting.catalogue import model
from zerolab.accounting.moments import Setup
from zerolab.accounting.traffic import (
    Traffic,
    setup_traffic,
    step_passes,
    step_traffic,
    tensor_parallel_traffic,
)

DATA = Path(__file__).parent.parent / "data"
VOLUMES = json.loads((DATA / "communication.json").read_text())["data_parallel"]
ALL_REDUCED = "ZeRO-1 done as all-reduce + all-gather"
NAMES = {"DDP": "ddp", "ZeRO-1": "zero1", "ZeRO-2": "zero2", "ZeRO-3": "zero3"}


@pytest.mark.parametrize("name", NAMES)
def test_published_volume_times_the_ring_factor(name):
    parameters, ranks = 8 * 10**9, 8
    sent = wire_bytes(parameters, NAMES[name], ranks, "mixed")
    assert sent == VOLUMES[name] * parameters * 2 * (ranks - 1) // ranks


def test_gradients_and_parameters_travel_in_their_own_bytes():
    expected = {"ddp": 2 * 4, "zero1": 4 + 2, "zero2": 4 + 2, "zero3": 4 + 2 * 2}
    for strategy, width in expected.items():
        assert wire_bytes(1000, strategy, 2, "mixed_fp32_grads") == width * 500


def test_units_are_padded():
    # 10 and 3 elements on 4 ranks travel as 12 and 4: three of four shards, 4 bytes, 3 passes.
    assert unit_wire_bytes([10, 3], "zero3", 4, "fp32") == 16 * 3 // 4 * 4 * 3


@given(
    st.lists(st.integers(1, 10**12), min_size=1, max_size=8),
    st.integers(1, 4096),
    st.sampled_from(STRATEGIES),
    st.sampled_from(sorted(PRECISIONS)),
)
def test_cutting_into_units_costs_padding_only(unit_sizes, ranks, strategy, precision):
    textbook = wire_bytes(sum(unit_sizes), strategy, ranks, precision)
    exact = unit_wire_bytes(unit_sizes, strategy, ranks, precision)
    widest = 3 * PRECISIONS["fp32"].parameter
    assert textbook <= exact <= textbook + len(unit_sizes) * (ranks - 1) * widest
    assert unit_wire_bytes(unit_sizes, strategy, 1, precision) == 0


def test_links_are_ordered_as_their_generations():
    def faster(*names):
        speeds = [LINKS[name].bandwidth for name in names]
        return speeds == sorted(speeds, reverse=True)

    assert faster("nvlink5", "nvlink4", "nvlink3", "pcie4")
    assert faster("nvlink3", "pcie5", "pcie4")
    assert faster("ib-ndr", "ib-hdr", "100gbe", "10gbe", "1gbe")
    for entry in LINKS.values():
        assert 0 < entry.latency < 1e-3
        assert entry.source


def test_signalling_rates():
    """Bits a second from the standards, so that no figure counts both directions."""
    for name, gigabits in {"ib-ndr": 400, "ib-hdr": 200, "100gbe": 100, "10gbe": 10}.items():
        assert LINKS[name].bandwidth == gigabits * 1e9 / 8
    for name, transfers in {"pcie4": 16e9, "pcie5": 32e9}.items():
        assert LINKS[name].bandwidth == pytest.approx(transfers * 16 / 8 * 128 / 130, rel=1e-3)
    # NVLink lanes: 25 GB/s a link and direction, 50 from the fifth generation.
    for name, (count, each) in {
        "nvlink3": (12, 25),
        "nvlink4": (18, 25),
        "nvlink5": (18, 50),
    }.items():
        assert LINKS[name].bandwidth == count * each * 1e9


def test_seconds_is_alpha_beta():
    slow = link("10gbe")
    assert slow.seconds(1.25e9) == pytest.approx(1 + slow.latency)
    assert slow.seconds(0, messages=3) == pytest.approx(3 * slow.latency)


def test_unknown_link_names_the_nearest():
    with pytest.raises(InputError, match=r"^--link: got 'nvlink9'; accepted is one of nvlink\d, "):
        link("nvlink9")


FACTS = json.loads((DATA / "communication.json").read_text())


def test_no_published_volume_is_left_out():
    """What stands in the file of facts, and the tests that reproduce it, here and beside the engine
    (tests/multirank: test_tensor_parallel, test_wire)."""
    covered = {
        "data_parallel": {*NAMES, ALL_REDUCED, "with A micro-batches"},
        "tensor_parallel": {"transformer layer, Megatron", "with sequence parallelism"},
    }
    for key, statements in covered.items():
        assert FACTS[key].keys() == statements
    assert FACTS.keys() == {*covered, "unit", "gloo", "sources"}
    assert "(N-1)/N" in FACTS["unit"]


def test_zero1_by_an_all_reduce_wastes_a_pass():
    """Reduced to every rank, as in DDP, though each updates its own shard only."""
    wasteful = step_passes("ddp").gradients + step_passes("zero1").parameters
    assert wasteful == VOLUMES[ALL_REDUCED] == sum(step_passes("zero1")) + 1


def test_gradients_accumulate_where_they_are_whole():
    one, four = (
        {s: step_traffic([8000] * 4, s, 8, "mixed", micro_batches=n).bytes for s in STRATEGIES}
        for n in (1, 4)
    )
    each_pass = 2 * 32_000 * 7 // 8
    assert one == {
        "ddp": 2 * each_pass,
        "zero1": 2 * each_pass,
        "zero2": 2 * each_pass,
        "zero3": 3 * each_pass,
    }
    # Reduced once a step; reduced each time; and gathered twice each time as well.
    assert four["ddp"] == four["zero1"] == one["ddp"]
    assert four["zero2"] == (4 + 1) * each_pass
    assert four["zero3"] == 4 * one["zero3"]
    published = VOLUMES["with A micro-batches"]
    assert "ZeRO-1 and DDP can reduce once a step; ZeRO-2 and ZeRO-3 reduce on every" in published
    assert "ZeRO-3 also gathers on every forward and backward" in published


def test_messages_of_a_ring():
    # N-1 for each unit and pass.
    assert step_traffic([100] * 5, "zero3", 4, "fp32").messages == 5 * 3 * 3
    assert step_traffic([100] * 5, "ddp", 4, "fp32").messages == 5 * 2 * 3
    assert step_traffic([100] * 5, "ddp", 1, "fp32") == Traffic(0, 0)


def test_tensor_parallelism_all_reduces_four_times_a_layer_six_with_recomputation():
    shape, batch = model("gpt-3-175b"), Batch(size=1, sequence=2048, tensor_parallel=8)
    all_reduce = 2 * batch.element * batch.tokens * shape.hidden * 7 // 8
    for recompute, reductions in (("none", 4), ("selective", 4), ("full", 6)):
        keeping = Keeping(recompute=recompute)
        fewer, more = (
            tensor_parallel_traffic(replace(shape, layers=layers), batch, keeping)
            for layers in (1, 11)
        )
        assert more.bytes - fewer.bytes == 10 * reductions * all_reduce
        assert more.messages - fewer.messages == 10 * reductions * 2 * 7
    published = FACTS["tensor_parallel"]["transformer layer, Megatron"]
    assert published.startswith("4 all-reduces")
    assert "6 with full recomputation" in published


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_sequence_parallelism_sends_the_same_bytes(recompute):
    """4 all-gathers and 4 reduce-scatters of half an all-reduce each, where there were 4 of them;
    tests/multirank/test_tensor_parallel.py counts them in the engine."""
    batch = Batch(size=2, sequence=512, tensor_parallel=8)
    plain, cut = (
        tensor_parallel_traffic(
            model("gpt2"), replace(batch, sequence_parallel=cut), Keeping(recompute=recompute)
        )
        for cut in (False, True)
    )
    assert plain == cut
    published = FACTS["tensor_parallel"]["with sequence parallelism"]
    assert published == "4 all-gathers + 4 reduce-scatters, the same bytes"


def test_tensor_parallel_traffic_grows_with_tokens_data_parallel_with_parameters():
    shape = model("llama-2-7b")
    small, large = (
        tensor_parallel_traffic(shape, Batch(size=n, sequence=4096, tensor_parallel=8), Keeping())
        for n in (1, 4)
    )
    assert large.bytes == 4 * small.bytes
    assert tensor_parallel_traffic(shape, Batch(size=1, sequence=8), Keeping()) == Traffic(0, 0)


def test_two_dimensions_send_to_two_groups():
    setup = Setup(
        shape=model("llama-2-7b"),
        strategy="zero2",
        ranks=4,
        precision="mixed",
        batch=Batch(size=1, sequence=4096, tensor_parallel=8),
        micro_batches=3,
    )
    sent = setup_traffic(setup)
    whole = setup_traffic(replace(setup, batch=replace(setup.batch, tensor_parallel=1)))
    # Tensor parallelism leaves an eighth of the parameters, but for norms.
    assert whole.data.bytes / 8 < sent.data.bytes < whole.data.bytes / 7.9
    assert sent.data.messages == whole.data.messages
    assert whole.tensor == Traffic(0, 0)
    once = tensor_parallel_traffic(setup.shape, setup.batch, setup.keeping)
    assert sent.tensor == Traffic(3 * once.bytes, 3 * once.messages)
    assert sent.total == sent.data + sent.tensor
