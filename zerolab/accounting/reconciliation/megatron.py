"""Megatron-LM's theoretical memory: its distributed optimizer (ZeRO-1), and activations.

Source: NVIDIA/Megatron-LM, megatron/training/theoretical_memory_usage.py.
"""

from zerolab.accounting.conventions import megatron_distributed_optimizer
from zerolab.accounting.korthikanti import layer_bytes
from zerolab.accounting.reconciliation.case import FUSED, ROWS, Case, Cell

PADDED = 51_200  # GPT-2's vocabulary under 8-way tensor parallelism


def megatron(case: Case) -> dict[str, Cell]:
    if case.strategy != "zero1":
        return {}
    each = megatron_distributed_optimizer(2, 4, case.ranks)
    held = case.shape.parameters / case.tensor_parallel
    return {
        "parameters and optimizer": Cell("mixed_fp32_grads", each * held),
        "activations": _activations(case),
        "activations, sequence parallel": _sequence_parallel(case),
    }


def _vocabulary(case: Case) -> int:
    return case.shape.vocabulary if case.shape.gated else PADDED


def _activations(case: Case) -> Cell:
    shape, ours = case.shape, case.kept()
    s, h, t = case.sequence, shape.hidden, case.tensor_parallel
    blocks = shape.layers * layer_bytes("tensor+selective", s, 1, h, shape.heads, t)
    # Ids and a dropout mask; the head's input and the logits.
    outside = 8 * s + s * h + 2 * s * (h + _vocabulary(case) / t)
    return Cell(
        FUSED,
        sum(ours.values()),
        {
            "every block is GPT's": blocks - ours["blocks"],
            "outside the blocks: 16-bit logits": outside - ours["embedding"] - ours["output"],
            "5 % on top": 0.05 * (blocks + outside),
        },
    )


def _sequence_parallel(case: Case) -> Cell:
    shape, ours = case.shape, case.kept(sequence_parallel=True)
    s, h, t = case.sequence, shape.hidden, case.tensor_parallel
    rows = shape.layers * s / t
    outside = (8 * s + s * h + 4 * s * (h + _vocabulary(case))) / t
    return Cell(
        FUSED,
        sum(ours.values()),
        {
            "SwiGLU at 4 bytes an element, not 6": -2 * rows * shape.feed_forward * shape.gated,
            "dropout masks that Llama lacks": 2 * rows * h * shape.gated,
            ROWS: -case.row_statistics(sequence_parallel=True),
            "outside the blocks": outside - ours["embedding"] - ours["output"],
        },
    )
