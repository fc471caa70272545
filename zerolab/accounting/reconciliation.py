"""What public calculators print, rebuilt from our own functions, with their wrong terms named.

Four set-ups were given to each tool. Where a tool's figure equals ours under some policy, the
policy is the answer; where it does not, the term that differs stands in the code below and in
`differs`.
All functions return bytes on one GPU, by part.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from zerolab.accounting.activations import Batch, Keeping, activations, block
from zerolab.accounting.catalogue import model
from zerolab.accounting.conventions import CONVENTIONS, megatron_distributed_optimizer
from zerolab.accounting.estimators import deepspeed_zero2, deepspeed_zero3
from zerolab.accounting.korthikanti import layer_bytes
from zerolab.accounting.models import Shape

Parts = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One set-up; micro-batch 1, no recomputation, mixed precision with fp32 gradients."""

    shape: Shape
    strategy: str
    ranks: int  # data-parallel
    sequence: int
    tensor_parallel: int = 1
    parameters: int | None = None  # where a tool takes a bare count

    @property
    def batch(self) -> Batch:
        return Batch(size=1, sequence=self.sequence, tensor_parallel=self.tensor_parallel)

    def states(self, parameters: float, gradient: int = 4) -> Parts:
        """2 + gradient + 12 bytes a parameter, sharded as the strategy has it, after TP."""
        held = parameters / self.tensor_parallel
        sharded = held / self.ranks
        return {
            "parameters": 2 * (sharded if self.strategy == "zero3" else held),
            "gradients": gradient * (sharded if self.strategy in ("zero2", "zero3") else held),
            "optimizer": 12 * sharded,
        }


_LLAMA_7B, _LLAMA_70B = model("llama-2-7b"), model("llama-2-70b")

CASES = {
    "a": Case(shape=_LLAMA_7B, strategy="zero3", ranks=8, sequence=4096, parameters=7_000_000_000),
    "b": Case(shape=_LLAMA_7B, strategy="zero1", ranks=8, sequence=4096),
    "c": Case(
        shape=model("gpt-3-175b"), strategy="zero1", ranks=8, sequence=2048, tensor_parallel=8
    ),
    "d": Case(shape=_LLAMA_70B, strategy="zero3", ranks=64, sequence=4096),
}


@dataclass(frozen=True)
class Tool:
    """A public calculator: how it arrives at its figures, and what is wrong with them."""

    parts: Callable[[Case], Parts]
    differs: str


def _count(case: Case) -> int:
    return case.parameters or case.shape.parameters


def _accelerate(case: Case) -> Parts:
    # Its GPT class leaves the head untied.
    parameters = case.parameters or replace(case.shape, tied=False).parameters
    return {"total": CONVENTIONS["accelerate"].bytes * parameters}


def _deepspeed(case: Case) -> Parts:
    if case.strategy == "zero3":
        largest = case.shape.vocabulary * case.shape.hidden
        return {"total": deepspeed_zero3(_count(case), largest, case.ranks)}
    return {"total": deepspeed_zero2(_count(case), case.ranks)}  # it has no stage 1


def _eleuther(case: Case) -> Parts:
    shape, layers, hidden = case.shape, case.shape.layers, case.shape.hidden
    attention = 2 * (1 + shape.kv_heads / shape.heads) * hidden**2
    feed_forward = (3 if shape.gated else 2) * hidden * shape.feed_forward
    vocabulary = shape.vocabulary if shape.gated else 51_200  # GPT's, padded
    outside = (2 * vocabulary + case.sequence) * hidden
    parameters = layers * (attention + feed_forward + 13 * hidden) + outside
    # Gradients below stage 2: not divided by tensor parallelism.
    whole = {} if case.strategy == "zero3" else {"gradients": 4 * parameters}
    # Activations: plain attention, and not divided by tensor parallelism.
    kept = layers * layer_bytes("none", case.sequence, 1, hidden, shape.heads)
    return {**case.states(parameters), **whole, "activations": kept}


