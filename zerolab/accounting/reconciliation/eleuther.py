"""EleutherAI's calc_transformer_mem: GPT-NeoX on DeepSpeed, plain attention.

Source: EleutherAI/cookbook, calc/calc_transformer_mem.py.
"""

from zerolab.accounting.korthikanti import layer_bytes
from zerolab.accounting.reconciliation.case import EVERYTHING, FUSED, Case, Cell, states_of

BUCKET, LIVE = 5 * 10**8, 10**9  # parameters: of DeepSpeed's all-gathers, most alive under ZeRO-3
PADDED = 51_200  # its default vocabulary: GPT-2's, padded


def eleuther(case: Case) -> dict[str, Cell]:
    cells = states_of(
        case, "mixed_fp32_grads", _parameters(case), "positions, norms' biases, an untied head"
    )
    if case.strategy in ("ddp", "zero1"):
        undivided = (case.tensor_parallel - 1) * cells["gradients"].printed
        cells["gradients"] = cells["gradients"].plus({"not divided by TP": undivided})
    cells["activations"] = _activations(case)
    live = 2 * LIVE if case.strategy == "zero3" else 0
    buffers = {"all-gather bucket": 2 * BUCKET, "most parameters alive": live}
    cells["total"] = Cell.total(EVERYTHING, *cells.values()).plus(buffers)
    return cells


def _parameters(case: Case) -> int:
    shape, hidden = case.shape, case.shape.hidden
    attention = 2 * (shape.query_width + shape.kv_width) * hidden
    feed_forward = (3 if shape.gated else 2) * hidden * shape.feed_forward
    vocabulary = shape.vocabulary if shape.gated else PADDED
    outside = (2 * vocabulary + case.sequence + 2) * hidden
    return shape.layers * (attention + feed_forward + 8 * hidden) + outside


def _activations(case: Case) -> Cell:
    shape, ours = case.shape, case.kept()
    s, h, a = case.sequence, shape.hidden, shape.heads
    plain = shape.layers * layer_bytes("none", s, 1, h, a)
    flash = shape.layers * layer_bytes("tensor+selective", s, 1, h, a)
    divided = shape.layers * layer_bytes("tensor+selective", s, 1, h, a, case.tensor_parallel)
    return Cell(
        FUSED,
        sum(ours.values()),
        {
            "attention keeps its scores": plain - flash,
            "not divided by TP": flash - divided,
            "every block is GPT's": divided - ours["blocks"],
            "nothing outside the blocks": -ours["embedding"] - ours["output"],
        },
    )
