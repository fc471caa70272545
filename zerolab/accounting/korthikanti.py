"""Activation bytes of one transformer layer, in the six forms of Korthikanti et al.

Reducing Activation Recomputation in Large Transformer Models, arXiv 2205.05198, Table 2. The layer
is GPT-3's (LayerNorm, GELU, feed-forward four times as wide, dropout), in 16 bits, with attention
that stores its scores. For other layers, and for attention that does not, see `activations`.

All take: s sequence, b micro-batch, h hidden, a heads, t tensor-parallel ranks.
"""

from typing import Literal

Form = Literal[
    "none",
    "tensor",
    "tensor+sequence",
    "tensor+selective",
    "tensor+sequence+selective",
    "full_recompute",
]


def layer_bytes(form: Form, s: int, b: int, h: int, a: int, t: int = 1) -> float:
    """Bytes that one layer keeps for backward on each rank."""
    scores = 5 * a * s / h  # softmax's output, its dropout mask, and the dropout's output
    match form:
        case "none":
            factor = 34 + scores
        case "tensor":
            factor = 10 + 24 / t + scores / t
        case "tensor+sequence":
            factor = (34 + scores) / t
        case "tensor+selective":
            factor = 10 + 24 / t
        case "tensor+sequence+selective":
            factor = 34 / t
        case "full_recompute":
            factor = 2.0
    return s * b * h * factor
