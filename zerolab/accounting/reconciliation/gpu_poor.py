"""gpu_poor: full training with Adam on one GPU.

Source: RahulSChand/gpu_poor, src/App.js.
"""

from zerolab.accounting.reconciliation.case import EVERYTHING, FUSED, Case, Cell

CUDA = 650 * 2**20


def gpu_poor(case: Case) -> dict[str, Cell]:
    shape, count = case.shape, case.count
    sharded = sum(case.states("mixed_fp32_grads", count).values())
    # Every feed-forward has three matrices, every head keys of its own, and none is tied.
    block = shape.hidden * (4 * shape.hidden + 3 * shape.feed_forward)
    counted = case.parameters or shape.layers * block + 2 * shape.vocabulary * shape.hidden
    states = Cell(
        "mixed_fp32_grads",
        sharded,
        {
            "states divided by nothing": 18 * count - sharded,
            "gradient and moments in 16 bits, no master copy": (8 - 18) * count,
            "a third matrix, keys of every head, an untied head": 8 * (counted - count),
            "650 MiB for CUDA": CUDA,
        },
    )
    activations = _activations(case)
    return {"activations": activations, "total": Cell.total(EVERYTHING, states, activations)}


def _activations(case: Case) -> Cell:
    shape, ours, batch = case.shape, case.kept(), case.batch()
    wide = (3 if shape.gated else 2) * shape.layers * batch.inside(shape.feed_forward)
    rows = shape.layers * batch.tokens
    return Cell(
        FUSED,
        sum(ours.values()),
        {
            "attention keeps its scores, in 2 + 4 + 2 bytes": 8 * rows * batch.tokens * shape.heads,
            "six tensors as wide as the feed-forward": 6 * 2 * rows * shape.feed_forward - wide,
            "sixteen tensors as wide as the residual stream": (
                16 * 2 * rows * shape.hidden + 8 * rows - (ours["blocks"] - wide)
            ),
            "nothing outside the blocks": -ours["embedding"] - ours["output"],
        },
    )
