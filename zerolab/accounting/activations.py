"""Activations: the tensors that autograd keeps from forward for backward, line by line.

Public calculators differ by a factor of 13 here, because "activations" is no number until the
policy of what is kept is named. `Keeping` names it; `block`, `embedding` and `output` list the
tensors. For models built like GPT-2 or Llama the lists equal, to the byte, what autograd saves.

Symbols: e bytes an element, t = batch × sequence tokens, h hidden, q query width, f feed-forward
width, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from zerolab.accounting.errors import InputError, unknown_name
from zerolab.accounting.models import Shape
from zerolab.accounting.quantities import check_whole

Lines = dict[str, int]  # what is kept -> bytes

INDEX = 8  # bytes: torch's token ids and labels are int64
FP32 = 4


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """What an implementation leaves for autograd to keep.

    attention: "flash" keeps queries, keys, values, output and one fp32 number a row of scores;
        "plain" keeps the softmax's output too; "eager" keeps it in fp32 and once more in 16 bits,
        as Hugging Face's Llama does.
    norm: "fused" keeps an RMSNorm's input; "eager" an fp32 copy and the normalised input as well.
        LayerNorm is one fused operation everywhere.
    activation: "fused" recomputes the activation function in backward (SwiGLU, GELU in one kernel);
        "eager" keeps every factor of it.
    loss: "eager" keeps fp32 log-probabilities; "fused" the logits as they are; "chunked" computes
        head and loss piece by piece and keeps neither.
    recompute: "selective" recomputes the core of attention, "full" each block from its input.
    repeated_kv: grouped keys and values are copied for every query head before attention.
    dropout: the masks, one byte an element.
    """

    attention: Literal["flash", "plain", "eager"] = "flash"
    norm: Literal["fused", "eager"] = "fused"
    activation: Literal["fused", "eager"] = "fused"
    loss: Literal["eager", "fused", "chunked"] = "eager"
    recompute: Literal["none", "selective", "full"] = "none"
    repeated_kv: bool = False
    dropout: bool = False

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise unknown_name(f"--{name}", getattr(self, name), choices)


# What each part of the policy can be: {"attention": ("flash", "plain", "eager"), …}
CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(kind) for name, kind in get_type_hints(Keeping).items() if kind is not bool
}
HUGGING_FACE = Keeping(norm="eager", activation="eager", repeated_kv=True)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one rank computes at once.

    element: bytes of an activation's element, 2 or 4.
    tensor_parallel: ranks that share each matrix; `sequence_parallel` shares the rest as well.
    """

    size: int
    sequence: int
    element: int = 2
    tensor_parallel: int = 1
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        check_whole("--batch", self.size, 1, 10**9)
        check_whole("--sequence", self.sequence, 1, 10**9)
        check_whole("--tensor-parallel", self.tensor_parallel, 1, 10**6)
        if self.element not in (2, 4):
            raise InputError("element", self.element, "2 or 4 bytes")

    @property
    def tokens(self) -> int:
        """In one micro-batch of one rank."""
        return self.size * self.sequence

    def inside(self, width: int) -> int:
        """Bytes of a token-wise tensor that tensor parallelism cuts."""
        return _divided(self.element * self.tokens * width, self.tensor_parallel)

    def outside(self, size: int) -> int:
        """Of `size` bytes between the cut matrices, what one rank holds."""
        return _divided(size, self.tensor_parallel) if self.sequence_parallel else size


def activations(shape: Shape, batch: Batch, keeping: Keeping) -> Lines:
    """Bytes kept from one forward: the embedding, all blocks, the output with the loss."""
    return {
        "embedding": sum(embedding(shape, batch, keeping).values()),
        "blocks": shape.layers * sum(block(shape, batch, keeping).values()),
        "output": sum(output(shape, batch, keeping).values()),
    }


def block(shape: Shape, batch: Batch, keeping: Keeping) -> Lines:
    """One transformer block, in the order of computation."""
    hidden = batch.element * batch.tokens * shape.hidden
    if keeping.recompute == "full":
        return {"block input": batch.outside(hidden)}
    lines = {"attention norm": batch.outside(_norm(shape, batch, keeping, shape.hidden))}
    lines["attention input"] = batch.outside(hidden)
    lines |= _attention(shape, batch, keeping)
    if shape.block_norms > 1:  # a parallel block has one norm and one input for both halves
        lines["feed-forward norm"] = batch.outside(_norm(shape, batch, keeping, shape.hidden))
        lines["feed-forward input"] = batch.outside(hidden)
    lines |= _feed_forward(shape, batch, keeping)
    if shape.block_norms > 2:  # norms on the way out, too
        lines["outer norms"] = 2 * batch.outside(_norm(shape, batch, keeping, shape.hidden))
    return lines


