"""What tensor parallelism leaves of each unit on one rank.

Matrices and the vectors that go with their cut side are divided; norms, and the biases added after
a cut product is summed, are on every rank. Source: Shoeybi et al., arXiv 1909.08053, section 3.
"""

from zerolab.accounting.errors import InputError
from zerolab.accounting.models import Shape


def splits(shape: Shape, ranks: int) -> bool:
    """Whether that many ranks can share a model: each has as many heads, key-value heads too."""
    return shape.heads % ranks == 0 and shape.kv_heads % ranks == 0


def check_splits(option: str, shape: Shape, ranks: int) -> None:
    """Raise InputError where that many ranks cannot share the model."""
    if not splits(shape, ranks):
        heads = f"{shape.heads} heads and {shape.kv_heads} key-value heads"
        raise InputError(option, ranks, f"a number that divides the {heads}")


def unit_sizes(shape: Shape, ranks: int) -> list[int]:
    """Elements of each unit on one of `ranks` tensor-parallel ranks, the fullest.

    `Shape.unit_sizes` for one rank.
    """
    whole = replicated(shape)
    return [
        kept + -(-(size - kept) // ranks)
        for size, kept in zip(shape.unit_sizes, whole, strict=True)
    ]


def replicated(shape: Shape) -> list[int]:
    """Elements of each unit that every rank holds."""
    embedding = shape.positions * shape.hidden + shape.embedding_norm * shape.one_norm
    summed = shape.attention_output_bias + shape.feed_forward_bias * shape.experts
    block = shape.block_norms * shape.one_norm + summed * shape.hidden
    return [embedding, *[block] * shape.layers, shape.final_norm * shape.one_norm]
