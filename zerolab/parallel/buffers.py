"""Buffers: what a module keeps beside its parameters, as batch norm its running statistics.

They are not trained, so nothing averages them; as under torch's DDP, every rank has rank 0's.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from zerolab.runtime import memory
from zerolab.runtime.collectives import all_reduce, broadcast, device_of

Version = tuple[int, int] | None  # identity and number of writes


class Buffers:
    """A module's buffers on this rank."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None) -> None:
        self.module, self.group = module, group
        self._seen: dict[str, Version] = {}  # when last broadcast

    def follow_rank_0(self) -> None:
        """Give every rank rank 0's buffers, those that have changed on any rank since."""
        buffers = [
            (key, buffer, _version(owner, buffer))
            for path, owner in self.module.named_modules()
            for key, buffer in owner.named_buffers(path, recurse=False)
        ]
        changed = [version is None or self._seen.get(key) != version for key, _, version in buffers]
        for (key, buffer, version), stale in zip(buffers, self._on_any_rank(changed), strict=True):
            if stale:
                buffer.data = buffer.contiguous()
                memory.tag(buffer, "buffers")
                broadcast(buffer, 0, key, self.group).wait()
                self._seen[key] = version and (id(buffer), buffer._version)

    def _on_any_rank(self, changed: list[bool]) -> list[bool]:
        """All must broadcast the same, and one may have written what another has not."""
        if not changed:
            return []
        padding = -len(changed) % dist.get_world_size(self.group)
        counts = torch.tensor(
            [*changed, *[False] * padding], dtype=torch.int32, device=device_of(self.group)
        )
        all_reduce(counts, "changed buffers", self.group).wait()
        return [count > 0 for count in counts[: len(changed)].tolist()]


def _version(owner: nn.Module, buffer: Tensor) -> Version:
    """What changes when a buffer does; None where it may change unseen."""
    # Batch norm's kernels write its statistics without counting it as a new version.
    unseen = isinstance(owner, _NormBase) and owner.training
    return None if unseen else (id(buffer), buffer._version)
