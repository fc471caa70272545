"""The set-ups that the tools were given, what a run of them takes, and one printed figure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zerolab.accounting.activations import Batch, Keeping, Lines, activations, block
from zerolab.accounting.catalogue import model
from zerolab.accounting.models import Shape
from zerolab.accounting.precision import precision_policy
from zerolab.accounting.strategies import sharding

Parts = dict[str, float]

FUSED = "flash attention, everything fused"  # the name of `Case.keeping`
EVERYTHING = "states and activations at once"  # the forward of a second micro-batch
ROWS = "statistics of norms and of the softmax"  # as a term: left out, or in other bytes


@dataclass(frozen=True)
class Cell:
    """One figure that a tool prints.

    policy: the name of what `ours` counts.
    ours: what a run takes, by the functions of this package; bytes.
    terms: what the tool counts otherwise, by name; bytes, negative where it leaves something out.
    """

    policy: str
    ours: float
    terms: Mapping[str, float] = field(default_factory=dict)

    @property
    def printed(self) -> float:
        return self.ours + sum(self.terms.values())

    def plus(self, terms: Mapping[str, float]) -> "Cell":
        """The same figure with more that is wrong."""
        return replace(self, terms=_added(self.terms, terms))

    @classmethod
    def total(cls, policy: str, *cells: "Cell") -> "Cell":
        """The sum of several figures, and of their terms."""
        terms: Parts = {}
        for cell in cells:
            terms = _added(terms, cell.terms)
        return cls(policy, sum(cell.ours for cell in cells), terms)


def _added(some: Mapping[str, float], more: Mapping[str, float]) -> Parts:
    return {name: some.get(name, 0) + more.get(name, 0) for name in {**some, **more}}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One set-up; micro-batch 1, no recomputation."""

    shape: Shape
    strategy: str
    ranks: int  # data-parallel
    sequence: int
    tensor_parallel: int = 1
    parameters: int | None = None  # where a tool takes a bare count

    @property
    def count(self) -> int:
        return self.parameters or self.shape.parameters

    @property
    def keeping(self) -> Keeping:
        """What an implementation of today keeps; GPT-3 was trained with dropout."""
        return Keeping(dropout=not self.shape.gated)

    def batch(self, sequence_parallel: bool = False) -> Batch:
        return Batch(
            size=1,
            sequence=self.sequence,
            tensor_parallel=self.tensor_parallel,
            sequence_parallel=sequence_parallel,
        )

    def states(self, precision: str, parameters: float | None = None) -> Parts:
        """Bytes of each state of so many parameters, ours where None; shards are not rounded up."""
        policy, kept = precision_policy(precision), sharding(self.strategy)
        held = (parameters or self.shape.parameters) / self.tensor_parallel
        elements = {"whole": held, "shard": held / self.ranks}
        return {
            "parameters": policy.parameter * elements[kept.parameters],
            "gradients": policy.gradient * elements[kept.gradients],
            "optimizer": policy.optimizer * elements[kept.optimizer],
        }

    def kept(self, sequence_parallel: bool = False) -> Lines:
        """Activations: what autograd keeps of the embedding, the blocks and the output."""
        return activations(self.shape, self.batch(sequence_parallel), self.keeping)

    def row_statistics(self, sequence_parallel: bool = False) -> int:
        """Of the activations, what all blocks keep in fp32 a row: of the norms, of the softmax."""
        batch = self.batch(sequence_parallel)
        lines = block(self.shape, batch, self.keeping)
        inputs = 2 * batch.outside(batch.element * batch.tokens * self.shape.hidden)
        norms = lines["attention norm"] + lines["feed-forward norm"] - inputs
        return self.shape.layers * (norms + lines["attention weights"])

    def gathered(self, *units: int) -> int:
        """Bytes of units that ZeRO-3 gathers in 16 bits; 0 where parameters are whole."""
        if sharding(self.strategy).parameters == "whole":
            return 0
        return 2 * sum(self.shape.unit_sizes[unit] for unit in units)

    def logits(self, element: int) -> float:
        """Bytes of one tensor of logits."""
        return element * self.sequence * self.shape.vocabulary / self.tensor_parallel


_LLAMA_7B = model("llama-2-7b")

CASES = {
    "a": Case(shape=_LLAMA_7B, strategy="zero3", ranks=8, sequence=4096, parameters=7_000_000_000),
    "b": Case(shape=_LLAMA_7B, strategy="zero1", ranks=8, sequence=4096),
    "c": Case(
        shape=model("gpt-3-175b"), strategy="zero1", ranks=8, sequence=2048, tensor_parallel=8
    ),
    "d": Case(shape=model("llama-2-70b"), strategy="zero3", ranks=64, sequence=4096),
}


def states_of(case: Case, precision: str, parameters: float, differs: str) -> dict[str, Cell]:
    """The states of a tool that counts `parameters`; `differs`: why these are not the shape's."""
    ours, theirs = case.states(precision), case.states(precision, parameters)
    return {
        part: Cell(precision, size, {differs: theirs[part] - size}) for part, size in ours.items()
    }


def autograd(case: Case, keeping: Keeping, sequence_parallel: bool = False) -> int:
    """What the tools should have printed for activations: the tensors that autograd keeps.

    For the tensor-parallel set-up, of its blocks alone.
    """
    batch = case.batch(sequence_parallel)
    if case.tensor_parallel > 1:
        return case.shape.layers * sum(block(case.shape, batch, keeping).values())
    return sum(activations(case.shape, batch, keeping).values())
