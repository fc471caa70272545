"""The strategies: what each rank keeps whole, and what it keeps a shard of."""

from zerolab.parallel.adam import ShardedAdam, ShardedOptimizer
from zerolab.parallel.ddp import DDP
from zerolab.parallel.scaling import LossScaler, mean_over_tokens
from zerolab.parallel.tensor_parallel import TensorParallel
from zerolab.parallel.zero1 import Zero1
from zerolab.parallel.zero2 import Zero2
from zerolab.parallel.zero3 import Zero3

STRATEGIES = {"ddp": DDP, "zero1": Zero1, "zero2": Zero2, "zero3": Zero3}

__all__ = [
    "DDP",
    "STRATEGIES",
    "LossScaler",
    "ShardedAdam",
    "ShardedOptimizer",
    "TensorParallel",
    "Zero1",
    "Zero2",
    "Zero3",
    "mean_over_tokens",
]
