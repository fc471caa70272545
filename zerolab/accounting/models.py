"""The shape of a decoder-only transformer, and its parameter count computed from it.

A `Shape` says what differs between the families in use: the widths, how many key-value heads, a
gated feed-forward or a plain one, which norms and biases exist, tied or untied output head,
experts. Counts are exact: they equal the number of elements in the real models' tensors.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Widths are elements; names follow the papers, not any one implementation."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int  # rows of the embedding, padding included
    kv_heads: int = 0  # 0: as many as heads (no grouped queries)
    head_size: int = 0  # 0: hidden / heads
    positions: int = 0  # rows of a learned position embedding
    rotary: bool = False  # positions turn queries and keys instead
    gated: bool = False  # feed-forward of three matrices: down(act(gate(x)) * up(x))
    relu: bool = False  # the feed-forward's activation is ReLU, not GELU or SiLU
    norm: Literal["rms", "layer", "layer without bias", "none"] = "layer"
    block_norms: int = 2  # norms in a block: 1 in parallel blocks, 4 in Gemma 2
    query_key_norm: Literal["none", "head", "all heads"] = "none"
    embedding_norm: bool = False
    final_norm: bool = True
    query_key_value_bias: bool = False
    attention_output_bias: bool = False
    feed_forward_bias: bool = False
    head_bias: bool = False
    tied: bool = False  # the output head is the embedding
    experts: int = 1  # feed-forwards in a block; more than 1 adds a router
    active_experts: int = 1  # feed-forwards that a token passes through
    exact: bool = True  # False: read from a config of an unknown family, layout assumed

    def __post_init__(self) -> None:
        # A frozen dataclass is set through object's own method.
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.head_size:
            object.__setattr__(self, "head_size", self.hidden // self.heads)

    @property
    def query_width(self) -> int:
        """Elements of a token's queries, all heads."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys, and of its values."""
        return self.kv_heads * self.head_size

    @property
    def parameters(self) -> int:
        """Elements of all parameters; a tied head counts once."""
        return sum(self.unit_sizes)

    @property
    def unit_sizes(self) -> list[int]:
        """Elements of each unit: the embeddings, each block, the final norm with the head."""
        return [self.embedding, *[self.block] * self.layers, self.output]

    @property
    def embedding(self) -> int:
        """Elements of the first unit: token and position embeddings, and their norm."""
        rows = self.vocabulary + self.positions
        return rows * self.hidden + self.embedding_norm * self.one_norm

    @property
    def block(self) -> int:
        """Elements of one block: attention, all experts with their router, norms."""
        router = self.hidden * self.experts if self.experts > 1 else 0
        norms = self.block_norms * self.one_norm
        return self.attention + self.experts * self.one_feed_forward + router + norms

    @property
    def attention(self) -> int:
        """Elements of the four projections, their biases, and norms of queries and keys."""
        projections = self.query_width + 2 * self.kv_width
        weights = self.hidden * projections + self.query_width * self.hidden
        biases = self.query_key_value_bias * projections + self.attention_output_bias * self.hidden
        normed = {
            "none": 0,
            "head": 2 * self.head_size,
            "all heads": self.query_width + self.kv_width,
        }
        return weights + biases + normed[self.query_key_norm]

    @property
    def one_feed_forward(self) -> int:
        """One expert, or the whole feed-forward where there are no experts."""
        inner = (2 if self.gated else 1) * self.feed_forward
        weights = self.hidden * inner + self.feed_forward * self.hidden
        return weights + self.feed_forward_bias * (inner + self.hidden)

    @property
    def one_norm(self) -> int:
        """Elements of one norm over the hidden width."""
        tensors = {"rms": 1, "layer": 2, "layer without bias": 1, "none": 0}
        return tensors[self.norm] * self.hidden

    @property
    def output(self) -> int:
        """Elements of the last unit: the final norm, and the head unless it is tied."""
        head = 0 if self.tied else self.vocabulary * self.hidden
        return self.final_norm * self.one_norm + head + self.head_bias * self.vocabulary

    @property
    def active_parameters(self) -> int:
        """What one token passes through: without the experts that the router leaves out."""
        idle = (self.experts - self.active_experts) * self.one_feed_forward
        return self.parameters - self.layers * idle
