"""Whether a part of a module can be what a plan says it is: asked before it is replaced."""

from typing import Any

from torch import Tensor, nn

from zerolab.parallel.regions import Ranks


def check_fits(kind: str, layer: Any, parent: nn.Module, name: str, ranks: Ranks) -> None:
    """Raises ValueError where `layer`, of that name in `parent`, cannot be of that kind."""
    if kind == "divide":
        _check_number(layer, name, ranks)
    elif kind == "vocabulary":
        _check_embedding(layer, name)
    elif kind == "cross_entropy":
        _check_loss(layer, name)
    elif kind == "row" or kind.startswith("column"):
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 2 or isinstance(layer, nn.Embedding):
            raise ValueError(
                f"{name} is a {type(layer).__name__}, and the plan's {kind!r} needs a linear layer"
            )
        if kind != "row":
            _check_heads(parent, layer, name, kind, ranks)


def _check_number(number: Any, name: str, ranks: Ranks) -> None:
    if not isinstance(number, int) or number % ranks.count:
        raise ValueError(
            f"{name} is {number}, and the plan's 'divide' needs a whole number that divides into "
            f"{ranks.count} ranks"
        )


def _check_embedding(layer: Any, name: str) -> None:
    if not isinstance(layer, nn.Embedding):
        raise ValueError(
            f"{name} is a {type(layer).__name__}, and the plan's 'vocabulary' needs an nn.Embedding"
        )
    if layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
        raise ValueError(
            f"{name} is built with max_norm, scale_grad_by_freq or sparse, which an embedding cut "
            "by words does not do: build it without, or leave it out of the plan"
        )


def _check_loss(layer: Any, name: str) -> None:
    weight, smoothing = getattr(layer, "weight", None), getattr(layer, "label_smoothing", 0.0)
    if weight is not None or smoothing or getattr(layer, "reduction", "mean") != "mean":
        raise ValueError(
            f"{name} has weights, label smoothing or another reduction than the mean, which a "
            "loss on logits cut by words does not do: leave them out, or gather the logits, as by "
            "the kind 'column_gather'"
        )


def _check_heads(parent: nn.Module, layer: Any, name: str, kind: str, ranks: Ranks) -> None:
    """A rank has whole heads: queries and their keys and values must not be torn apart."""
    width = getattr(parent, "head_width", getattr(parent, "head_dim", None))
    if width is None:
        return
    parts = 3 if kind == "column_fused3" else 1
    # transformers' Conv1D keeps its weight transposed
    features = layer.weight.shape[0 if isinstance(layer, nn.Linear) else 1]
    heads = features // parts // width
    if heads % ranks.count:
        raise ValueError(
            f"{name} has {heads} heads, which do not divide into {ranks.count} ranks: "
            "choose a number of ranks that divides them"
        )
