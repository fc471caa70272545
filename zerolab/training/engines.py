"""The systems that people train with, and ours, behind one small call.

    step = engine("fsdp2", GPT(shape), lr=3e-4)
    loss = step(tokens, targets)

Every one trains with torch's AdamW in its fused form: what differs is how the state is sharded, and
how it moves. Each is set up as its own tutorial does it, in the process group that is there:

    ddp zero1 zero2 zero3              ours
    torch-ddp                          DistributedDataParallel
    torch-zero1                        ZeroRedundancyOptimizer, over DistributedDataParallel
    fsdp1-grad-op                      FullyShardedDataParallel, SHARD_GRAD_OP; a unit a block
    fsdp1                              the same, FULL_SHARD
    fsdp2                              fully_shard of each block and of the root, all resharded
    deepspeed1 deepspeed2 deepspeed3   DeepSpeed's stages; needs `pip install deepspeed`
    tensor_parallel                    ours: every rank computes a part of the same batch
    torch-tp                           parallelize_module, for our GPT
    alone                              every rank trains by itself: what no system can do without
"""

import os
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerolab.accounting.errors import InputError, unknown_name
from zerolab.parallel import STRATEGIES, ShardedAdam, TensorParallel

Step = Callable[[Tensor, Tensor], Tensor]  # tokens and targets, both (B, T), to the rank's loss

# DeepSpeed's default of 5e8 elements would allocate 2 GB a bucket, whatever the model.
_BUCKET = 5_000_000


def engine(name: str, model: nn.Module, lr: float) -> Step:
    """One training step of a model whose forward returns its loss, by the system of that name."""
    require("engine", name)
    return ENGINES[name](model, lr)


def installed(name: str) -> bool:
    """Whether this engine's package is there: all but DeepSpeed come with torch."""
    return not name.startswith("deepspeed") or find_spec("deepspeed") is not None


def require(option: str, name: str) -> None:
    """Raises InputError where an engine's name is unknown, or it is not installed."""
    if name not in ENGINES:
        raise unknown_name(option, name, ENGINES)
    if not installed(name):
        raise InputError(option, name, "an engine that is installed: pip install deepspeed")


def _loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """PyTorch's own training step."""

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _adam(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr, fused=True)


def _alone(model: nn.Module, lr: float) -> Step:
    return _loop(model, _adam(model, lr))


def _ours(strategy: str, model: nn.Module, lr: float) -> Step:
    wrapped = STRATEGIES[strategy](model)
    return _loop(wrapped, ShardedAdam(wrapped, lr=lr))


def _torch_ddp(model: nn.Module, lr: float) -> Step:
    wrapped = nn.parallel.DistributedDataParallel(model)
    return _loop(wrapped, _adam(wrapped, lr))


def _torch_zero1(model: nn.Module, lr: float) -> Step:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, lr=lr, fused=True)
    return _loop(wrapped, optimizer)


def _fsdp1(sharding: str, model: nn.Module, lr: float) -> Step:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    wrapped = FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy[sharding],
        auto_wrap_policy=ModuleWrapPolicy({type(block) for block in _blocks(model)}),
        device_id=torch.device("cpu"),
    )
    return _loop(wrapped, _adam(wrapped, lr))


def _fsdp2(model: nn.Module, lr: float) -> Step:
    from torch.distributed.fsdp import fully_shard

    for block in _blocks(model):
        fully_shard(block)
    fully_shard(model, reshard_after_forward=True)  # by default the root would stay whole
    return _loop(model, _adam(model, lr))


def _deepspeed(stage: int, model: nn.Module, lr: float) -> Step:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", str(dist.get_rank()))  # asked for, and not used on a CPU
    import deepspeed

    # It still calls collectives by their former names.
    for former in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        warnings.filterwarnings("ignore", f".*{former}.* is deprecated", FutureWarning)
    # Its shared-memory kernels are for inference; training would wait for a compiler in vain.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    wrapped, *_ = deepspeed.initialize(
        model=model,
        optimizer=_adam(model, lr),
        config={
            "train_micro_batch_size_per_gpu": 1,  # it counts samples with this, and nothing else
            "gradient_clipping": 0.0,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {
                "stage": stage,
                "reduce_bucket_size": _BUCKET,
                "allgather_bucket_size": _BUCKET,
                "stage3_prefetch_bucket_size": _BUCKET,
            },
        },
    )

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = wrapped(tokens, targets)
        wrapped.backward(loss)
        wrapped.step()
        return loss.detach()

    return step


def _tensor_parallel(model: nn.Module, lr: float) -> Step:
    wrapped = TensorParallel(model)
    return _loop(wrapped, _adam(wrapped, lr))


def _torch_tp(model: nn.Module, lr: float) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, parallel

    ranks = dist.get_world_size()
    plan: dict[str, parallel.ParallelStyle] = {
        "token_embedding": parallel.RowwiseParallel(input_layouts=Replicate()),
        "head": parallel.ColwiseParallel(output_layouts=Replicate()),
    }
    for name, layer in model.named_modules():
        if name.endswith("attention.qkv"):
            _heads_together(layer, ranks)
        if name.endswith(("attention.qkv", "mlp.up")):
            plan[name] = parallel.ColwiseParallel()
        elif name.startswith("blocks.") and name.endswith(".projection"):
            plan[name] = parallel.RowwiseParallel()
    wrapped = parallel.parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)
    # The fused update does not take its distributed tensors and ordinary ones in one call.
    cut = [parameter for parameter in wrapped.parameters() if isinstance(parameter, DTensor)]
    whole = [parameter for parameter in wrapped.parameters() if not isinstance(parameter, DTensor)]
    groups: list[dict[str, Any]] = [{"params": cut}, {"params": whole}]
    return _loop(wrapped, torch.optim.AdamW(groups, lr=lr, fused=True))


@torch.no_grad()
def _heads_together(qkv: Any, ranks: int) -> None:
    """torch cuts a matrix into N runs of rows: put each rank's queries, keys and values in one."""
    for parameter in (qkv.weight, qkv.bias):
        by_part = parameter.unflatten(0, (3, ranks, -1))
        parameter.copy_(by_part.transpose(0, 1).flatten(0, 2))


def _blocks(model: nn.Module) -> list[nn.Module]:
    """What the tutorials make units of: the members of the model's lists."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return [block for blocks in lists for block in blocks]


ENGINES: dict[str, Callable[[Any, float], Step]] = {
    **{strategy: partial(_ours, strategy) for strategy in STRATEGIES},
    "torch-ddp": _torch_ddp,
    "torch-zero1": _torch_zero1,
    "fsdp1-grad-op": partial(_fsdp1, "SHARD_GRAD_OP"),
    "fsdp1": partial(_fsdp1, "FULL_SHARD"),
    "fsdp2": _fsdp2,
    "deepspeed1": partial(_deepspeed, 1),
    "deepspeed2": partial(_deepspeed, 2),
    "deepspeed3": partial(_deepspeed, 3),
    "tensor_parallel": _tensor_parallel,
    "torch-tp": _torch_tp,
    "alone": _alone,
}
SAME_BATCH = ("tensor_parallel", "torch-tp")  # on every rank; elsewhere each rank has its own
