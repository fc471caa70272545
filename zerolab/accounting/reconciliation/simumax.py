"""SimuMax: of all tools the closest to what autograd keeps.

Source: MooreThreads/SimuMax, simumax/core/transformer/dense_module.py.
"""

from dataclasses import replace

from zerolab.accounting.activations import FP32
from zerolab.accounting.reconciliation.case import FUSED, ROWS, Case, Cell, states_of


def simumax(case: Case) -> dict[str, Cell]:
    counted = replace(case.shape, tied=False).parameters
    cells = states_of(case, "mixed_fp32_grads", counted, "the head untied")
    cells["activations"] = _activations(case)
    if case.tensor_parallel > 1:
        cells["activations, sequence parallel"] = _activations(case, sequence_parallel=True)
        return cells
    gathered = case.gathered(-1, -2)  # the head, and the last block: backward needs it first
    logits = Cell(
        "logits and their fp32 copy, units gathered",
        case.logits(2 + FP32) + gathered,
        {"no fp32 copy of the logits": -case.logits(FP32), "gathered units left out": -gathered},
    )
    cells["total"] = Cell.total("end of a later forward", *cells.values(), logits)
    return cells


def _activations(case: Case, sequence_parallel: bool = False) -> Cell:
    shape, batch = case.shape, case.batch(sequence_parallel)
    ours = sum(case.kept(sequence_parallel).values())
    masks = (2 * shape.layers + 1) * batch.outside(batch.tokens * shape.hidden)
    # Two bytes of the softmax, which are four; nothing of the norms.
    rows = 2 * shape.layers * batch.tokens * shape.heads / case.tensor_parallel
    terms = {ROWS: rows - case.row_statistics(sequence_parallel)}
    if not shape.gated:
        terms["GELU keeps three tensors, as SwiGLU"] = (
            2 * shape.layers * batch.inside(shape.feed_forward)
        )
        terms["no dropout"] = -masks
    return Cell(FUSED, ours, terms)
