"""llm-analysis: parts, and a peak in which gradients and activations never meet.

Source: cli99/llm-analysis, llm_analysis/analysis.py.
"""

from zerolab.accounting.catalogue import model
from zerolab.accounting.reconciliation.case import EVERYTHING, FUSED, ROWS, Case, Cell, states_of


def llm_analysis(case: Case) -> dict[str, Cell]:
    shape = case.shape
    # Its own Llama 2 7B has a plain feed-forward of 4h, which has nearly as many parameters.
    plain = not shape.gated or shape is model("llama-2-7b")
    width = 4 * shape.hidden if plain else shape.feed_forward
    attention = 2 * shape.hidden * (shape.query_width + shape.kv_width)
    block = attention + (2 if plain else 3) * shape.hidden * width + 2 * shape.hidden
    counted = shape.layers * block + (shape.vocabulary + 1) * shape.hidden
    cells = states_of(case, "mixed_fp32_grads", counted, "no output head, its own feed-forward")
    cells["activations"] = _activations(case, width)
    smaller = min(cells["gradients"].printed, cells["activations"].printed)
    cells["peak"] = Cell.total(EVERYTHING, *cells.values()).plus(
        {
            "gradients and activations never meet": -smaller,
            "two blocks more": 4 * block / case.tensor_parallel,
        }
    )
    return cells


def _activations(case: Case, width: int) -> Cell:
    """Under TP with sequence parallelism, which is its default."""
    shape, t = case.shape, case.tensor_parallel
    sequence_parallel = t > 1
    ours = case.kept(sequence_parallel)
    rows = shape.layers * case.sequence / t
    tensors = 3 if shape.gated else 2
    outside = case.logits(2) + 6 * case.sequence * shape.hidden / t
    return Cell(
        FUSED,
        sum(ours.values()),
        {
            "norms' inputs in fp32": 4 * rows * shape.hidden,
            "attention's output three times": 4 * rows * shape.hidden,
            "keys and values of every head": 4 * rows * (shape.query_width - shape.kv_width),
            "two tensors of its own feed-forward's width": (
                rows * (2 * 2 * width - 2 * tensors * shape.feed_forward)
            ),
            # Attention's mask always, the feed-forward's never.
            "dropout masks": rows * shape.hidden * (1 if shape.gated else -1),
            ROWS: 8 * rows * shape.heads - case.row_statistics(sequence_parallel),
            "outside the blocks: 16-bit logits": outside - ours["embedding"] - ours["output"],
        },
    )
