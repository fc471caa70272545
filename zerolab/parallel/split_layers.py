"""Layers of which each rank computes a part.

    column   y = x Wᵀ with W cut by rows: each rank computes some of the output's features
    row      y = Σ x_r W_rᵀ with W cut by columns: each rank a part of the sum, which g adds up
    vocabulary   an embedding of which each rank holds some of the words

A column layer followed by a row layer needs no communication in between: that is the whole trick.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zerolab.parallel.cut import Cut, cut_parameter
from zerolab.parallel.regions import Ranks, enter, gather_columns, leave
from zerolab.runtime.collectives import all_gather


class _SplitLinear(nn.Module):
    """What column and row have in common: a linear layer, or GPT-2's, which keeps Wᵀ."""

    def __init__(self, layer: Any, ranks: Ranks, name: str, output: bool, parts: int) -> None:
        super().__init__()
        self.ranks, self.name = ranks, name
        # nn.Linear keeps (output, input); transformers' Conv1D (input, output).
        self.transposed = not isinstance(layer, nn.Linear)
        dimension = 0 if output != self.transposed else 1
        self.weight = cut_parameter(layer.weight, Cut(ranks, dimension, parts), f"{name}.weight")
        bias = layer.bias
        if bias is not None and output:
            bias = cut_parameter(bias, Cut(ranks, 0, parts), f"{name}.bias")
        self.bias: nn.Parameter | None = bias

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, self.weight.t() if self.transposed else self.weight, bias)


class ColumnParallelLinear(_SplitLinear):
    """(..., in) -> (..., out / N): this rank's features. `shared` leaves f to a module above."""

    def __init__(
        self,
        layer: Any,
        ranks: Ranks,
        name: str,
        parts: int = 1,
        shared: bool = False,
        gather: bool = False,
    ) -> None:
        super().__init__(layer, ranks, name, output=True, parts=parts)
        self.shared, self.gather = shared, gather

    def forward(self, x: Tensor) -> Tensor:
        if not self.shared:
            x = enter(x, self.ranks, self.name)
        y = self.product(x, self.bias)
        return gather_columns(y, self.ranks, f"{self.name} output") if self.gather else y


class RowParallelLinear(_SplitLinear):
    """(..., in / N) -> (..., out): this rank's part of the sum, then g. The bias is added once."""

    def __init__(self, layer: Any, ranks: Ranks, name: str) -> None:
        super().__init__(layer, ranks, name, output=False, parts=1)

    def forward(self, x: Tensor) -> Tensor:
        y = leave(self.product(x, None), self.ranks, self.name)
        return y if self.bias is None else y + self.bias


class VocabularyParallelEmbedding(nn.Module):
    """(...) tokens -> (..., C): a rank looks up the words it holds, g fills in the others'."""

    def __init__(self, layer: nn.Embedding, ranks: Ranks, name: str) -> None:
        super().__init__()
        self.ranks, self.name = ranks, name
        self.weight = cut_parameter(layer.weight, Cut(ranks, 0), f"{name}.weight")
        self.padding = layer.padding_idx  # the word that learns nothing

    def forward(self, tokens: Tensor) -> Tensor:
        words = self.weight.shape[0]
        first = self.ranks.rank * words
        local = tokens - first
        elsewhere = (local < 0) | (local >= words)
        padding = None
        if self.padding is not None and 0 <= self.padding - first < words:
            padding = self.padding - first
        rows = F.embedding(local.masked_fill(elsewhere, 0), self.weight, padding)
        return leave(rows.masked_fill(elsewhere.unsqueeze(-1), 0.0), self.ranks, self.name)


class VocabularyParallelCrossEntropy(nn.Module):
    """Mean cross-entropy of logits (..., V/N), of which each rank has its words'. Targets equal to
    the loss's `ignore_index`, torch's -100 where it has none, do not count.

    Instead of the logits, two numbers a token are gathered: the log of a rank's sum of
    exponentials, and the target's logit where the rank holds it.
    """

    def __init__(self, loss: nn.Module, ranks: Ranks, name: str) -> None:
        super().__init__()
        self.ranks, self.name = ranks, name
        self.ignored = getattr(loss, "ignore_index", -100)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return _CrossEntropy.apply(
            logits.flatten(0, -2), targets.flatten(), self.ignored, self.ranks, self.name
        )


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, logits: Tensor, targets: Tensor, ignored: int, ranks: Ranks, label: str
    ) -> Tensor:
        tokens, words = logits.shape
        local = targets - ranks.rank * words
        here = (local >= 0) & (local < words)
        local = local.masked_fill(~here, 0)
        numbers = logits.new_empty(ranks.count, 2, tokens, dtype=torch.float32)
        own = numbers[ranks.rank]
        own[0] = logits.float().logsumexp(-1)
        own[1] = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(~here, 0.0)
        all_gather(numbers.view(-1), label, ranks.group).wait()
        log_sum = numbers[:, 0].logsumexp(0)  # over all words
        ctx.save_for_backward(logits, log_sum, local, here, targets)
        ctx.ignored, counted = ignored, targets != ignored
        losses = log_sum - numbers[:, 1].sum(0)
        return losses.masked_fill_(~counted, 0.0).sum() / counted.sum()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        logits, log_sum, local, here, targets = ctx.saved_tensors
        counted = targets != ctx.ignored
        # softmax minus one at the target, this rank's words of it
        result = (logits - log_sum.unsqueeze(-1)).exp_()
        result.scatter_add_(-1, local.unsqueeze(-1), -here.to(result.dtype).unsqueeze(-1))
        result.mul_(counted.unsqueeze(-1) * (gradient / counted.sum()))
        return result.to(logits.dtype), None, None, None, None