def _attention(shape: Shape, batch: Batch, keeping: Keeping) -> Lines:
    selective = keeping.recompute == "selective"
    repeated = keeping.repeated_kv and not selective  # the copy is part of what is recomputed
    kv_width = shape.query_width if repeated else shape.kv_width
    lines = {}
    if shape.query_key_norm != "none":
        by_head = shape.query_key_norm == "head"
        width, parts = shape.query_width + shape.kv_width, shape.heads + shape.kv_heads
        kept = _norm(shape, batch, keeping, width, parts if by_head else 2)
        lines["query and key norm"] = _divided(kept, batch.tensor_parallel)
    lines |= {
        "queries": batch.inside(shape.query_width),
        "keys": batch.inside(kv_width),
        "values": batch.inside(kv_width),
    }
    if not selective:
        rows = batch.tokens * shape.heads
        lines["attention weights"] = _divided(
            rows * _score_row(batch, keeping), batch.tensor_parallel
        )
    lines["attention output"] = batch.inside(shape.query_width)
    if keeping.dropout:
        lines["attention dropout"] = batch.outside(batch.tokens * shape.hidden)
    return lines


def _score_row(batch: Batch, keeping: Keeping) -> int:
    """Bytes kept for one row of one head's scores: a query against all keys."""
    if keeping.attention == "flash":
        return FP32  # the logarithm of the softmax's denominator
    element = batch.element
    kept = batch.sequence * element
    if keeping.attention == "eager" and element < FP32:
        kept += batch.sequence * FP32
    if keeping.dropout:
        kept += batch.sequence * (1 + element)  # the mask, and what it leaves
    return kept


def _feed_forward(shape: Shape, batch: Batch, keeping: Keeping) -> Lines:
    """What lies between the matrices; for a mixture of experts, of the experts that are active."""
    wide = batch.inside(shape.feed_forward) * shape.active_experts
    lines = {"feed-forward output's input": wide}
    if shape.gated:
        lines["gate"] = lines["up"] = wide
        if keeping.activation == "eager":
            lines["activated gate"] = wide
    elif not shape.relu:  # ReLU's backward needs its output only, which is there already
        lines["up"] = wide
        if keeping.activation == "eager":
            # 0.5x · (1 + tanh(…)): the tanh and both factors
            lines["parts of GELU"] = 3 * wide
    if keeping.dropout:
        lines["feed-forward dropout"] = batch.outside(batch.tokens * shape.hidden)
    return lines


def embedding(shape: Shape, batch: Batch, keeping: Keeping) -> Lines:
    """Before the first block. The ids are kept to know which rows get a gradient."""
    lines = {"token ids": INDEX * batch.tokens}
    if shape.positions:
        lines["position ids"] = INDEX * batch.sequence
    if shape.rotary:
        lines["cosines and sines"] = 2 * batch.element * batch.sequence * shape.head_size
    if shape.embedding_norm:
        lines["embedding norm"] = batch.outside(_norm(shape, batch, keeping, shape.hidden))
    if keeping.dropout:
        lines["embedding dropout"] = batch.outside(batch.tokens * shape.hidden)
    return lines


def output(shape: Shape, batch: Batch, keeping: Keeping) -> Lines:
    """The final norm, the head and the loss; the vocabulary is cut by tensor parallelism."""
    tokens, vocabulary = batch.tokens, shape.vocabulary
    lines = {}
    if shape.final_norm:
        lines["final norm"] = batch.outside(_norm(shape, batch, keeping, shape.hidden))
    lines["head input"] = batch.outside(batch.element * tokens * shape.hidden)
    lines["labels"] = INDEX * tokens
    match keeping.loss:
        case "eager":
            cut = _divided(FP32 * tokens * vocabulary, batch.tensor_parallel)
            # The sum of the labels' weights, one number.
            lines |= {"log-probabilities": cut, "weight of the loss": FP32}
        case "fused":
            lines |= {"logits": batch.inside(vocabulary), "row sums": FP32 * tokens}
    return lines


def _norm(shape: Shape, batch: Batch, keeping: Keeping, width: int, rows: int = 1) -> int:
    """Kept by a norm over `width` elements a token, in `rows` separate rows."""
    values, statistics = batch.tokens * width, batch.tokens * rows * FP32
    if shape.norm == "rms":
        if keeping.norm == "fused":
            return batch.element * values + statistics
        # In fp32, and normalised but before the weight.
        return FP32 * values + statistics + batch.element * values
    return batch.element * values + 2 * statistics  # mean and deviation


def _divided(size: int, ranks: int) -> int:
    return -(-size // ranks)
