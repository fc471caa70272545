"""What the loss is multiplied by, and why.

`LossScaler`: the smallest positive fp16 number is 6e-8, and many gradients are smaller. Multiplying
the loss moves them into range; the optimizer divides them again, in fp32. bf16 has fp32's range and
needs none of this. Source: Micikevicius et al., arXiv 1710.03740, section 3.2.

`mean_over_tokens`: a mean of the ranks' means is not the mean over all tokens when ranks hold
different numbers of them (padding, packing). The loss is weighted so that it is.
"""

import torch.distributed as dist
from torch import Tensor

from zerolab.parallel.adam import ShardedOptimizer
from zerolab.parallel.strategy import Strategy
from zerolab.runtime.collectives import sum_over_ranks


class LossScaler:
    """Dynamic loss scaling: halve after an overflow, double after `interval` steps without one.

        scaler.scaled(loss).backward()
        scaler.step(optimizer)

    Gradients stay multiplied by `scale` in between: clip with `limit * scaler.scale`.
    """

    def __init__(self, scale: float = 2.0**16, interval: int = 2000) -> None:
        self.scale, self.interval = scale, interval
        self._good_steps = 0

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to call backward on."""
        return loss * self.scale

    def step(self, optimizer: ShardedOptimizer) -> bool:
        """Step unless a gradient has overflowed on any rank; returns whether it stepped."""
        if self._overflowed(optimizer.model):
            self.scale, self._good_steps = self.scale / 2, 0
            return False
        optimizer.loss_scale = self.scale
        optimizer.step()
        self._good_steps += 1
        if self._good_steps == self.interval:
            self.scale, self._good_steps = self.scale * 2, 0
        return True

    @staticmethod
    def _overflowed(model: Strategy) -> bool:
        """Whether a gradient has, on any rank; those of tensor parallelism hold other parts."""
        gradients = [unit.kept_gradient for unit in model.units]
        found: float = not all(g.isfinite().all() for g in gradients if g is not None)
        cuts = [unit.cut for unit in model.units if unit.cut is not None]
        for group in dict.fromkeys([model.group, *(cut.ranks.group for cut in cuts)]):
            found = sum_over_ranks(found, model.device, "overflow", group)
        return found > 0


def mean_over_tokens(total: Tensor, tokens: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """The loss to call backward on, from this rank's loss summed over its `tokens`.

    A strategy averages the ranks' gradients, so: total × ranks / all ranks' tokens. The mean of the
    returned values over the ranks is the mean over all tokens.
    """
    all_tokens = sum_over_ranks(tokens, total.device, "tokens", group)
    if all_tokens == 0:
        raise ValueError("no rank holds a token: there is nothing to average over")
    return total * (dist.get_world_size(group) / all_tokens)
