"""Step times: what communication costs, and how much of it compute hides."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerolab.accounting import LINKS, PRECISIONS, STRATEGIES, Link, link
from zerolab.accounting.activations import Batch, Keeping
from zerolab.accounting.catalogue import model
from zerolab.accounting.gpus import GPUS, gpu
from zerolab.accounting.moments import Setup
from zerolab.accounting.step_time import (
    compute_seconds,
    pass_seconds,
    ring_all_reduce_seconds,
    step_time,
    tree_all_reduce_seconds,
)
from zerolab.accounting.traffic import step_traffic

setups = st.builds(
    Setup,
    shape=st.sampled_from(["gpt2", "llama-2-7b", "mixtral-8x7b"]).map(model),
    strategy=st.sampled_from(STRATEGIES),
    ranks=st.integers(1, 64),
    precision=st.sampled_from(sorted(PRECISIONS)),
    batch=st.builds(Batch, size=st.integers(1, 8), sequence=st.integers(1, 4096)),
    keeping=st.builds(Keeping, recompute=st.sampled_from(["none", "selective", "full"])),
    micro_batches=st.integers(1, 3),
    prefetch=st.integers(0, 2),
)
links = st.sampled_from(sorted(LINKS)).map(link)
H100 = gpu("h100-80gb")


@given(setups)
def test_time_on_the_wire_is_the_traffic_over_the_bandwidth(setup):
    traffic = step_traffic(
        setup.shape.unit_sizes, setup.strategy, setup.ranks, setup.precision, setup.micro_batches
    )
    wide = Link("no latency", 0.0, 1e9, "test")
    assert step_time(setup, H100, wide).communication == pytest.approx(traffic.bytes / 1e9)
    long = Link("no bandwidth to speak of", 1.0, 1e30, "test")
    assert step_time(setup, H100, long).communication == pytest.approx(traffic.messages)


@given(setups, links)
def test_without_overlap_the_parts_add_up(setup, wire):
    time = step_time(setup, H100, wire, overlap=False)
    assert time.total == pytest.approx(time.compute + time.communication)
    assert time.exposed == pytest.approx(time.communication, abs=1e-9)


@given(setups, links)
def test_overlap_never_makes_a_step_longer_nor_shorter_than_either_part(setup, wire):
    with_, without = (step_time(setup, H100, wire, overlap=overlap) for overlap in (True, False))
    slack = 1 + 1e-9
    assert max(with_.compute, with_.communication) <= with_.total * slack
    assert with_.total <= without.total * slack


@given(setups, st.floats(1e6, 1e12), st.floats(1, 100))
def test_a_faster_link_never_makes_a_step_longer(setup, bandwidth, times):
    slow, fast = (
        step_time(setup, H100, Link("any", 1e-6, b, "test")) for b in (bandwidth, bandwidth * times)
    )
    assert fast.total <= slow.total * (1 + 1e-9)


@given(setups, links)
def test_gathering_ahead_never_makes_a_step_longer(setup, wire):
    none, one = (step_time(replace(setup, prefetch=n), H100, wire).total for n in (0, 1))
    assert one <= none * (1 + 1e-9)


def test_one_rank_communicates_nothing():
    for strategy in STRATEGIES:
        setup = Setup(
            shape=model("gpt2"),
            strategy=strategy,
            ranks=1,
            precision="mixed",
            batch=Batch(size=1, sequence=128),
        )
        time = step_time(setup, H100, link("1gbe"))
        assert time.communication == time.exposed == 0


def test_compute_is_six_operations_a_parameter_and_token_and_attention():
    shape, batch = model("llama-2-7b"), Batch(size=2, sequence=4096)
    setup = Setup(shape=shape, strategy="ddp", ranks=8, precision="mixed", batch=batch)
    seconds = sum(map(sum, compute_seconds(setup, H100, efficiency=1.0)))
    # PaLM, appendix B: 6N + 12 · layers · width · sequence; an embedding is looked up, and what
    # norms have is not worth counting.
    matrices = shape.parameters - shape.vocabulary * shape.hidden
    exact = 6 * matrices + 12 * shape.layers * shape.hidden * batch.sequence
    assert seconds * H100.flops / batch.tokens == pytest.approx(exact, rel=1e-4)
    full = replace(setup, keeping=Keeping(recompute="full"))
    again = sum(map(sum, compute_seconds(full, H100, efficiency=1.0)))
    assert again / seconds == pytest.approx(4 / 3, abs=0.01)


def test_tensor_parallel_time_is_in_line():
    batch = Batch(size=1, sequence=2048, tensor_parallel=8)
    setup = Setup(
        shape=model("gpt-3-175b"), strategy="zero1", ranks=8, precision="mixed", batch=batch
    )
    fast = step_time(setup, H100, link("ib-ndr"), tensor_link=link("nvlink4"))
    slow = step_time(setup, H100, link("ib-ndr"), tensor_link=link("100gbe"))
    assert fast.compute == pytest.approx(slow.compute)
    assert slow.tensor_parallel > 10 * fast.tensor_parallel
    assert slow.total - fast.total > 0.5 * (slow.tensor_parallel - fast.tensor_parallel)


def test_a_ring_moves_fewer_bytes_and_a_tree_fewer_messages():
    wire = link("ib-hdr")
    bulk, small = 10 * 10**9, 1024

    def faster(size, ranks):
        times = {
            algorithm: algorithm(wire, size, ranks)
            for algorithm in (ring_all_reduce_seconds, tree_all_reduce_seconds)
        }
        return min(times, key=times.get)

    for ranks in (4, 8, 64):
        assert faster(bulk, ranks) is ring_all_reduce_seconds
        assert faster(small, ranks) is tree_all_reduce_seconds
    # So many ranks that even a large message waits for the ring to come round.
    assert faster(bulk, 4096) is tree_all_reduce_seconds
    assert tree_all_reduce_seconds(wire, 1e9, 1) == ring_all_reduce_seconds(wire, 1e9, 1) == 0


def test_a_pass_is_n_minus_one_messages():
    wire = Link("test", 0.5, 100.0, "test")
    assert pass_seconds(wire, 400, 4) == pytest.approx(3 * (0.5 + 100 / 100))


def test_gpus_have_usable_memory_near_their_names():
    for entry in GPUS.values():
        named = float(entry.name.rpartition("-")[2].removesuffix("gb"))
        assert 0.9 * named < entry.memory / 1e9 < 1.1 * named
        assert entry.memory % 2**20 == 0  # nvidia-smi counts in MiB
        assert "nvidia-smi" in entry.memory_source
        assert "NVIDIA" in entry.flops_source
    # What nvidia-smi reports for an "80 GB" H100.
    assert round(H100.memory / 1e9, 1) == 85.5
