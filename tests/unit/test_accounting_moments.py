"""Moments of a step: lists that add up, and the laws that they obey."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from setups import LLAMA, setups

from zerolab.accounting import STRATEGIES, InputError, model_states
from zerolab.accounting.activations import HUGGING_FACE, Batch, Keeping, activations
from zerolab.accounting.beside import beside, explain
from zerolab.accounting.catalogue import MODELS, model
from zerolab.accounting.moments import Setup, _blocks_backward, _Run, moments, peak
from zerolab.accounting.tensor_parallel import unit_sizes


@given(setups)
def test_parts_are_bytes_that_add_up_and_the_peak_is_the_largest_moment(setup):
    found = moments(setup)
    for moment in found:
        assert all(isinstance(size, int) and size >= 0 for size in moment.parts.values())
        assert moment.total == sum(moment.parts.values())
    assert peak(setup).total == max(moment.total for moment in found)


@given(setups)
def test_the_worst_block_is_found_without_trying_all(setup):
    tried = _blocks_backward(_Run(setup), range(setup.shape.layers))
    assert moments(setup)[-2] == max(tried, key=lambda moment: moment.total)


@given(setups)
def test_more_micro_batches_never_lower_a_moment(setup):
    one, two = (
        {
            m.name.partition(" of block")[0]: m.total
            for m in moments(replace(setup, micro_batches=n))
        }
        for n in (1, 2)
    )
    assert all(two[name] >= total for name, total in one.items())


@given(setups)
def test_recomputation_never_raises_the_end_of_forward(setup):
    none, selective, full = (
        moments(replace(setup, keeping=replace(setup.keeping, recompute=recompute)))[0].total
        for recompute in ("none", "selective", "full")
    )
    assert full <= selective <= none


@given(setups)
def test_a_higher_stage_never_raises_a_persistent_part(setup):
    for state in ("parameters", "gradients", "optimizer"):
        by_stage = [
            moments(replace(setup, strategy=strategy))[-1].parts[state] for strategy in STRATEGIES
        ]
        assert by_stage == sorted(by_stage, reverse=True)


@given(setups, st.integers(2, 8))
def test_more_tensor_parallel_ranks_never_raise_a_persistent_part(setup, times):
    wide = replace(setup.batch, tensor_parallel=setup.batch.tensor_parallel * times)
    before, after = moments(setup)[-1], moments(replace(setup, batch=wide))[-1]
    # Dividing rounds up, for each unit, and so does padding.
    rounding = 16 * (setup.shape.layers + 2) * setup.ranks
    assert all(after.parts[part] <= before.parts[part] + rounding for part in before.parts)


def test_activations_and_whole_gradients_are_never_alive_together():
    parts = {moment.name: moment.parts for moment in moments(replace(LLAMA, strategy="ddp"))}
    assert parts["end of forward"]["gradients"] == 0
    assert "activations" not in parts["optimizer step"]
    naive = model_states(LLAMA.shape.parameters, "ddp", 8, "mixed").total
    naive += sum(activations(LLAMA.shape, LLAMA.batch, LLAMA.keeping).values())
    assert peak(replace(LLAMA, strategy="ddp")).total < naive


def test_recomputation_moves_the_peak_into_backward():
    assert peak(LLAMA).name == "backward of the loss"
    full = replace(LLAMA, keeping=Keeping(recompute="full"))
    assert peak(full).name.startswith("backward of block")


def test_a_later_micro_batch_meets_the_gradients_of_the_first():
    parts = {m.name: m.parts for m in moments(replace(LLAMA, strategy="zero1", micro_batches=4))}
    later = parts["end of a later forward"]
    assert later["gradients"] == 2 * LLAMA.shape.parameters
    assert later["activations"] == parts["end of forward"]["activations"]


def test_fused_parts_lower_the_peak_by_what_eager_ones_keep():
    eager = replace(LLAMA, keeping=HUGGING_FACE)
    kept = {
        name: sum(activations(LLAMA.shape, LLAMA.batch, keeping).values())
        for name, keeping in (("eager", HUGGING_FACE), ("fused", LLAMA.keeping))
    }
    assert peak(eager).total - peak(LLAMA).total == kept["eager"] - kept["fused"]


def test_one_tensor_parallel_rank_holds_the_whole_model():
    for shape in MODELS.values():
        assert unit_sizes(shape, 1) == shape.unit_sizes
        for ranks in (2, 8):
            held = sum(unit_sizes(shape, ranks))
            assert shape.parameters / ranks <= held <= shape.parameters


def test_gpt_3_with_tensor_parallelism_of_8_and_zero_1_of_8():
    # 2 + 2 + 12 / 8 bytes of an eighth of the parameters would be 120.0 GB; positions, norms and
    # some biases are whole on every rank.
    setup = Setup(
        shape=model("gpt-3-175b"),
        strategy="zero1",
        ranks=8,
        precision="mixed",
        batch=Batch(size=1, sequence=2048, tensor_parallel=8),
    )
    states = moments(setup)[-1].parts
    total = states["parameters"] + states["gradients"] + states["optimizer"]
    assert 120.0 < total / 1e9 < 120.25


def test_a_monitors_figure_is_taken_apart():
    tensors = 40 * 10**9
    allowances = beside(tensors, ranks=8)
    low, high = (sum(getattr(a, end) for a in allowances) for end in ("low", "high"))
    assert 0 < low < high
    inside = explain(tensors + (low + high) // 2, tensors, ranks=8)
    assert inside.remainder == (low + high) // 2
    assert inside.unexplained == 0
    assert explain(tensors + high + 5, tensors, ranks=8).unexplained == 5
    assert explain(tensors + low - 5, tensors, ranks=8).unexplained == -5
    assert explain(tensors - 5, tensors, ranks=8).remainder == -5


def test_one_rank_has_no_communicator():
    names = {allowance.name for allowance in beside(10**9, ranks=1)}
    assert "communicator buffers" not in names
    assert "communicator buffers" in {allowance.name for allowance in beside(10**9, ranks=2)}


def test_bad_input():
    with pytest.raises(InputError, match=r"^--micro-batches: got 0; "):
        replace(LLAMA, micro_batches=0)
    with pytest.raises(InputError, match=r"^--strategy: got 'zero4'; "):
        replace(LLAMA, strategy="zero4")
    with pytest.raises(InputError, match=r"^--ranks: got 0; "):
        replace(LLAMA, ranks=0)
    with pytest.raises(InputError, match=r"^element: got 3; accepted is 2 or 4 bytes"):
        replace(LLAMA.batch, element=3)
    with pytest.raises(InputError, match=r"^--attention: got 'flsh'; accepted is one of flash, "):
        Keeping(attention="flsh")
