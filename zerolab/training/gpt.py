"""A small GPT: the model that every experiment of this project trains unless it says otherwise.

Pre-norm blocks, learned positions, GELU, initialised as GPT-2 was (Radford et al. 2019, section
2.3: a deviation of 0.02, and the layers that write into the residual stream scaled down by the
number of times that is written to).

Shapes: B sequences, T tokens in each, C width, H heads, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zerolab.accounting.models import Shape


@dataclass(frozen=True)
class GPTShape:
    """The sizes that a GPT is built from."""

    vocabulary: int = 256  # one token a byte
    context: int = 128
    layers: int = 4
    heads: int = 4
    width: int = 128
    tied: bool = False  # one tensor for the token embedding and the head

    def __post_init__(self) -> None:
        sizes = (self.vocabulary, self.context, self.layers, self.heads, self.width)
        if min(sizes) < 1:
            raise ValueError(f"every size of a GPTShape is at least 1, but this is {self}")
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} does not divide into {self.heads} heads: "
                f"choose a width that is a multiple of heads"
            )

    @property
    def parameters(self) -> int:
        """The number of parameters, biases and norms included."""
        weights = 3 + 1 + 4 + 4  # of C × C: qkv, its projection, the MLP's way up and down
        vectors = 3 + 1 + 4 + 1 + 4  # of C: the biases of those four, and two norms
        block = weights * self.width**2 + vectors * self.width
        embeddings = (1 if self.tied else 2) * self.vocabulary + self.context
        final_norm = 2 * self.width
        return self.layers * block + embeddings * self.width + final_norm

    def splits(self, ranks: int) -> bool:
        """Whether tensor parallelism can share it out: to each rank as many heads, and words."""
        return self.heads % ranks == 0 and self.vocabulary % ranks == 0

    @property
    def on_paper(self) -> Shape:
        """The same shape in the terms of `accounting`."""
        return Shape(
            layers=self.layers,
            hidden=self.width,
            heads=self.heads,
            feed_forward=4 * self.width,
            vocabulary=self.vocabulary,
            positions=self.context,
            query_key_value_bias=True,
            attention_output_bias=True,
            feed_forward_bias=True,
            tied=self.tied,
        )


# The benchmarks' model, of 33,674,240 parameters. Untied, so that embedding and head are units of
# their own: a vocabulary that is used at both ends of a model stays whole in between, whatever the
# strategy, and its quarter of the parameters would be most of every peak.
GPT_34M = GPTShape(vocabulary=8192, context=128, layers=8, heads=8, width=512)


class Attention(nn.Module):
    """Causal self-attention: a token looks at itself and at what came before."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.projection = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x)  # (B, T, C) -> (B, T, 3C)
        B, T, _ = qkv.shape
        q, k, v = qkv.view(B, T, 3, -1, self.head_width).permute(2, 0, 3, 1, 4)  # (B, H, T, C/H)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(y.transpose(1, 2).reshape(B, T, -1))  # heads side by side again


class MLP(nn.Module):
    """Two layers, four times as wide between them."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.projection = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(F.gelu(self.up(x)))  # (B, T, C) -> (B, T, 4C) -> (B, T, C)


class Block(nn.Module):
    """Attention, then the MLP; each reads a normalised copy and adds to the residual stream."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class CrossEntropy(nn.Module):
    """The mean over tokens, in nats; a module, so that tensor parallelism can replace it."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # (B, T, V) -> (B·T, V)


class GPT(nn.Module):
    """Tokens in; the loss out where targets are given, else logits."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.position_embedding = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.final_norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.token_embedding.weight
        self.loss = CrossEntropy()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw GPT-2's initial values: biases 0, norms 1, weights normal with deviation 0.02."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name.endswith("norm.weight"):
                nn.init.ones_(parameter)
            elif name.endswith("projection.weight"):
                # Each block adds twice to the residual stream: keep the sum's variance that of one.
                nn.init.normal_(parameter, std=0.02 / (2 * self.shape.layers) ** 0.5)
            else:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """tokens, targets: (B, T) int64, T at most the context.

        Returns the mean cross-entropy in nats a token, or without targets the logits (B, T, V).
        """
        length = tokens.shape[1]
        if length > self.shape.context:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the context of "
                f"{self.shape.context}: cut it, or build the GPT with a longer context"
            )
        positions = torch.arange(length, device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)  # (B, T, C) + (T, C)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.final_norm(x))  # (B, T, C) -> (B, T, V)
        if targets is None:
            return logits
        return self.loss(logits, targets)
