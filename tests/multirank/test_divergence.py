"""Ranks that do different things are told where each of them is; nothing is summed wrongly."""

import pytest
import torch
from torch import Tensor, nn

from zerolab import RankError, ShardedAdam, World
from zerolab.parallel import STRATEGIES

TIMEOUT = 2.0  # seconds that a rank waits for another in a collective


@pytest.fixture(scope="module")
def impatient():
    with World(2, device="cpu", threads=1, timeout=TIMEOUT) as world:
        yield world


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
    """One step for each pair of routes, rank 0's and rank 1's."""
    model = STRATEGIES[strategy](Routed())
    optimizer = ShardedAdam(model)
    for route in routes:
        model(torch.ones(2, 6), route[rank]).backward()
        optimizer.step()
        optimizer.zero_grad()


DIVERGENCES = {
    "another module": [[(0, 1), (0, 2)]],
    "another order": [[(0, 1, 2), (1, 0, 2)]],
    "one module more": [[(0, 1, 2), (0, 1)]],
    # Both ranks come to the same reductions, but a step apart.
    "the same module, a step later": [[(0,), (1,)], [(1,), (0,)]],
}


@pytest.mark.parametrize("routes", DIVERGENCES.values(), ids=DIVERGENCES.keys())
@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_each_ranks_position_is_named(impatient, strategy, routes):
    with pytest.raises(RankError) as failure:
        impatient.run(follow, strategy, routes, timeout=10 * TIMEOUT)
    message = str(failure.value)
    for rank in range(2):
        (line,) = (line for line in message.splitlines() if line.strip().startswith(f"rank {rank}"))
        assert " of blocks." in line or "finished" in line, message
    assert "blocks." in message


def all_reduce_each(rank: int, labels: list[list[str]]) -> list[float]:
    from zerolab.runtime.collectives import all_reduce

    sums = []
    for number, label in enumerate(labels[rank]):
        tensor = torch.full((2,), float(number))
        all_reduce(tensor, label).wait()
        sums.append(tensor[0].item())
    return sums


def test_a_collective_waits_for_its_counterpart_and_takes_no_other(impatient):
    assert impatient.run(all_reduce_each, [["a", "b"], ["a", "b"]]) == [[0.0, 2.0]] * 2
    with pytest.raises(RankError) as failure:
        impatient.run(all_reduce_each, [["a", "b"], ["b"]])
    assert "all-reduce of a" in str(failure.value)
    assert "all-reduce of b" in str(failure.value)
