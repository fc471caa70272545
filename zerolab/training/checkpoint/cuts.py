"""What a model is without its wrapper, and which of its parameters tensor parallelism has cut."""

from torch import nn

from zerolab.parallel.cut import Cut
from zerolab.parallel.strategy import Strategy
from zerolab.parallel.tensor_parallel import TensorParallel


def bare(model: nn.Module) -> nn.Module:
    """The user's module, whose names are those of the files."""
    return model.module if isinstance(model, Strategy | TensorParallel) else model


def cuts_of(model: nn.Module) -> dict[str, Cut]:
    """How each parameter that is cut was cut, by name."""
    named = bare(model).named_parameters()
    return {name: parameter.cut for name, parameter in named if hasattr(parameter, "cut")}
