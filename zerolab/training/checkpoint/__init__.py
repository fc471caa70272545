"""Checkpoints: saved under any strategy on any number of ranks, resumed under any other.

    save("run", model, optimizer, {"step": step})            # on all ranks
    step = load("run", model, optimizer)["step"]             # on all ranks, or in plain torch

The files are safetensors under the module's own parameter names, with an index as Hugging Face
writes it, so `transformers` and `safetensors` read them without us. `writer` says how a save is
complete or absent, `contents` what is in it.

Saving gathers one flat tensor at a time, and rank 0 writes it before the next: no rank holds more
than one unit whole. What tensor parallelism has cut is put together on the way, and cut again by
who reads it. Loading reads from the files what this rank keeps; all ranks must see the same folder.
"""

from zerolab.training.checkpoint.index import CheckpointError
from zerolab.training.checkpoint.loading import load
from zerolab.training.checkpoint.saving import save

__all__ = ["CheckpointError", "load", "save"]
