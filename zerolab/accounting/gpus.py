"""GPUs: the memory that a program can have, and how fast they multiply.

Memory is what `nvidia-smi` reports in all, in MiB: not the rounded figure of the name, and before
the driver's own share and the CUDA context. An H100 "80 GB" has 81559 MiB: 85.5 GB, 79.6 GiB.
Arithmetic is the data sheet's dense 16-bit tensor rate, without sparsity.
"""

from dataclasses import dataclass

from zerolab.accounting.errors import unknown_name

_MIB = 2**20


@dataclass(frozen=True)
class GPU:
    """One device. Sources: nvidia-smi's total for memory, NVIDIA's data sheet for arithmetic."""

    name: str
    memory: int  # bytes
    flops: float  # 16-bit multiplications and additions a second


GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("b200-180gb", 183_359 * _MIB, 2250e12),
        GPU("h200-141gb", 143_771 * _MIB, 989e12),
        GPU("h100-80gb", 81_559 * _MIB, 989e12),
        GPU("a100-80gb", 81_920 * _MIB, 312e12),
        GPU("a100-40gb", 40_960 * _MIB, 312e12),
        GPU("l40s-48gb", 46_068 * _MIB, 362e12),
        GPU("v100-32gb", 32_768 * _MIB, 125e12),
        GPU("rtx4090-24gb", 24_564 * _MIB, 165e12),
        GPU("rtx3090-24gb", 24_576 * _MIB, 71e12),
        GPU("t4-16gb", 15_360 * _MIB, 65e12),
    )
}


def gpu(name: str) -> GPU:
    """The GPU of that name. Raises InputError, nearest name first, for any other."""
    if name not in GPUS:
        raise unknown_name("--gpu", name, GPUS)
    return GPUS[name]
