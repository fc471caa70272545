"""A share of a tensor: taken from memory, and read from a file without the rest."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from safetensors.torch import save_file

from zerolab.parallel.cut import Cut
from zerolab.parallel.regions import Ranks
from zerolab.training.checkpoint.reader import Tensors


def share_of(rank: int, ranks: int, dimension: int, parts: int) -> Cut:
    return Cut(cast(Ranks, SimpleNamespace(rank=rank, count=ranks, group=None)), dimension, parts)


def test_queries_keys_and_values_are_each_divided():
    whole = torch.tensor([0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23])
    first, second = (share_of(rank, 2, 0, 3).own(whole, "qkv") for rank in range(2))
    assert first.tolist() == [0, 1, 10, 11, 20, 21]
    assert second.tolist() == [2, 3, 12, 13, 22, 23]


@pytest.mark.parametrize("shape", [(24,), (24, 2), (2, 24), (24, 24)])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_run_of_a_share_is_read_from_the_whole(tmp_path, shape, parts, ranks):
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    save_file({"weight": whole}, tmp_path / "file")
    stored = Tensors(tmp_path, {"weight": "file"}, None)
    for dimension in (d for d, size in enumerate(shape) if size == 24):
        for rank in range(ranks):
            cut = share_of(rank, ranks, dimension, parts)
            own = cut.own(whole, "weight")
            assert cut.own_shape(shape) == own.shape
            assert cut.whole_shape(own.shape) == shape
            flat = own.flatten()
            for first in range(0, own.numel(), 5):
                for last in range(first + 1, own.numel() + 1, 7):
                    run = stored.elements("weight", first, last, cut)
                    assert torch.equal(run, flat[first:last])
