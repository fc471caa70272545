"""zerolab: sharded data parallelism, small enough to read and measured to the byte.

Names are imported on first use, so that ``import zerolab`` costs nothing and the accounting
works where torch is not installed.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "World": "zerolab.runtime.world",
    "RankError": "zerolab.runtime.failure",
    "report": "zerolab.runtime.rank",
    "MemoryMeter": "zerolab.runtime.memory",
    "DDP": "zerolab.parallel.ddp",
    "Zero1": "zerolab.parallel.zero1",
    "Zero2": "zerolab.parallel.zero2",
    "Zero3": "zerolab.parallel.zero3",
    "TensorParallel": "zerolab.parallel.tensor_parallel",
    "ShardedAdam": "zerolab.parallel.adam",
    "GPT": "zerolab.training.gpt",
    "GPTShape": "zerolab.training.gpt",
    "Corpus": "zerolab.training.corpus",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'zerolab' has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__():
    return __all__
