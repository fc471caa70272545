"""Every strategy, on 1 to 4 ranks, against one process on the global batch and against paper."""

from functools import cache
from itertools import pairwise

import pytest
import reference
import torch
from reference import difference, train, train_alone

STRATEGIES = ("ddp", "zero1", "zero2", "zero3")
PRECISIONS = ("fp32", "mixed", "mixed_fp32_grads", "no_master")
alone = cache(train_alone)


@pytest.fixture(scope="module")
def trained(world_of):
    """Each case is trained once and looked at by several tests."""

    @cache
    def outcomes(ranks: int, strategy: str, precision: str = "fp32", clip: float | None = None):
        return world_of(ranks).run(train, ranks, strategy, precision, clip)

    return outcomes


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parameters_equal_one_process_on_the_global_batch(trained, ranks, strategy):
    expected, losses = alone()
    outcomes = trained(ranks, strategy)
    for outcome in outcomes:
        assert difference(outcome.parameters, expected) <= 1e-5
        assert difference(outcome.parameters, outcomes[0].parameters) == 0
    mean_losses = [sum(step) / ranks for step in zip(*(o.losses for o in outcomes), strict=True)]
    assert mean_losses == pytest.approx(losses, abs=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_persistent_bytes_equal_the_formula(trained, ranks, strategy, precision):
    for outcome in trained(ranks, strategy, precision):
        assert outcome.persistent == outcome.predicted


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_ledger_equals_the_formula(trained, ranks, strategy, precision):
    for outcome in trained(ranks, strategy, precision):
        assert outcome.wire_bytes == outcome.predicted_wire_bytes


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_sharding_does_not_change_the_arithmetic(trained, ranks, precision):
    """ZeRO-1, 2 and 3 make the same sums in the same order, so they agree to the last bit."""
    first = trained(ranks, "zero1", precision)[0]
    for strategy in ("zero2", "zero3"):
        other = trained(ranks, strategy, precision)[0]
        assert other.losses == first.losses
        assert difference(other.parameters, first.parameters) == 0


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ddp_differs_from_zero_by_rounding_only(trained, ranks):
    """The sums are the same; Adam's vector instructions are cut at other places."""
    ddp, zero = trained(ranks, "ddp")[0], trained(ranks, "zero1")[0]
    assert difference(ddp.parameters, zero.parameters) <= 5e-6


@pytest.mark.parametrize("precision", PRECISIONS[1:])
def test_sixteen_bit_policies_learn_what_fp32_learns(trained, precision):
    _, losses = alone()
    outcomes = trained(4, "zero3", precision)
    mean_losses = [sum(step) / 4 for step in zip(*(o.losses for o in outcomes), strict=True)]
    assert mean_losses == pytest.approx(losses, abs=0.02)
    assert mean_losses != losses  # rounding must show


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_clipping_uses_the_global_norm(trained, ranks, strategy):
    limit = 0.05  # far below the norm, so that every step is clipped
    expected, _ = alone(limit)
    unclipped, _ = alone()
    assert difference(expected, unclipped) > 1e-4
    assert difference(trained(ranks, strategy, "fp32", limit)[0].parameters, expected) <= 1e-5


def accumulate(rank: int, ranks: int, strategy: str, without_sync: bool) -> tuple:
    """Two micro-batches a step; returns the parameters and the bytes of each micro-batch."""
    from contextlib import nullcontext

    from zerolab.parallel import STRATEGIES, ShardedAdam
    from zerolab.runtime.ledger import ledger

    torch.manual_seed(0)
    model = STRATEGIES[strategy](reference.GPT(reference.SHAPE))
    optimizer = ShardedAdam(model, lr=reference.LEARNING_RATE)
    for step in range(3):
        tokens, targets = reference.batch(step, rank, ranks)
        sent = []
        for part in range(2):
            ledger.clear()
            with model.no_sync() if without_sync and part == 0 else nullcontext():
                half = slice(part * len(tokens) // 2, (part + 1) * len(tokens) // 2)
                weight = len(tokens[half]) / len(tokens)  # three sequences have uneven halves
                (model(tokens[half], targets[half]) * weight).backward()
            sent.append(ledger.bytes("reduce-scatter") + ledger.bytes("all-reduce"))
        optimizer.step()
        optimizer.zero_grad()
    return model.full_state_dict(), sent


@pytest.mark.parametrize(
    ("strategy", "without_sync"),
    [(strategy, False) for strategy in STRATEGIES] + [("ddp", True), ("zero1", True)],
)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_accumulation_equals_one_large_batch(world_of, ranks, strategy, without_sync):
    results = world_of(ranks).run(accumulate, ranks, strategy, without_sync)
    torch.manual_seed(0)
    model = reference.GPT(reference.SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=reference.LEARNING_RATE)
    for step in range(3):
        model(*reference.batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for parameters, (first, second) in results:
        assert difference(parameters, model.state_dict()) <= 1e-5
        assert first == (0 if without_sync else second)
        assert second > 0


def no_sync_under(rank: int, strategy: str) -> None:
    from zerolab.parallel import STRATEGIES

    with STRATEGIES[strategy](torch.nn.Linear(2, 2)).no_sync():
        pass


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_no_sync_is_refused_with_the_reason(world_of, strategy):
    with pytest.raises(Exception, match="nowhere to accumulate whole ones"):
        world_of(2).run(no_sync_under, strategy)


def train_by_owner(rank: int, ranks: int, precision: str) -> tuple:
    """Ten steps under the owner layout; parameters, persistent bytes and bytes sent in a step."""
    import gc

    from zerolab import MemoryMeter, ShardedAdam, Zero3
    from zerolab.runtime.ledger import ledger

    gc.collect()
    torch.manual_seed(0)
    with MemoryMeter() as meter:
        model = Zero3(reference.GPT(reference.SHAPE), layout="owner", precision=precision)
        optimizer = ShardedAdam(model, lr=reference.LEARNING_RATE)
        for step in range(reference.STEPS):
            ledger.clear()
            model(*reference.batch(step, rank, ranks)).backward()
            optimizer.step()
            optimizer.zero_grad()
            persistent, sent = meter.live["parameters"], ledger.bytes()
    return model.full_state_dict(), persistent, sent, model.unit_sizes


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_owner_layout_computes_the_same_and_shares_unevenly(world_of, ranks):
    expected, _ = alone()
    results = world_of(ranks).run(train_by_owner, ranks, "fp32")
    total = 4 * sum(results[0][3])
    for parameters, *_ in results:
        assert difference(parameters, expected) <= 1e-5
    assert sum(persistent for _, persistent, _, _ in results) == total  # no padding at all
    assert sum(sent for _, _, sent, _ in results) == 3 * total * (ranks - 1)  # as flat, in all
    shares = [persistent for _, persistent, _, _ in results]
    assert ranks == 1 or max(shares) > min(shares)


def gathered_at_most(rank: int, ranks: int, overlap: bool) -> tuple[int, list[int]]:
    """The most bytes of gathered parameters in a step, and each stage's bytes in order."""
    from zerolab import MemoryMeter, ShardedAdam, Zero3

    torch.manual_seed(0)
    with MemoryMeter() as meter:
        model = Zero3(reference.GPT(reference.SHAPE), overlap=overlap)
        optimizer = ShardedAdam(model)
        for step in range(3):
            meter.reset_peak()
            model(*reference.batch(step, rank, ranks)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return meter.peaks["gathered"], [4 * unit.size for unit in model.units]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_one_stage_is_whole_at_a_time_and_two_with_overlap(world_of, ranks):
    for peak, sizes in world_of(ranks).run(gathered_at_most, ranks, overlap=False):
        assert peak == max(sizes)
    for peak, sizes in world_of(ranks).run(gathered_at_most, ranks, overlap=True):
        assert peak == max(map(sum, pairwise(sizes)))
