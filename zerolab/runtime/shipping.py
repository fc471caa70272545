"""Carrying functions and values between the caller and its ranks.

cloudpickle does the work: what is defined in a notebook cell or a script travels by value, what an
importable module defines by name. This module adds what it leaves out: the source lines of cells
(for tracebacks), tensors that arrive on the CPU, one identity for a class that comes back, and a
warning before a large payload goes out unnoticed.
"""

import io
import linecache
import os
import pickle
import sys
import types
import warnings
from dataclasses import dataclass, field
from typing import Any

import cloudpickle.cloudpickle as by_value
import torch

from zerolab.runtime.ledger import ledger

LARGE = 64 * 10**6  # bytes; a copy to every rank is then worth a warning


@dataclass
class Parcel:
    """A pickled value and what its code needs to be quoted in a traceback."""

    body: bytes
    sources: dict[str, list[str]] = field(default_factory=dict)  # file name -> lines
    largest: torch.Tensor | None = None  # the tensor with the largest storage; stays at home

    def warn_if_large(self, what: str, stacklevel: int) -> None:
        """Say so if the body is large: what it is, how large, and what to do."""
        if len(self.body) <= LARGE:
            return
        message = f"{what}: {len(self.body) / 1e6:.0f} MB."
        if self.largest is not None:
            tensor, stored = self.largest, self.largest.untyped_storage().nbytes()
            message += f" Its largest part is a tensor of shape {tuple(tensor.shape)}"
            if stored > 2 * tensor.nbytes:
                message += f", a view whose whole storage of {stored / 1e6:.0f} MB travels with it"
                message += " (send a .clone() instead)"
            message += "."
        message += " Large tensors are better made on the ranks, or saved to a file."
        warnings.warn(message, stacklevel=stacklevel + 1)


def pack(value: object) -> Parcel:
    """Pickle a value. Raises TypeError or PicklingError, with a note on what cannot travel."""
    with io.BytesIO() as file:
        pickler = _Pickler(file)
        try:
            pickler.dump(value)
        except Exception as error:
            error.add_note(
                "Locks, generators, open files and running threads cannot travel between "
                "processes: make them inside the function, on the rank."
            )
            raise
        return Parcel(file.getvalue(), pickler.sources, pickler.largest)


def unpack(body: bytes) -> Any:
    """At the caller: the value again. A class that the caller has already stays as it is."""
    return _Unpickler(io.BytesIO(body)).load()


def know_sources(sources: dict[str, list[str]]) -> None:
    """Let tracebacks of this process quote code that has no file here."""
    for name, lines in sources.items():
        # No modification time: `linecache` then never looks for the file.
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


class _Pickler(by_value.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.sources: dict[str, list[str]] = {}
        self.largest: torch.Tensor | None = None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            return self._reduce_code(obj)
        if obj is ledger:
            return "ledger"  # by name: each rank writes into its own
        if isinstance(obj, torch.Tensor):
            return self._reduce_tensor(obj)
        return super().reducer_override(obj)

    def _reduce_code(self, code: types.CodeType) -> tuple[Any, ...]:
        # cloudpickle drops the file name, and with it every source line of a traceback.
        rebuild, arguments = by_value._code_reduce(code)
        name = _cell_name(code.co_filename) or code.co_filename
        if name not in self.sources and not os.path.exists(name):
            lines = linecache.getlines(code.co_filename)
            if lines:
                self.sources[name] = lines
        return rebuild, tuple(name if a == "<dynamic-code>" else a for a in arguments)

    def _reduce_tensor(self, tensor: torch.Tensor) -> Any:
        if self.largest is None or _stored_bytes(tensor) > _stored_bytes(self.largest):
            self.largest = tensor
        if tensor.device.type == "cpu":
            return NotImplemented  # torch's own way
        home = tensor.detach().cpu().requires_grad_(tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter):
            home = torch.nn.Parameter(home, tensor.requires_grad)
        return home.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._own = set(by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS)

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if found is not by_value._class_setstate:
            return found
        # cloudpickle finds the class that went out again, but then overwrites its methods with
        # the copies that came back, which no longer see the notebook's variables.
        return lambda cls, state: cls if cls in self._own else found(cls, state)


def _stored_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _cell_name(filename: str) -> str | None:
    """A name like "Cell In[3]" for the code of an IPython cell: its own file name is a hash."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    label = shell.compile.format_code_name(filename) if shell else None
    return " ".join(label) if label else None
