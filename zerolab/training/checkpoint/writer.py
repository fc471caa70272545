"""A checkpoint on disk: complete or absent, and never pickled.

    model.safetensors.index.json            which file holds which tensor; everything but tensors
    model-00001-of-00006.safetensors ...    parameters and buffers, a file for each unit
    optimizer-00001-of-00019.safetensors    optimizer state, a file for each unit and kind of state

The folder's checkpoint is what the index names, nothing else. So a save replaces the one before it
by renaming one file, which POSIX makes atomic (renaming a folder over a filled folder is not):

    1. write the files in `.saving`, each synced to the disk
    2. move them up, under names that the present index does not use
    3. move the new index over the present one: from here on the new checkpoint is the folder's
    4. remove the old one's files, then `.saving`

Cut off before 3, the old checkpoint is whole; after it, the new one. As long as there is a
`.saving`, the folder may hold files that no index names: the next save removes them. Files are
numbered anew by each save (`model-2-00001-of-00006.safetensors` the second time), and carry its
identity: what was copied in from another save is noticed.
"""

import os
import re
import shutil
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from safetensors.torch import save_file
from torch import Tensor

from zerolab.training.checkpoint.index import INDEX, CheckpointError, dump, files_of, read_index

SAVING = ".saving"
_OURS = re.compile(r"(model|optimizer)(-\d+)?-\d{5}-of-\d{5}\.safetensors")


class Writer:
    """Writes one checkpoint into a folder, replacing the one that is there."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._aside = self.folder / SAVING
        self._identity = uuid4().hex
        self._maps: dict[str, dict[str, str]] = defaultdict(dict)  # kind -> tensor -> file
        self._bytes = 0

    def begin(self, optimizer: dict[str, Any] | None, extra: Any) -> None:
        """Remove what a save that was cut off has left, and make `.saving`.

        optimizer: what to keep of it besides tensors; None where it is not saved.
        """
        self._index = {"optimizer": optimizer, "extra": extra}
        dump(self._index)  # what JSON cannot hold is refused before anything is written
        self.folder.mkdir(parents=True, exist_ok=True)
        _sync(self.folder.parent)
        _remove_leftovers(self.folder)
        self._number = self._present_number() + 1
        self._aside.mkdir()
        _sync(self.folder)

    def write(self, kind: str, place: int, count: int, tensors: dict[str, Tensor]) -> None:
        """File `place` of `count` (from 1) of a kind, "model" or "optimizer"."""
        again = f"-{self._number}" if self._number > 1 else ""
        name = f"{kind}{again}-{place:05}-of-{count:05}.safetensors"
        path = self._aside / name
        save_file(tensors, path, {"format": "pt", "save": self._identity})
        # safetensors makes files that only their owner can read, whatever the umask.
        os.chmod(path, os.stat(self._aside).st_mode & 0o666)
        _sync(path)
        self._maps[kind] |= dict.fromkeys(tensors, name)
        if kind == "model":
            self._bytes += sum(tensor.nbytes for tensor in tensors.values())

    def commit(self) -> None:
        """Make what was written the folder's checkpoint."""
        index = {
            "metadata": {"total_size": self._bytes},
            "weight_map": self._maps["model"],
            "save": {"number": self._number, "identity": self._identity},
            **self._index,
        }
        if index["optimizer"] is not None:
            index["optimizer"]["weight_map"] = self._maps["optimizer"]
        (self._aside / INDEX).write_text(dump(index), encoding="utf-8")
        _sync(self._aside / INDEX)
        for name in sorted(files_of(index)):
            os.replace(self._aside / name, self.folder / name)
        _sync(self.folder)
        os.replace(self._aside / INDEX, self.folder / INDEX)
        _sync(self.folder)
        _remove_leftovers(self.folder)

    def discard(self) -> None:
        """After a failure: give the disk back what this save has taken, as far as that works."""
        # What made the save fail may forbid this too; the next save tries again.
        with suppress(OSError, CheckpointError):
            _remove_leftovers(self.folder)

    def _present_number(self) -> int:
        """The number of the save to be replaced, 0 where there is none; refuse what is not ours."""
        index = read_index(self.folder) if (self.folder / INDEX).exists() else None
        present = {name for name in os.listdir(self.folder) if name.endswith(".safetensors")}
        foreign = present - (files_of(index) if index else set())
        if index and "save" not in index:
            foreign.add(INDEX)
        if foreign:
            raise CheckpointError(
                f"{self.folder / min(foreign)} was not written by `save`, which would replace or "
                "shadow it: save to another folder, or move it away"
            )
        return index["save"]["number"] if index else 0


def _remove_leftovers(folder: Path) -> None:
    """Remove the files that no index names; `.saving`, which says that there may be some, last."""
    if not (folder / SAVING).exists():
        return
    named = files_of(read_index(folder)) if (folder / INDEX).exists() else set()
    for name in os.listdir(folder):
        if _OURS.fullmatch(name) and name not in named:
            os.remove(folder / name)
    _sync(folder)
    shutil.rmtree(folder / SAVING)


def _sync(path: Path) -> None:
    """Return when a file's contents, or a folder's entries, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
