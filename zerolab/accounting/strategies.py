"""What each strategy keeps whole and what it shards: the table that everything else follows from.

Source: Rajbhandari et al., ZeRO, arXiv 1910.02054, section 5.
"""

from typing import Literal, NamedTuple

from zerolab.accounting.errors import unknown_name

Keeping = Literal["whole", "shard"]


class Sharding(NamedTuple):
    """How a rank keeps each of the three flat tensors of training state."""

    parameters: Keeping
    gradients: Keeping
    optimizer: Keeping


SHARDING = {
    #                 parameters gradients optimizer
    "ddp": Sharding("whole", "whole", "whole"),
    "zero1": Sharding("whole", "whole", "shard"),
    "zero2": Sharding("whole", "shard", "shard"),
    "zero3": Sharding("shard", "shard", "shard"),
}
STRATEGIES = tuple(SHARDING)


def sharding(strategy: str) -> Sharding:
    """The strategy's row of the table. Raises InputError for other names."""
    if strategy not in SHARDING:
        raise unknown_name("--strategy", strategy, STRATEGIES)
    return SHARDING[strategy]
