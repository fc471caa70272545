"""Ranks that do different things are told where each of them is; nothing is summed wrongly."""

import re
from contextlib import ExitStack
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from zerolab import RankError, World
from zerolab.parallel import STRATEGIES

TIMEOUT = 2.0  # seconds that a rank waits for another in a collective


@pytest.fixture(scope="module")
def impatient():
    """impatient(n): a World of n ranks that do not wait long for each other."""
    with ExitStack() as worlds:
        yield cache(
            lambda ranks: worlds.enter_context(
                World(ranks, device="cpu", threads=1, timeout=TIMEOUT)
            )
        )


class Routed(nn.Module):
    """Calls its blocks in the order that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor, route: tuple[int, ...]) -> Tensor:
        for index in route:
            x = self.blocks[index](x).tanh()
        return x.square().mean()


def follow(rank: int, strategy: str, routes: list[list[tuple[int, ...]]]) -> None:
    """Forward and backward for each pair of routes: rank 0's, and the other ranks'."""
    model = STRATEGIES[strategy](Routed())
    for route in routes:
        model(torch.ones(2, 6), route[min(rank, 1)]).backward()
        model.zero_grad()


DIVERGENCES = {
    "another module": [[(0, 1), (0, 2)]],
    "another order": [[(0, 1, 2), (1, 0, 2)]],
    "one module more": [[(0, 1, 2), (0, 1)]],
    # Both ranks come to the same reductions, but a step apart.
    "the same module, a step later": [[(0,), (1,)], [(1,), (0,)]],
}


@pytest.mark.parametrize("routes", DIVERGENCES.values(), ids=DIVERGENCES.keys())
@pytest.mark.parametrize(
    ("ranks", "strategy"), [(2, "ddp"), (2, "zero3"), (3, "zero1"), (4, "zero3")]
)
def test_each_ranks_position_is_named(impatient, ranks, strategy, routes):
    with pytest.raises(RankError) as failure:
        impatient(ranks).run(follow, strategy, routes, timeout=10 * TIMEOUT)
    message = str(failure.value)
    named = set()
    for who, doing in re.findall(r"^\s*ranks? ([\d, and]+)\b(.*)$", message, re.MULTILINE):
        assert " of blocks." in doing or "finished" in doing, message
        named.update(map(int, re.findall(r"\d+", who)))
    assert named == set(range(ranks)), message
    assert "blocks." in message


def all_reduce_each(rank: int, labels: list[list[str]]) -> list[float]:
    from zerolab.runtime.collectives import all_reduce

    sums = []
    for number, label in enumerate(labels[min(rank, 1)]):
        tensor = torch.full((12,), float(number))
        all_reduce(tensor, label).wait()
        sums.append(tensor[0].item())
    return sums


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_collective_waits_for_its_counterpart_and_takes_no_other(impatient, ranks):
    world = impatient(ranks)
    assert world.run(all_reduce_each, [["a", "b"], ["a", "b"]]) == [[0.0, ranks]] * ranks
    with pytest.raises(RankError) as failure:
        world.run(all_reduce_each, [["a", "b"], ["b"]])
    assert "all-reduce of a" in str(failure.value)
    assert "all-reduce of b" in str(failure.value)
