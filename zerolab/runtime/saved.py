"""What autograd keeps: the storages that a forward pass saves for backward, each counted once.

Works on any device, and on `meta` without any memory, so that the activations of a model of any
size can be counted exactly in seconds.
"""

from collections.abc import Iterable
from typing import Self

import torch
from torch.autograd.graph import saved_tensors_hooks


class SavedTensors:
    """Collect what is saved for backward while the context is open.

    excluded: tensors that are there anyway (parameters, buffers) and are not counted.

    Tensors that share a storage count once, with the whole of it: a view keeps it all alive. What a
    checkpoint holds as an argument instead of saving it is not seen.
    """

    def __init__(self, excluded: Iterable[torch.Tensor] = ()) -> None:
        # Both hold the storages: a model may drop a buffer in its forward, and another storage
        # would take over its identity.
        self._kept: dict[int, torch.UntypedStorage] = {}
        self._excluded = {storage._cdata: storage for storage in map(_storage, excluded)}
        self._hooks = saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._hooks.__exit__(*exception)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = _storage(tensor)
        if storage._cdata not in self._excluded:
            self._kept[storage._cdata] = storage
        return tensor

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self._kept.values())


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()
