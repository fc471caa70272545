"""The calculators' controls: their names, labels and choices, and the set-up that they make up.

A notebook's widgets and the book's page build the same controls from `CONTROLS`. A name there is an
argument of `Controls`, too, and a key in the page's address.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args, get_type_hints

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
from zerolab.accounting.errors import unknown_name
from zerolab.accounting.quantities import MOST_RANKS, check_whole
from zerolab.accounting.verdict import Choice
from zerolab.teaching.tables import NAMES

OWN = "own"  # the model menu's entry for a number of parameters without a shape
NO_YES = {False: "no", True: "yes"}

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
    accepted = get_args(get_type_hints(Keeping)[name])
    return Control(label, group, {value: value for value in accepted} or NO_YES)


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
    shown: what a monitor shows, in MiB; 0 where nobody looked.
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
    sequence: int = 4096
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

    def asked(self) -> Asked:
        """What they ask for. Raises InputError for what a control does not offer."""
        self._check()
        named, parameters = named_count(self.model, self.params)
        return Asked(
            parameters=parameters,
            chosen=Choice(self.strategy, self.ranks, self.precision),
            gpu=gpu(self.gpu),
            link=link(self.link),
            tensor_link=link(self.tensor_link),
            setup=self._setup(named) if self.count == "peak" and named != OWN else None,
        )

    def _check(self) -> None:
        for name, value in asdict(self).items():
            control = CONTROLS[name]
            if control.choices is not None and value not in control.choices:
                raise unknown_name(name, value, [str(choice) for choice in control.choices])
            if control.most is not None:
                check_whole(name, value, 0 if name == "shown" else 1, control.most)

    def _setup(self, name: str) -> Setup:
        return Setup(
            shape=model(name),
            strategy=self.strategy,
            ranks=self.ranks,
            precision=self.precision,
            batch=Batch(
                size=self.batch,
                sequence=self.sequence,
                # Activations are as wide as the parameters that they are computed with.
                element=precision_policy(self.precision).parameter,
                tensor_parallel=self.tensor_parallel,
                sequence_parallel=self.sequence_parallel,
            ),
            keeping=Keeping(
                **{name: getattr(self, name) for name in get_type_hints(Keeping)},
            ),
            micro_batches=self.micro_batches,
        )


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
