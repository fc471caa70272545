"""What a strategy needs to know of autograd: which values it follows, and when it is done."""

from collections.abc import Callable

import torch
from torch import Tensor


def when_all_arrived(tensors: list[Tensor], action: Callable[[], None]) -> None:
    """In each backward, call `action` once the gradients of all tensors are computed.

    torch's own register_multi_grad_hook refers from the graph back to the graph, which only many
    rounds of garbage collection undo. Where one of the tensors gets no gradient, `action` is not
    called.
    """
    count, backward, missing = len(tensors), None, 0

    def arrived(_: Tensor) -> None:
        nonlocal backward, missing
        if backward != current_backward():
            backward, missing = current_backward(), count
        missing -= 1
        if missing == 0:
            action()

    for tensor in tensors:
        tensor.register_hook(arrived)


def current_backward() -> int | None:
    """The number of the backward that this thread is in; None outside of any."""
    number = torch._C._current_graph_task_id()
    return None if number == -1 else number


def is_differentiable(value: object) -> bool:
    """Whether a backward can come to this value."""
    return isinstance(value, Tensor) and value.requires_grad


def hides_tensors(value: object) -> bool:
    """Whether there may be tensors inside of a value where nobody looks."""
    return not (value is None or isinstance(value, Tensor | bool | int | float | str))
