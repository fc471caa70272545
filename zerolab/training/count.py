"""Counting a real model: parameters and saved activations of any config.json, without its weights.

`zerolab.accounting` computes both from a shape, for the families that it knows. This counts them in
the model itself: `transformers` builds it on the meta device, one forward runs there, and the
tensors that autograd saves are added up. Seconds for a model of any size, on any machine.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zerolab.accounting.configs import load_config, refused
from zerolab.accounting.errors import InputError
from zerolab.runtime.saved import SavedTensors

_FLASH = (
    "zerolab on meta"  # with "flash" in the name, transformers would look for a kernel to fetch
)
_DTYPES = {2: torch.bfloat16, 4: torch.float32}


@dataclass(frozen=True)
class Count:
    """What one model keeps for one micro-batch.

    attention: "flash", or "eager" where the class has no exchangeable attention.
    """

    parameters: int  # elements
    activations: int  # bytes
    attention: str


def count(path: str | Path, batch: int = 1, sequence: int = 1024, element: int = 2) -> Count:
    """Count the causal language model that a config.json describes, with its loss.

    element: bytes of an activation's element, 2 or 4. Code that a config names elsewhere is never
    fetched or run. Raises InputError for another element, for a config that is not one, and for a
    model that needs real numbers to decide what it computes.
    """
    if element not in _DTYPES:
        raise InputError("element", element, "2 or 4 bytes")
    config = load_config(path)
    for attention in ("flash", "eager"):
        try:
            real = _build(config, attention, _DTYPES[element])
            activations = _saved(real, attention, batch, sequence)
        except InputError:
            raise
        except Exception as error:
            # The model's own code may fail in any way; what matters here is which model, and why.
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            failure = refused(str(path), f"its forward cannot be counted: {reason}")
        else:
            parameters = sum(parameter.numel() for parameter in real.parameters())
            return Count(parameters, activations, attention)
    raise failure


def _build(config: dict[str, Any], attention: str, dtype: torch.dtype) -> nn.Module:
    try:
        import transformers
    except ImportError:
        needed = "what a machine with transformers can build: pip install transformers"
        raise InputError("--count", config.get("model_type"), needed) from None
    transformers.AttentionInterface.register(_FLASH, _attention)
    settings = dict(config)
    described = transformers.AutoConfig.for_model(settings.pop("model_type", ""), **settings)
    described._attn_implementation = _FLASH if attention == "flash" else "eager"
    build = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        return build(described, dtype=dtype, trust_remote_code=False).train()


def _saved(real: nn.Module, attention: str, batch: int, sequence: int) -> int:
    with torch.device("meta"), SavedTensors([*real.parameters(), *real.buffers()]) as saved:
        tokens = torch.zeros(batch, sequence, dtype=torch.long)
        # Without a mask, eager attention looks into the positions for packed sequences; on meta
        # there is nothing to see.
        mask = torch.ones_like(tokens) if attention == "eager" else None
        real(input_ids=tokens, labels=tokens, attention_mask=mask, use_cache=False)
    return saved.bytes


def flash_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Causal attention that never stores scores: (B, H, T, D) -> (B, T, H, D), also on meta.

    On meta `scaled_dot_product_attention` would take the plain path. Grouped keys and values stay
    as they are, as CUDA's kernel takes them.
    """
    width = value.shape[-1]
    if width != query.shape[-1]:  # latent attention: the kernel wants equal widths
        value = nn.functional.pad(value, (0, query.shape[-1] - width))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, 0.0, True, scale=scaling)[0][..., :width].transpose(1, 2)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """`flash_attention` as transformers calls an attention; it has repeated nothing yet."""
    return flash_attention(query, key, value, scaling), None
