"""DeepSpeed's estimators for ZeRO-2 and ZeRO-3; there is none for ZeRO-1, nor for TP.

Source: as in `zerolab.accounting.estimators`, which the printed figures equal.
"""

from dataclasses import replace

from zerolab.accounting.reconciliation.case import Case, Cell


def deepspeed(case: Case) -> dict[str, Cell]:
    if case.tensor_parallel > 1:
        return {}
    states = sum(case.states("mixed_fp32_grads", case.count).values())
    if case.strategy == "zero3":
        blocks = case.gathered(1, 2)  # the one that computes, and the next
        embedding = 4 * case.shape.vocabulary * case.shape.hidden
        wrong = {"the embedding and its gradient, not two blocks": embedding - blocks}
        return {"total": Cell("mixed_fp32_grads, two blocks gathered", states + blocks, wrong)}
    zero2 = sum(replace(case, strategy="zero2").states("mixed_fp32_grads", case.count).values())
    return {
        "total": Cell(
            "mixed_fp32_grads",
            states,
            {
                "gradients sharded, as by ZeRO-2": zero2 - states,
                "a 16-bit gradient beside the fp32 one": 2 * case.count / case.ranks,
            },
        )
    }
