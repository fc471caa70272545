"""The calculators' controls: their names, labels and choices, and the set-up that they make up.

A notebook's widgets and the book's page build the same controls from `CONTROLS`. A name there is an
argument of `Controls`, too, and a key in the page's address.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from zerolab.accounting import (
    GPU,
    GPUS,
    LINKS,
    MODELS,
    PRECISIONS,
    Batch,
    InputError,
    Keeping,
    Link,
    Setup,
    gpu,
    link,
    model,
    parse_count,
    precision_policy,
)
from zerolab.accounting.activations import CHOICES
from zerolab.accounting.errors import unknown_name
from zerolab.accounting.quantities import MOST_RANKS, check_whole
from zerolab.accounting.tensor_parallel import check_splits
from zerolab.accounting.verdict import Choice
from zerolab.teaching.tables import NAMES

OWN = "own"  # the model menu's entry for a number of parameters without a shape
NO_YES = {False: "no", True: "yes"}
SEQUENCE = 4096  # tokens, where nothing is said

Group = Literal["states", "step", "more"]


@dataclass(frozen=True)
class Control:
    """A menu with `choices`, value to label; a field for a whole number up to `most`; or for text.

    The groups "step" and "more" are about a step's peak and time, not about model states.
    """

    label: str
    group: Group
    choices: Mapping[Any, str] | None = None
    most: int | None = None


def _kept(label: str, name: str, group: Group = "more") -> Control:
    """A menu of what `Keeping` accepts for one of its fields."""
    return Control(label, group, {value: value for value in CHOICES.get(name, ())} or NO_YES)


CONTROLS = {
    "model": Control("Model", "states", {OWN: "own number"} | {name: name for name in MODELS}),
    "params": Control("Parameters", "states"),
    "precision": Control(
        "Precision",
        "states",
        {
            name: f"{name}: {policy.parameter}+{policy.gradient}+{policy.optimizer}"
            for name, policy in PRECISIONS.items()
        },
    ),
    "strategy": Control("Strategy", "states", NAMES),
    "ranks": Control("Ranks", "states", most=MOST_RANKS),
    "gpu": Control("GPU", "states", {name: name for name in GPUS}),
    "link": Control(
        "Link",
        "states",
        {name: f"{name}: {one.bandwidth / 1e9:g} GB/s" for name, one in LINKS.items()},
    ),
    "count": Control("Count", "states", {"peak": "peak of a step", "states": "model states"}),
    "batch": Control("Micro-batch size", "step", most=1024),
    "sequence": Control("Sequence length", "step", most=2**24),
    # A step is walked through, micro-batch by micro-batch, at every change.
    "micro_batches": Control("Micro-batches", "step", most=64),
    "recompute": _kept("Recomputation", "recompute", "step"),
    "tensor_parallel": Control("Tensor parallel", "more", most=1024),
    "sequence_parallel": Control("Sequence parallel", "more", NO_YES),
    "tensor_link": Control("Tensor link", "more", {name: name for name in LINKS}),
    "attention": _kept("Attention", "attention"),
    "norm": _kept("RMSNorm", "norm"),
    "activation": _kept("Activation function", "activation"),
    "loss": _kept("Loss", "loss"),
    "repeated_kv": _kept("Keys copied", "repeated_kv"),
    "dropout": _kept("Dropout", "dropout"),
    "shown": Control("nvidia-smi, MiB", "more", most=10**9),
}


@dataclass(frozen=True)
class Asked:
    """A set-up to judge. `setup` is None where only model states are asked for."""

    parameters: int
    chosen: Choice
    gpu: GPU
    link: Link
    tensor_link: Link
    setup: Setup | None = None

    def with_strategy(self, strategy: str) -> "Asked":
        setup = self.setup and replace(self.setup, strategy=strategy)
        return replace(self, chosen=replace(self.chosen, strategy=strategy), setup=setup)


@dataclass(frozen=True, kw_only=True)
class Controls:
    """The controls' values; the defaults are where the calculators start.

    params: None where `model` decides. batch: sequences in a micro-batch.
    sequence: its tokens; None for 4,096, or as many as the model has positions.
    shown: what a monitor shows, in MiB; 0 where nobody looked.

    Raises InputError for what a control does not offer.
    """

    model: str = "llama-2-7b"
    params: str | None = None
    precision: str = "mixed"
    strategy: str = "ddp"
    ranks: int = 8
    gpu: str = "h100-80gb"
    link: str = "nvlink4"
    count: str = "peak"
    batch: int = 1
    sequence: int | None = None
    micro_batches: int = 1
    recompute: str = "none"
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    tensor_link: str = "nvlink4"
    attention: str = "flash"
    norm: str = "fused"
    activation: str = "fused"
    loss: str = "eager"
    repeated_kv: bool = False
    dropout: bool = False
    shown: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            control = CONTROLS[name]
            if control.choices is not None and value not in control.choices:
                raise unknown_name(name, value, [str(choice) for choice in control.choices])
            if control.most is not None and (name, value) != ("sequence", None):
                check_whole(name, value, 0 if name == "shown" else 1, control.most)
        if self.sequence is None:
            named, _ = named_count(self.model, self.params)
            object.__setattr__(self, "sequence", min(SEQUENCE, most_tokens(named)))

    def asked(self) -> Asked:
        """What they ask for. Raises InputError for what the model does not take."""
        named, parameters = named_count(self.model, self.params)
        return Asked(
            parameters=parameters,
            chosen=Choice(self.strategy, self.ranks, self.precision),
            gpu=gpu(self.gpu),
            link=link(self.link),
            tensor_link=link(self.tensor_link),
            setup=self._setup(named) if self.count == "peak" and named != OWN else None,
        )

    def _setup(self, name: str) -> Setup:
        shape = model(name)
        check_splits("tensor_parallel", shape, self.tensor_parallel)
        return Setup(
            shape=shape,
            strategy=self.strategy,
            ranks=self.ranks,
            precision=self.precision,
            batch=Batch(
                size=self.batch,
                sequence=check_whole("sequence", self.sequence, 1, most_tokens(name)),
                # Activations are as wide as the parameters that they are computed with.
                element=precision_policy(self.precision).parameter,
                tensor_parallel=self.tensor_parallel,
                sequence_parallel=self.sequence_parallel,
            ),
            keeping=Keeping(**{one.name: getattr(self, one.name) for one in fields(Keeping)}),
            micro_batches=self.micro_batches,
        )


def most_tokens(name: str) -> int:
    """The longest sequence that a model takes: a learned position embedding has so many rows."""
    most = CONTROLS["sequence"].most
    assert most is not None
    return most if name == OWN else model(name).positions or most


def named_count(name: str, params: str | None) -> tuple[str, int]:
    """The model and its parameters; where `params` says otherwise, the model that has as many.

    `OWN` where none has. Raises InputError for what is no count.
    """
    if params is None:
        if name == OWN:
            raise InputError("params", params, "a number of parameters, or a model")
        return name, model(name).parameters
    count = parse_count(params, "params")
    if name != OWN and model(name).parameters == count:
        return name, count
    return next((other for other, shape in MODELS.items() if shape.parameters == count), OWN), count
