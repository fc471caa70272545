"""GPUs: the memory that a program can have, and how fast they multiply.

Memory is what `nvidia-smi` reports in all, in MiB: not the rounded figure of the name, and before
the driver's own share and the CUDA context. An H100 "80 GB" has 81559 MiB: 85.5 GB, 79.6 GiB. A
driver may report some MiB more or less.
Arithmetic is the dense 16-bit tensor rate, with sums in fp32 and without sparsity.
"""

from dataclasses import dataclass

from zerolab.accounting.errors import unknown_name

_MIB = 2**20
_MODAL = "nvidia-smi, as tabulated at thundergolfer.com/blog/nvidia-gpu-memory-capacity"


@dataclass(frozen=True)
class GPU:
    """One device, with where its two figures are from."""

    name: str
    memory: int  # bytes
    flops: float  # 16-bit multiplications and additions a second
    memory_source: str
    flops_source: str


GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU(
            "b200-180gb",
            183_359 * _MIB,
            2250e12,
            "nvidia-smi, driver 580, as printed in NVIDIA/TensorRT-LLM issue 10278",
            "NVIDIA HGX B200 data sheet: 36 PFLOPS for eight, with sparsity",
        ),
        GPU("h200-141gb", 143_771 * _MIB, 989e12, _MODAL, "NVIDIA H200 data sheet, half of sparse"),
        GPU(
            "h100-80gb", 81_559 * _MIB, 989e12, _MODAL, "NVIDIA H100 SXM data sheet, half of sparse"
        ),
        GPU("a100-80gb", 81_920 * _MIB, 312e12, _MODAL, "NVIDIA A100 data sheet"),
        GPU("a100-40gb", 40_960 * _MIB, 312e12, _MODAL, "NVIDIA A100 data sheet"),
        GPU("l40s-48gb", 46_068 * _MIB, 362e12, _MODAL, "NVIDIA L40S data sheet"),
        GPU(
            "v100-32gb",
            32_768 * _MIB,
            125e12,
            "nvidia-smi of a V100-SXM2, as printed in public reports; older drivers: 32510 MiB",
            "NVIDIA V100 SXM2 data sheet",
        ),
        GPU(
            "rtx4090-24gb",
            24_564 * _MIB,
            165e12,
            "nvidia-smi, driver 550, as printed in RLinf/RLinf issue 255",
            "NVIDIA Ada architecture white paper, fp16 with sums in fp32",
        ),
        GPU(
            "rtx3090-24gb",
            24_576 * _MIB,
            71e12,
            "nvidia-smi, driver 595, as printed in noonghunna/club-3090 issue 1128",
            "NVIDIA GA102 architecture white paper, fp16 with sums in fp32",
        ),
        GPU("t4-16gb", 15_360 * _MIB, 65e12, _MODAL, "NVIDIA T4 data sheet"),
    )
}


def gpu(name: str) -> GPU:
    """The GPU of that name. Raises InputError, nearest name first, for any other."""
    if name not in GPUS:
        raise unknown_name("--gpu", name, GPUS)
    return GPUS[name]
