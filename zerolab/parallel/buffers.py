"""Buffers: what a module keeps beside its parameters, as batch norm its running statistics.

They are not trained, so nothing averages them; as under torch's DDP, every rank has rank 0's.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from zerolab.runtime import memory
from zerolab.runtime.collectives import broadcast


class Buffers:
    """A module's buffers on this rank."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None) -> None:
        self.module, self.group = module, group
        self._seen: dict[str, tuple[int, int]] = {}  # identity and version when last broadcast

    def follow_rank_0(self) -> None:
        """Give every rank rank 0's buffers, those that have changed since."""
        for path, owner in self.module.named_modules():
            for key, buffer in owner.named_buffers(path, recurse=False):
                if self._seen.get(key) == (id(buffer), buffer._version):
                    continue
                buffer.data = buffer.contiguous()
                memory.tag(buffer, "buffers")
                broadcast(buffer, 0, key, self.group).wait()
                # Batch norm's kernels write its statistics without counting it as a new version.
                if not (isinstance(owner, _NormBase) and owner.training):
                    self._seen[key] = (id(buffer), buffer._version)
