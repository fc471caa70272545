"""The index: which file of a checkpoint holds which tensor, and everything that is no tensor.

What Hugging Face's index holds (`metadata`, `weight_map`), and beside it

    save        the number and identity of the save
    optimizer   class, groups, scalars, and a weight_map of its own; null where it was not saved
    extra       what the user gave
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"


class CheckpointError(RuntimeError):
    """One sentence: which file, what is wrong with it, what to do."""


def read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        files_of(index)
        if index.get("optimizer"):
            _ = [index["optimizer"][key] for key in ("class", "groups", "scalars")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is truncated or no index of a checkpoint ({type(error).__name__}: {error}): "
            "copy it anew, or use another folder"
        ) from None
    return index


def dump(index: Mapping[str, Any]) -> str:
    try:
        return json.dumps(index, indent=1)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"extra, or an optimizer's settings, hold what JSON cannot ({error}): give numbers, "
            "strings, lists and dictionaries, a tensor as tensor.tolist()"
        ) from None


def files_of(index: Mapping[str, Any]) -> set[str]:
    """The files that an index names."""
    states = index["optimizer"]["weight_map"] if index.get("optimizer") else {}
    return {*index["weight_map"].values(), *states.values()}
