"""Bytes a parameter as others count them, for the same run: Adam in mixed precision, one device.

Each convention is a sum of terms (one takes the largest instead). Where it is one of our policies
the terms are that policy's; where it is not, `why` says what is different.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Convention:
    """Bytes for one parameter, before any sharding."""

    sources: tuple[str, ...]
    terms: dict[str, int]
    why: str
    combine: Literal["sum", "largest"] = "sum"
    policy: str | None = None  # the precision policy of ours that counts the same

    @property
    def bytes(self) -> int:
        return (sum if self.combine == "sum" else max)(self.terms.values())


CONVENTIONS = {
    "accelerate": Convention(
        sources=("accelerate estimate-memory, bf16",),
        # A 4-byte parameter, gradients in both precisions, two 4-byte moments, the step with them.
        terms={"parameters": 4, "gradients": 6, "optimizer": 8, "step": 8},
        combine="largest",
        why="prints the largest of the parts, although they are alive together",
    ),
    "scaling-book": Convention(
        sources=("JAX scaling book",),
        terms={"parameters": 2, "moments": 8},
        why="no master copy, and gradients are not counted",
    ),
    "no-master": Convention(
        sources=("the usual one-page summary",),
        terms={"parameters": 2, "gradients": 2, "moments": 8},
        why="no fp32 master copy: the optimizer updates the 16-bit parameters",
        policy="no_master",
    ),
    "bf16-moments": Convention(
        sources=("CS336, lecture 8",),
        terms={"parameters": 2, "gradients": 2, "master": 4, "moments": 4},
        why="moments in bf16, with a master copy",
    ),
    "zero": Convention(
        sources=("ZeRO, arXiv 1910.02054", "Ultra-Scale Playbook"),
        terms={"parameters": 2, "gradients": 2, "master": 4, "moments": 8},
        why="the gradient is used and released in 16 bits",
        policy="mixed",
    ),
    "megatron-fp32": Convention(
        sources=("Megatron-LM, fp32 parameters and gradients",),
        terms={"parameters": 4, "gradients": 4, "moments": 8},
        why="everything in fp32: the parameter is its own master copy",
        policy="fp32",
    ),
    "fp32-gradients": Convention(
        sources=(
            "Machine Learning Engineering book",
            "EleutherAI calculator",
            "Megatron-LM, bf16 parameters and fp32 gradients",
        ),
        terms={"parameters": 2, "gradients": 4, "master": 4, "moments": 8},
        why="gradients are accumulated in fp32",
        policy="mixed_fp32_grads",
    ),
    "two-gradients": Convention(
        sources=(
            "Ultra-Scale Playbook with fp32 gradient accumulation",
            "Megatron-LM, fp16 parameters and gradients",
            "DeepSpeed's ZeRO-2 estimator",
        ),
        terms={"parameters": 2, "gradients": 2, "fp32 gradients": 4, "master": 4, "moments": 8},
        why="a 16-bit gradient and its fp32 copy are alive at once",
    ),
}


# Megatron-LM's distributed optimizer is ZeRO-1: (bytes of parameter, of gradient) -> bytes that are
# whole on each rank, bytes that are sharded. With fp16 gradients the fp32 copy counts as sharded.
MEGATRON_WHOLE_AND_SHARDED = {(2, 2): (4, 16), (2, 4): (6, 12), (4, 4): (8, 8)}


def megatron_distributed_optimizer(parameter: int, gradient: int, ranks: int) -> float:
    """Bytes a parameter on each of `ranks` ranks. Source: Megatron-LM, docs/dist_optimizer."""
    whole, sharded = MEGATRON_WHOLE_AND_SHARDED[parameter, gradient]
    return whole + sharded / ranks
