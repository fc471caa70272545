"""Saving: all ranks gather, one tensor at a time, and rank 0 writes."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zerolab.parallel.strategy import Strategy
from zerolab.parallel.tensor_parallel import TensorParallel
from zerolab.training.checkpoint.agreement import first_error, is_first
from zerolab.training.checkpoint.checks import check_pair
from zerolab.training.checkpoint.contents import contents, optimizer_index
from zerolab.training.checkpoint.index import CheckpointError
from zerolab.training.checkpoint.writer import Writer


@torch.no_grad()
def save(
    folder: str | Path,
    model: Strategy | TensorParallel,
    optimizer: torch.optim.Optimizer | None = None,
    extra: Any = None,
) -> None:
    """Save a model, its optimizer's state, and rank 0's `extra`. All ranks call it.

    model, optimizer: a strategy and its sharded optimizer; or under tensor parallelism alone the
        `TensorParallel` module and a torch optimizer.
    extra: whatever JSON can hold: the step, a loss scale, a scheduler's or a generator's state as
        numbers and lists. Tuples come back as lists, keys as strings.

    A checkpoint in the folder is replaced, and stays whole until the new one is. Raises
    CheckpointError, on all ranks, where the folder cannot be written or holds something else.
    """
    if not isinstance(model, Strategy | TensorParallel):
        raise CheckpointError(
            f"a {type(model).__name__} is not what `save` takes: give a strategy or a "
            "TensorParallel module, all ranks together; `load` reads it into a plain module"
        )
    check_pair(model, optimizer)
    files = contents(model, optimizer)
    index = None if optimizer is None else optimizer_index(model, optimizer)
    counts, places = Counter(file.kind for file in files), Counter[str]()
    writer = Writer(folder)
    on_rank_0 = partial(_on_rank_0, model, folder)
    try:
        on_rank_0(partial(writer.begin, index, extra))
        for kind, tensors in files:
            places[kind] += 1
            # What was gathered is in the call alone, so it is gone when the next is.
            on_rank_0(partial(writer.write, kind, places[kind], counts[kind], tensors()))
        on_rank_0(writer.commit)
    except CheckpointError:
        if is_first(model):
            writer.discard()
        raise


def _on_rank_0(model: nn.Module, folder: str | Path, action: Callable[[], None]) -> None:
    """Call `action` on rank 0, and raise on every rank what it raises there."""
    error: CheckpointError | None = None
    if is_first(model):
        try:
            action()
        except CheckpointError as found:
            error = found
        except Exception as found:  # whatever it is, the other ranks are waiting
            error = CheckpointError(
                f"{folder} could not be written ({type(found).__name__}: {found}): the "
                "checkpoint that its index names, if any, is whole; mend the cause, save again"
            )
    if error := first_error(model, error):
        raise error
