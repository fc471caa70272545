"""accelerate estimate-memory, bf16: one total, for one device.

Source: huggingface/accelerate, src/accelerate/commands/estimate.py.
"""

from dataclasses import replace

from zerolab.accounting.conventions import CONVENTIONS
from zerolab.accounting.reconciliation.case import Case, Cell


def accelerate(case: Case) -> dict[str, Cell]:
    terms = CONVENTIONS["accelerate"].terms
    largest = CONVENTIONS["accelerate"].bytes
    added_up = terms["parameters"] + terms["gradients"] + terms["optimizer"]
    sharded = sum(case.states("mixed_fp32_grads", case.count).values())
    # Its GPT class leaves the head untied.
    counted = case.parameters or replace(case.shape, tied=False).parameters
    return {
        "total": Cell(
            "mixed_fp32_grads",
            sharded,
            {
                "divided by nothing": added_up * case.count - sharded,
                "the largest part, not the sum": (largest - added_up) * case.count,
                "the head untied": largest * (counted - case.count),
            },
        )
    }
