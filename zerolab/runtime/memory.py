"""Live memory: which bytes are alive now, what for, and how many there were at most.

Every tensor that torch makes passes `MemoryMeter.__torch_dispatch__`; a weak reference to its
storage says when its memory is free again. That is exact, with three things to know:

- storages that are resized in place must be reported by whoever resizes (`resized`);
- what a kernel allocates and frees inside one call (an im2col buffer, a matrix packed for a
  product) never becomes a tensor and is not seen;
- only the thread that entered the meter is watched.

Resident set size would be wrong by hundreds of MiB: it holds torch itself, and pages that the
allocator keeps. On CUDA compare with `torch.cuda.max_memory_allocated`.
"""

import gc
import threading
import weakref
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

ACTIVATIONS = "activations"  # whatever nobody has claimed: activations and temporaries

# The category of each claimed storage, by identity, for as long as the storage lives.
_claims: dict[int, tuple[weakref.ref, str]] = {}
_active: list["MemoryMeter"] = []
_lock = threading.RLock()  # storages may die on another thread, or in a collection within a call


def tag(tensor: torch.Tensor, category: str) -> torch.Tensor:
    """Claim a tensor's storage for a category, as "parameters"; returns the tensor."""
    storage = tensor.untyped_storage()
    key = storage._cdata
    with _lock:
        _claims[key] = (weakref.ref(storage, lambda _: _claims.pop(key, None)), category)
        for meter in _active:
            meter._watch(storage)
    return tensor


def resized(tensor: torch.Tensor) -> None:
    """Report that a tensor's storage was resized in place."""
    with _lock:
        for meter in _active:
            meter._watch(tensor.untyped_storage())


def _category(storage: torch.UntypedStorage) -> str:
    claim = _claims.get(storage._cdata)
    return claim[1] if claim else ACTIVATIONS


class MemoryMeter(TorchDispatchMode):
    """Measure the live bytes of this process's tensors while the context is open.

    Claimed storages that were alive before are counted from the start; others only once an
    operation returns them.

    Attributes: `live` (bytes now, by category), and since `reset_peak`: `peak` (most bytes at
    once), `peak_parts` (its categories, at that moment), `peaks` (each category's own most).
    """

    def __init__(self) -> None:
        super().__init__()
        self._watched: dict[int, tuple[weakref.ref, str, int]] = {}
        self.live: Counter[str] = Counter()
        self._total = 0
        self.reset_peak()

    def reset_peak(self) -> None:
        """Forget earlier peaks: the peak is what is alive now."""
        self.peak = self._total
        self.peak_parts: dict[str, int] = dict(self.live)
        self.peaks: Counter[str] = self.live.copy()

    @property
    def total(self) -> int:
        """Bytes alive now."""
        return self._total

    def __enter__(self):
        # A strategy's hooks refer back to it, so an earlier model lives on until a collection.
        gc.collect()
        with _lock:
            _active.append(self)
            for reference, _ in list(_claims.values()):
                if (storage := reference()) is not None:
                    self._watch(storage)
        return super().__enter__()

    def __exit__(self, *exception):
        with _lock:
            _active.remove(self)
        return super().__exit__(*exception)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(is_traceable_wrapper_subclass_type, types)):
            # A DTensor claims the size of the whole tensor and has no memory of its own: let it
            # call what it wraps, which comes by here too.
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        with _lock:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self._watch(leaf.untyped_storage())
        return result

    def _watch(self, storage: torch.UntypedStorage) -> None:
        """Count a storage, or correct what was counted of it."""
        if storage.device.type == "meta":
            return
        key, size, category = storage._cdata, storage.nbytes(), _category(storage)
        if key in self._watched:
            reference, old_category, old_size = self._watched[key]
            if (old_category, old_size) == (category, size):
                return
            self._count(old_category, -old_size)
        else:
            reference = weakref.ref(storage, lambda _: self._forget(key))
        self._watched[key] = (reference, category, size)
        self._count(category, size)

    def _forget(self, key: int) -> None:
        with _lock:
            _, category, size = self._watched.pop(key)
            self._count(category, -size)

    def _count(self, category: str, size: int) -> None:
        self.live[category] += size
        self._total += size
        self.peaks[category] = max(self.peaks[category], self.live[category])
        # Equal too: a storage is claimed just after it was made, which may have been the peak.
        if self._total >= self.peak:
            self.peak, self.peak_parts = self._total, dict(self.live)
