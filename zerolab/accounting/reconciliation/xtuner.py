"""xtuner's calculator: parts for ZeRO-1, three moments for ZeRO-3.

Its ZeRO-3 is FSDP in mixed precision: shards in fp32, units gathered in 16 bits.
Source: InternLM/xtuner, xtuner/tools/llm_calc/llm_calculator.py.
"""

from zerolab.accounting.activations import FP32, block
from zerolab.accounting.precision import PRECISIONS
from zerolab.accounting.reconciliation.case import (
    EVERYTHING,
    FUSED,
    ROWS,
    Case,
    Cell,
    Parts,
    states_of,
)


def xtuner(case: Case) -> dict[str, Cell]:
    return _moments(case) if case.strategy == "zero3" else _parts(case)


def _parts(case: Case) -> dict[str, Cell]:
    shape, t = case.shape, case.tensor_parallel
    # Every feed-forward has three matrices, and no head is tied.
    matrix = shape.layers * shape.hidden * shape.feed_forward
    counted = shape.layers * shape.block + 2 * shape.vocabulary * shape.hidden
    counted += 0 if shape.gated else matrix
    cells = states_of(case, "mixed", counted, "a third matrix, an untied head")
    cells["activations"] = _activations(case)
    copy = {"an fp32 copy of the gradient's shard": FP32 * counted / (t * case.ranks)}
    if t == 1:
        cells["gradients"] = cells["gradients"].plus(copy)
        return {**cells, "total": Cell.total(EVERYTHING, *cells.values())}
    # A dense feed-forward is sharded as if it were experts: over all GPUs, after TP.
    each = PRECISIONS["mixed"].optimizer + FP32
    gpus = t * case.ranks
    wrong = each * 3 * matrix / t * (1 / gpus - 1 / case.ranks)
    term = f"the feed-forward's optimizer state by {gpus}, not {case.ranks}"
    total = Cell.total(EVERYTHING, *cells.values()).plus({**copy, term: wrong})
    # Under TP it was not asked for the optimizer alone.
    return {
        **{part: cells[part] for part in ("parameters", "gradients", "activations")},
        "total": total,
    }


def _moments(case: Case) -> dict[str, Cell]:
    policy = "fp32 shards, 16-bit units"
    states = {part: Cell("fp32", size) for part, size in case.states("fp32").items()}
    static, gradients = (states["parameters"], states["optimizer"]), states["gradients"]
    forward = (*static, Cell("the last block, the head", case.gathered(-2, -1)), _activations(case))
    # The first block and the embedding, and the second block's gradient on its way.
    units = Cell("units", case.gathered(1, 0, 2))
    ours = sum(block(case.shape, case.batch(), case.keeping).values())
    one = Cell(FUSED, ours, _block_terms(case, sequence_parallel=False))
    return {
        "end of forward": Cell.total(policy, *forward),
        "end of backward": Cell.total(policy, *static, gradients, units, one),
        "end of the second forward": Cell.total(policy, *forward, gradients),
    }


def _activations(case: Case) -> Cell:
    """Under TP with sequence parallelism, the only form it knows."""
    shape, t = case.shape, case.tensor_parallel
    ours = case.kept(sequence_parallel=t > 1)
    outside = 2 * case.logits(2) + 4 * case.sequence * shape.hidden / t
    each = _block_terms(case, sequence_parallel=t > 1)
    terms = {name: shape.layers * size for name, size in each.items()}
    terms["outside the blocks"] = outside - ours["embedding"] - ours["output"]
    return Cell(FUSED, sum(ours.values()), terms)


def _block_terms(case: Case, sequence_parallel: bool) -> Parts:
    shape = case.shape
    h, f = shape.hidden, shape.feed_forward
    row = case.sequence / case.tensor_parallel
    terms = {
        "queries and keys before their rotation, too": (
            2 * row * (shape.query_width + shape.kv_width)
        ),
        "SwiGLU's input once more, h wide": 2 * row * h,
        "SwiGLU's product h wide, not f": 2 * row * (h - f),
        ROWS: 2 * row * shape.heads - case.row_statistics(sequence_parallel) / shape.layers,
    }
    if not shape.gated:
        terms |= {"a gate that GPT lacks": 2 * row * f, "no dropout": -2 * row * h}
    return terms
