"""What ranks print, shown by rank in the caller's cell or terminal.

Each rank writes into two files of its own. Nothing can then be lost when a rank is killed, block a
rank that prints much, or mix with another rank's line; and what C++ code or a child process writes
is caught as well. The caller reads the files when a run ends, or as lines come.
"""

import os
import sys
from pathlib import Path

_STREAMS = {"stdout": 1, "stderr": 2}  # name in `sys`, file descriptor


def redirect(folder: Path, rank: int) -> None:
    """On a rank: send both standard streams, of Python and of the process, to the rank's files."""
    for name, descriptor in _STREAMS.items():
        file = os.open(_path(folder, rank, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
        stream = open(descriptor, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)


class Output:
    """At the caller: what the ranks have written and the reader has not seen."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder = folder
        self._ranks = ranks
        self._seen: dict[Path, int] = {}  # bytes already shown

    def show(self, whole_lines: bool = False) -> None:
        """Write what is new, rank by rank, each line under its rank's name.

        With `whole_lines`, a line that has no end yet waits for it.
        """
        for name in _STREAMS:
            stream = getattr(sys, name)
            for rank in range(self._ranks):
                for line in self._new_lines(_path(self._folder, rank, name), whole_lines):
                    stream.write(f"[rank {rank}] {line}\n")
            stream.flush()

    def _new_lines(self, path: Path, whole_lines: bool) -> list[str]:
        if not path.exists():  # the rank did not live to open it
            return []
        with path.open("rb") as file:
            file.seek(self._seen.get(path, 0))
            new = file.read()
        if whole_lines:
            new = new[: new.rfind(b"\n") + 1]
        self._seen[path] = self._seen.get(path, 0) + len(new)
        return new.decode("utf-8", "replace").removesuffix("\n").split("\n") if new else []


def _path(folder: Path, rank: int, name: str) -> Path:
    return folder / f"rank{rank}.{name}"