def _megatron(case: Case) -> Parts:
    shape, batch = case.shape, case.batch
    held = shape.parameters / case.tensor_parallel
    s, h, t = batch.sequence, shape.hidden, case.tensor_parallel
    vocabulary = shape.vocabulary if shape.gated else 51_200  # padded for TP
    ids_and_dropout = 8 * s + s * h
    # Without sequence parallelism: a layer with f = 4h, 16-bit logits, and 5 % on top.
    plain = shape.layers * layer_bytes("tensor+selective", s, 1, h, shape.heads, t)
    without = 1.05 * (plain + ids_and_dropout + 2 * (s * vocabulary / t + s * h))
    # With it: 4 bytes a feed-forward element, where SwiGLU keeps 6; fp32 logits.
    each = s * (18 * h + 4 * shape.feed_forward)
    with_ = (shape.layers * each + ids_and_dropout + 4 * s * (h + vocabulary)) / t
    return {
        "parameters and optimizer": held * megatron_distributed_optimizer(2, 4, case.ranks),
        "activations": without,
        "activations, sequence parallel": with_,
    }


def _llm_analysis(case: Case) -> Parts:
    # The head is left out, and norms are not counted. Llama 7B's feed-forward is rounded to 8/3 h.
    shape = case.shape
    feed_forward = 8 * shape.hidden // 3 if shape is _LLAMA_7B else shape.feed_forward
    matrices = replace(shape, norm="none", feed_forward=feed_forward, feed_forward_bias=False)
    matrices = replace(matrices, query_key_value_bias=False, attention_output_bias=False)
    return case.states(matrices.layers * matrices.block + shape.vocabulary * shape.hidden)


def _simumax(case: Case) -> Parts:
    shape, batch = case.shape, case.batch
    parameters = replace(shape, tied=False).parameters
    parts = case.states(parameters)
    if shape.gated:
        # The row sums of flash attention count 2 bytes, which are 4.
        rows = 2 * batch.tokens * shape.heads * shape.layers
        parts["activations"] = sum(activations(shape, batch, Keeping()).values()) - rows
        # 16-bit logits beside what is kept; gathered blocks are left out.
        parts["total"] = sum(parts.values()) + 2 * batch.tokens * shape.vocabulary
    return parts


def _xtuner(case: Case) -> Parts:
    if case.tensor_parallel > 1 or case.strategy == "zero3":
        return {}  # see `differs`
    # A 16-bit gradient whole, and its fp32 copy sharded.
    parts = case.states(_count(case), gradient=2)
    return {**parts, "gradients": parts["gradients"] + 4 * case.shape.parameters / case.ranks}


def _playbook(case: Case) -> Parts:
    # f = 4h without a gate, all heads with keys of their own, a tied head, and no TP.
    shape, hidden = case.shape, case.shape.hidden
    rows = shape.vocabulary + case.sequence
    parameters = shape.layers * (12 * hidden**2 + 13 * hidden) + rows * hidden
    return replace(case, tensor_parallel=1).states(parameters, gradient=2)


TOOLS = {
    "accelerate estimate-memory": Tool(
        _accelerate, "takes the largest part instead of the sum; divides by nothing"
    ),
    "DeepSpeed estimators": Tool(
        _deepspeed, "its largest layer is the embedding, not the gathered block with the next one"
    ),
    "EleutherAI calculator": Tool(
        _eleuther, "gradients and activations are not divided by TP; attention stores its scores"
    ),
    "Megatron theoretical memory": Tool(
        _megatron, "SwiGLU keeps 6 bytes a feed-forward element, not 4; 5 % are added"
    ),
    "llm-analysis": Tool(_llm_analysis, "the output head is left out"),
    "SimuMax": Tool(_simumax, "GELU counts as SwiGLU; gathered blocks are left out"),
    "xtuner": Tool(
        _xtuner, "under TP a dense feed-forward's optimizer state is divided by all GPUs"
    ),
    "Ultra-Scale Playbook widget": Tool(
        _playbook, "nothing is divided by TP; no gate, feed-forward width or grouped queries"
    ),
}


def autograd(case: Case, keeping: Keeping, sequence_parallel: bool = False) -> int:
    """What the tools should have printed for activations: the tensors that autograd keeps.

    For the tensor-parallel set-up, of its blocks alone.
    """
    batch = replace(case.batch, sequence_parallel=sequence_parallel)
    if case.tensor_parallel > 1:
        return case.shape.layers * sum(block(case.shape, batch, keeping).values())
    return sum(activations(case.shape, batch, keeping).values())
