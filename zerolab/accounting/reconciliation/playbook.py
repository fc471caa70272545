"""The Ultra-Scale Playbook's memory widget, without sequence parallelism.

Source: nanotron, The Ultra-Scale Playbook, src/memory.js.
"""

from zerolab.accounting.korthikanti import layer_bytes
from zerolab.accounting.reconciliation.case import FUSED, ROWS, Case, Cell, states_of


def playbook(case: Case) -> dict[str, Cell]:
    shape, s, h, t = case.shape, case.sequence, case.shape.hidden, case.tensor_parallel
    # f = 4h without a gate, all heads with keys of their own, a tied head.
    counted = shape.layers * (12 * h**2 + 13 * h) + (shape.vocabulary + s + 2) * h
    states = states_of(case, "mixed", counted, "GPT's matrices, whatever the shape")
    cells = {
        part: cell.plus({"not divided by TP": (t - 1) * cell.printed})
        for part, cell in states.items()
    }
    selective = _activations(case)
    scores = shape.layers * (
        layer_bytes("tensor", s, 1, h, shape.heads, t)
        - layer_bytes("tensor+selective", s, 1, h, shape.heads, t)
    )
    cells["activations"] = selective.plus({"attention keeps its scores": scores})
    cells["activations, selective"] = selective
    return cells


def _activations(case: Case) -> Cell:
    shape, ours, batch = case.shape, case.kept(), case.batch()
    masks = (2 * shape.layers + 1) * batch.tokens * shape.hidden
    # The final norm's input and the head's, and the logits in fp32.
    outside = 4 * batch.tokens * shape.hidden + case.logits(4)
    mask = 0 if shape.gated else batch.tokens * shape.hidden  # of the embedding: GPT has it
    others = 2 * (batch.inside(shape.query_width) - batch.inside(shape.kv_width))
    return Cell(
        FUSED,
        sum(ours.values()),
        {
            "SwiGLU keeps a fourth tensor": (
                shape.layers * batch.inside(shape.feed_forward) * shape.gated
            ),
            "dropout masks that Llama lacks": masks * shape.gated,
            "keys and values of every head": shape.layers * others,
            "logits not divided by TP": (case.tensor_parallel - 1) * case.logits(4),
            "ids and labels left out": outside + mask - ours["embedding"] - ours["output"],
            ROWS: -case.row_statistics(),
        },
    )
