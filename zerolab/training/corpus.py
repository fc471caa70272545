"""Text to train on, one token a byte.

The default is real English that comes with every CPython: the help topics of its language
reference. No download, no licence to ask for.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor

from zerolab.accounting.errors import InputError

HELD_OUT = 10  # one byte in ten, at the end, is never trained on


@dataclass(frozen=True)
class Corpus:
    """A text, cut into what is trained on and what is held out."""

    name: str
    train: Tensor  # uint8
    held_out: Tensor  # uint8, the last tenth

    @classmethod
    def default(cls) -> "Corpus":
        """The help topics of the running CPython: about 370 kB, by version."""
        from pydoc_data.topics import topics

        # Topics quote one another at length. Each paragraph is kept once, or the model would be
        # tested on text that it was trained on.
        paragraphs = (p.strip("\n") for key in sorted(topics) for p in topics[key].split("\n\n"))
        text = "\n\n".join(dict.fromkeys(paragraphs))
        return cls._cut("Python's help topics", text.encode())

    @classmethod
    def from_file(cls, path: str | Path) -> "Corpus":
        """Any text file. Raises InputError where it cannot be read, is empty, or is not text."""
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise _refusal(path, reason, "a text file that can be read") from None
        if not text.strip():
            raise _refusal(path, "empty", "a text file")
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise _refusal(path, f"not text at byte {error.start:,}", "UTF-8 text") from None
        if b"\0" in text:
            raise _refusal(path, f"binary at byte {text.index(0):,}", "UTF-8 text") from None
        return cls._cut(str(path), text)

    @classmethod
    def _cut(cls, name: str, text: bytes) -> "Corpus":
        cut = len(text) - len(text) // HELD_OUT
        # Copies: two views of one buffer would each carry the whole text to every rank.
        train, held_out = (
            torch.tensor(numpy.frombuffer(part, numpy.uint8)) for part in (text[:cut], text[cut:])
        )
        return cls(name, train, held_out)

    @property
    def unigram_entropy(self) -> float:
        """Entropy of single bytes in the held-out text, in nats a byte.

        No model that ignores context can have a lower loss: one below it has learnt more than how
        often each character occurs.
        """
        counts = torch.bincount(self.held_out.int()).double()
        shares = counts[counts > 0] / counts.sum()
        return -(shares * shares.log()).sum().item()

    def require(self, length: int) -> None:
        """Raises InputError unless both parts hold a sequence of `length` bytes and its target."""
        have = len(self.train) + len(self.held_out)
        need = HELD_OUT * (length + 1)
        if have < need:
            raise _refusal(
                self.name,
                f"{have:,} bytes",
                f"a text of at least {need:,} bytes, so that the held-out tenth is not shorter "
                f"than a sequence of {length}",
            )

    def batch(
        self, step: int, rank: int, ranks: int, size: int, length: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """This rank's `size` sequences of the step's `ranks * size`, drawn at random.

        The draw depends only on seed, step and `ranks * size`: one process that asks for all of
        them trains on the same data. Returns tokens and targets, (size, length) int64, the targets
        one byte further on.
        """
        self.require(length)
        draw = random.Random(f"{seed} {step}")
        starts = draw.choices(range(len(self.train) - length), k=ranks * size)
        return _windows(self.train, starts[rank * size : (rank + 1) * size], length)

    def held_out_batch(
        self, rank: int, ranks: int, length: int, count: int = 120
    ) -> tuple[Tensor, Tensor]:
        """This rank's share of at least `count` sequences spread evenly over the held-out text.

        `count` is rounded up until ranks have equally many, so that the mean of their losses is
        the loss. Returns the same as `batch`.
        """
        self.require(length)
        share = math.ceil(count / ranks)
        last = len(self.held_out) - length - 1
        # In float32, places beyond 2^24 would be rounded, the last of them past the end.
        starts = torch.linspace(0, last, share * ranks, dtype=torch.float64).long().tolist()
        return _windows(self.held_out, starts[rank * share : (rank + 1) * share], length)


def _windows(text: Tensor, starts: Iterable[int], length: int) -> tuple[Tensor, Tensor]:
    rows = torch.stack([text[start : start + length + 1] for start in starts]).long()
    return rows[:, :-1], rows[:, 1:]  # (B, T+1) -> two of (B, T)


def _refusal(name: str | Path, found: str, accepted: str) -> InputError:
    return InputError("--corpus", f"{name} ({found})", accepted)
