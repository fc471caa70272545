"""Ours against the systems themselves: same data, same seed, same losses."""

from dataclasses import replace
from functools import cache

import pytest
import reference
import torch

from zerolab import World
from zerolab.parallel import STRATEGIES
from zerolab.training.engines import ENGINES, SAME_BATCH, engine, installed
from zerolab.training.gpt import GPT

alone = cache(reference.train_alone)
DATA_PARALLEL = [name for name in ENGINES if name not in (*SAME_BATCH, "alone")]
DIVISIBLE = replace(reference.SHAPE, vocabulary=64, heads=4, width=32)  # by 2 and 4 ranks


def train(rank: int, ranks: int, name: str, share: int | None = None) -> list[float]:
    """The loss in each of ten steps, on one share of the global batch: this rank's own."""
    torch.manual_seed(0)
    step = engine(name, GPT(reference.SHAPE), reference.LEARNING_RATE)
    share = rank if share is None else share
    return [step(*reference.batch(i, share, ranks)).item() for i in range(reference.STEPS)]


def mean(by_rank: list[list[float]]) -> list[float]:
    """The mean over the ranks, step by step."""
    return [sum(step) / len(step) for step in zip(*by_rank, strict=True)]


@pytest.fixture(scope="module")
def losses():
    """The mean loss of each step, by engine and ranks.

    On ranks of this module's own: what the peers do to torch must not reach other tests.
    """
    with World(2, device="cpu", threads=1) as two, World(3, device="cpu", threads=1) as three:
        worlds = {2: two, 3: three}
        yield cache(lambda name, ranks: mean(worlds[ranks].run(train, ranks, name)))


def needs(name: str) -> None:
    if not installed(name):
        pytest.skip(f"{name} IS NOT COMPARED: DeepSpeed is not installed (requirements.txt has it)")


@pytest.mark.parametrize("name", DATA_PARALLEL)
def test_every_engine_learns_what_one_process_learns(losses, name):
    needs(name)
    _, expected = alone()
    assert losses(name, 2) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("ours", STRATEGIES)
@pytest.mark.parametrize("peer", [name for name in DATA_PARALLEL if name not in STRATEGIES])
def test_ours_agree_with_every_peer(losses, peer, ours):
    needs(peer)
    assert losses(ours, 2) == pytest.approx(losses(peer, 2), abs=1e-4)


@pytest.mark.parametrize("name", ["zero3", "fsdp2"])
def test_on_three_ranks_too(losses, name):
    """Where hardly a tensor divides by the ranks."""
    _, expected = alone()
    assert losses(name, 3) == pytest.approx(expected, abs=1e-4)


def test_ranks_that_do_not_communicate_are_noticed(world_of):
    """The engine `alone`: each rank learns from its own share what one process learns from it."""
    by_share = [world_of(1).run(train, 2, "ddp", share)[0] for share in range(2)]
    apart = world_of(2).run(train, 2, "alone")
    assert apart == [pytest.approx(losses, abs=1e-5) for losses in by_share]
    _, together = alone()
    assert mean(apart) != pytest.approx(together, abs=1e-4)


def train_together(rank: int, name: str) -> list[float]:
    """The loss in each of ten steps, every rank computing its part of the global batch."""
    torch.manual_seed(0)
    step = engine(name, GPT(DIVISIBLE), reference.LEARNING_RATE)
    return [step(*reference.batch(i)).item() for i in range(reference.STEPS)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_both_tensor_parallel_engines_learn_what_one_process_learns(world_of, ranks):
    (expected,) = world_of(1).run(train_together, "ddp")
    for name in SAME_BATCH:
        for losses in world_of(ranks).run(train_together, name):
            assert losses == pytest.approx(expected, abs=1e-5)
