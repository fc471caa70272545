"""Saving: all ranks gather, one tensor at a time, and rank 0 writes."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zerolab.parallel.adam import ShardedOptimizer
from zerolab.parallel.strategy import Strategy
from zerolab.runtime.collectives import sum_over_ranks
from zerolab.training.checkpoint.checks import check_pair
from zerolab.training.checkpoint.contents import contents, optimizer_index
from zerolab.training.checkpoint.index import CheckpointError
from zerolab.training.checkpoint.writer import Writer


@torch.no_grad()
def save(
    folder: str | Path,
    model: Strategy,
    optimizer: ShardedOptimizer | None = None,
    extra: Any = None,
) -> None:
    """Save a model, its optimizer's state, and rank 0's `extra`. All ranks call it.

    extra: whatever JSON can hold: the step, a loss scale, a scheduler's or a generator's state as
        numbers and lists. Tuples come back as lists, keys as strings.

    A checkpoint in the folder is replaced, and stays whole until the new one is. Raises
    CheckpointError, on all ranks, where the folder cannot be written or holds something else.
    """
    check_pair(model, optimizer)
    files = contents(model, optimizer)
    index = None if optimizer is None else optimizer_index(optimizer)
    counts, places = Counter(file.kind for file in files), Counter[str]()
    writer = Writer(folder)
    try:
        _on_rank_0(model, folder, partial(writer.begin, index, extra))
        for kind, tensors in files:
            places[kind] += 1
            # What was gathered is in the call alone, so it is gone when the next is.
            write = partial(writer.write, kind, places[kind], counts[kind])
            _on_rank_0(model, folder, partial(write, tensors()))
        _on_rank_0(model, folder, writer.commit)
    except CheckpointError:
        if dist.get_rank(model.group) == 0:
            writer.discard()
        raise


def _on_rank_0(model: Strategy, folder: str | Path, action: Callable[[], None]) -> None:
    """Call `action` on rank 0, and raise on every rank what it raises there."""
    error: list[CheckpointError | None] = [None]
    if dist.get_rank(model.group) == 0:
        try:
            action()
        except CheckpointError as found:
            error = [found]
        except Exception as found:  # whatever it is, the other ranks are waiting
            error = [
                CheckpointError(
                    f"{folder} could not be written ({type(found).__name__}: {found}): the "
                    "checkpoint that its index names, if any, is whole; mend the cause, save again"
                )
            ]
    if sum_over_ranks(error[0] is not None, model.device, "checkpoint", model.group):
        dist.broadcast_object_list(error, group=model.group, group_src=0)
        assert error[0] is not None
        raise error[0]
