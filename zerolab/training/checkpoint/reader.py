"""A checkpoint, open for reading: its tensors by name, of which only what is asked for is read."""

from collections import defaultdict
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from zerolab.parallel.cut import Cut
from zerolab.training.checkpoint.index import INDEX, CheckpointError, read_index


class Tensors:
    """The tensors of one kind in a checkpoint, open for reading. Only what is asked for is read.

    Files stay open until this object goes, so that it does not matter if they are replaced.
    """

    def __init__(self, folder: Path, weight_map: Mapping[str, str], identity: str | None) -> None:
        self._files: dict[str, Any] = {}
        self._held_by = dict(weight_map)
        for tensor, name in self._held_by.items():
            path = folder / name
            if name not in self._files:
                self._files[name] = _open(path, identity)
            if tensor not in self._files[name].keys():  # noqa: SIM118 (no mapping, despite keys)
                raise CheckpointError(
                    f"{path} holds no {tensor}, though {INDEX} says so: it belongs to another "
                    "checkpoint; copy the right one here, or load an earlier checkpoint"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._held_by

    def names(self) -> list[str]:
        return list(self._held_by)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def is_floating_point(self, name: str) -> bool:
        return self._slice(name).get_dtype().startswith(("F", "BF"))

    def whole(self, name: str) -> Tensor:
        """A tensor; like all that is read here, not to be written to."""
        return self._file(name).get_tensor(name)

    def elements(self, name: str, first: int, last: int, cut: Cut | None = None) -> Tensor:
        """Elements `first` to `last`, in row-major order, of a tensor or of this rank's share by a
        cut; flat. Only the rows that they lie in are read."""
        shape = self.shape(name) if cut is None else cut.own_shape(self.shape(name))
        if not shape:
            return self.whole(name).view(1)
        row = max(1, prod(shape[1:]))  # a tensor may be empty
        top, bottom = first // row, -(-last // row)
        rows = self._rows(name, top, bottom, cut).flatten()
        return rows[first - top * row : last - top * row]

    def _rows(self, name: str, top: int, bottom: int, cut: Cut | None) -> Tensor:
        stored = self._slice(name)
        if cut is None:
            return stored[top:bottom]
        pieces = cut.pieces(self.shape(name)[cut.dimension], cut.ranks.rank)
        if cut.dimension == 1:
            return torch.cat([stored[top:bottom, piece] for piece in pieces], 1)
        parts, at = [], 0  # `at` counts the share's own rows
        for piece in pieces:
            length = piece.stop - piece.start
            start, stop = max(top - at, 0), min(bottom - at, length)
            if start < stop:
                parts.append(stored[piece.start + start : piece.start + stop])
            at += length
        return torch.cat(parts)

    def _file(self, name: str) -> Any:
        return self._files[self._held_by[name]]

    def _slice(self, name: str) -> Any:
        return self._file(name).get_slice(name)


class Checkpoint:
    """A checkpoint to be read: `model` and `optimizer` are its tensors, `extra` what the user gave.

    `optimizer_index` is what the index says of the optimizer, None where it was not saved.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / INDEX).exists():
            raise CheckpointError(
                f"{self.folder} holds no checkpoint: {INDEX} is missing, as it is where a first "
                "save was cut off; give a folder that `save` has written"
            )
        index = read_index(self.folder)
        identity = index.get("save", {}).get("identity")
        self.extra = index.get("extra")
        self.model = Tensors(self.folder, index["weight_map"], identity)
        self.optimizer_index: dict[str, Any] | None = index.get("optimizer")
        states = self.optimizer_index["weight_map"] if self.optimizer_index else {}
        self.optimizer = Tensors(self.folder, states, identity)
        self._keys: dict[str, list[str]] = defaultdict(list)
        for name in self.optimizer.names():
            parameter, _, key = name.rpartition(".")
            self._keys[parameter].append(key)

    def state_keys(self, parameter: str) -> list[str]:
        """The kinds of optimizer state that were saved of a parameter."""
        return self._keys.get(parameter, [])


def _open(path: Path, identity: str | None) -> Any:
    try:
        file = safe_open(path, "pt")
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing, and {INDEX} needs it: copy it here, or load an earlier checkpoint"
        ) from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is truncated or no safetensors file ({error}): copy it anew, or load an "
            "earlier checkpoint"
        ) from None
    if identity is not None and (file.metadata() or {}).get("save") != identity:
        raise CheckpointError(
            f"{path} belongs to another checkpoint than {INDEX}: copy the right one here, or load "
            "an earlier checkpoint"
        )
    return file
