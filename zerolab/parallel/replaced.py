"""An optimizer that was built on a module's parameters before the module was sharded or cut.

Its step would change nothing, silently: the gradients are elsewhere. Every optimizer's step is
looked at before it is made.
"""

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


def _refuse_replaced_parameters(optimizer: torch.optim.Optimizer, *_) -> None:
    """Before any optimizer's step: it must not have been built on parameters that are sharded."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if hasattr(parameter, "sharded_as"):
                raise RuntimeError(
                    f"{type(optimizer).__name__} was built on the parameters of a module that is "
                    f"sharded (unit {parameter.sharded_as[1]!r}), so its step would change "
                    "nothing: build ShardedAdam or ShardedOptimizer on the wrapped model"
                )
            if hasattr(parameter, "cut_as"):
                raise RuntimeError(
                    f"{type(optimizer).__name__} was built on the parameters of a module that "
                    f"tensor parallelism has cut since ({parameter.cut_as!r}), so its step would "
                    "change nothing: build it on the TensorParallel module"
                )


register_optimizer_step_pre_hook(_refuse_replaced_parameters)
