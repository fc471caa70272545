"""Reading a Hugging Face config.json into a `Shape`.

Families name the same thing differently and leave out of the file what their code fixes: which
norms and biases there are, whether the head is tied. `FAMILIES` holds that second part for the
families whose parameter count is exact here. Any other config is read with Llama's layout and
marked `exact=False`: then count the real model (`zerolab memory --config … --count`).
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zerolab.accounting.errors import InputError
from zerolab.accounting.models import Shape

Traits = dict[str, Any]

_ACCEPTED = "the path of a model's config.json as Hugging Face writes it"
_MOST = 10**9  # of anything a config counts

# The names under which families keep the same width, most frequent first.
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "feed_forward": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocabulary": ("vocab_size",),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_size": ("head_dim",),
}
_REQUIRED = ("layers", "hidden", "heads", "vocabulary")

# Options that add parameters which `Shape` does not know; rare, and off by default.
_UNCOUNTED = ("qk_layernorm", "use_qk_norm", "add_cross_attention", "mlp_only_layers")


def read_config(path: str | Path) -> Shape:
    """The shape of the model that the file describes. Raises InputError where it is not one."""
    return shape_of(load_config(path), str(path))


def load_config(path: str | Path) -> dict[str, Any]:
    """The file's JSON object. Raises InputError where there is none."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise refused(str(path), error.strerror or "unreadable") from None
    except ValueError:
        raise refused(str(path), "this is not JSON") from None
    if not isinstance(config, dict):
        raise refused(str(path), "this is not a JSON object")
    return config


def shape_of(config: Mapping[str, Any], source: str = "config") -> Shape:
    """The shape that a parsed config describes; `source` names it in error messages."""
    if isinstance(config.get("text_config"), dict):  # a multi-modal model: its language part
        return shape_of(config["text_config"], source)
    fields = Fields(config, source)
    widths = {role: fields.count(*names) for role, names in _NAMES.items()}
    for role in _REQUIRED:
        if not widths[role]:
            raise refused(source, f"no {' or '.join(_NAMES[role])}")
    # GPT-2's default, and all that BLOOM and MPT know.
    widths["feed_forward"] = widths["feed_forward"] or 4 * widths["hidden"]
    family = FAMILIES.get(str(config.get("model_type")))
    known = family is not None and not any(config.get(option) for option in _UNCOUNTED)
    return Shape(**{**widths, "exact": known, **(family or _llama)(fields)})


def refused(source: str, reason: str) -> InputError:
    """The error for a config that cannot be read, with what is wrong with it."""
    return InputError("--config", source, f"{_ACCEPTED} ({reason})")


class Fields:
    """A config whose values are checked as they are read."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config = config
        self.source = source

    def count(self, *names: str, default: int = 0) -> int:
        """The first of `names` that is there and not null: a whole number."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
                raise refused(self.source, f"{name} is {value!r}")
            return value
        return default

    def flag(self, name: str, default: bool) -> bool:
        value = self.config.get(name)
        return default if value is None else bool(value)


def _llama(fields: Fields) -> Traits:
    attention = fields.flag("attention_bias", False)
    return {
        "norm": "rms",
        "gated": True,
        "rotary": True,
        "tied": fields.flag("tie_word_embeddings", False),
        "query_key_value_bias": attention,
        "attention_output_bias": attention,
        "feed_forward_bias": fields.flag("mlp_bias", False),
    }


def _mixtral(fields: Fields) -> Traits:
    return {
        **_llama(fields),
        "experts": fields.count("num_local_experts", default=8),
        "active_experts": fields.count("num_experts_per_tok", default=2),
    }


def _qwen2(fields: Fields) -> Traits:
    return {**_llama(fields), "query_key_value_bias": True}


def _qwen3(fields: Fields) -> Traits:
    return {
        **_llama(fields),
        "query_key_norm": "head",
        "head_size": fields.count("head_dim", default=128),
    }


def _qwen3_moe(fields: Fields) -> Traits:
    return {
        **_llama(fields),
        "query_key_norm": "head",
        "experts": fields.count("num_experts", default=128),
        "active_experts": fields.count("num_experts_per_tok", default=8),
        "feed_forward": fields.count("moe_intermediate_size", default=768),
    }


def _gemma(fields: Fields) -> Traits:
    return {
        **_llama(fields),
        "tied": fields.flag("tie_word_embeddings", True),
        "head_size": fields.count("head_dim", default=256),
    }


def _gemma2(fields: Fields) -> Traits:
    return {**_gemma(fields), "block_norms": 4}


def _gemma3(fields: Fields) -> Traits:
    return {**_gemma2(fields), "query_key_norm": "head"}


def _phi3(fields: Fields) -> Traits:
    return {**_llama(fields), "query_key_value_bias": False, "attention_output_bias": False}


def _olmo(fields: Fields) -> Traits:
    return {**_llama(fields), "norm": "none"}


def _olmo2(fields: Fields) -> Traits:
    return {**_llama(fields), "query_key_norm": "all heads"}


def _cohere(fields: Fields) -> Traits:
    return {
        **_llama(fields),
        "norm": "layer without bias",
        "block_norms": 1,
        "tied": fields.flag("tie_word_embeddings", True),
    }


def _smollm3(fields: Fields) -> Traits:
    return {**_llama(fields), "tied": fields.flag("tie_word_embeddings", True)}


def _stablelm(fields: Fields) -> Traits:
    return {
        **_llama(fields),
        "norm": "layer",
        "query_key_value_bias": fields.flag("use_qkv_bias", False),
        "attention_output_bias": False,
    }


def _starcoder2(fields: Fields) -> Traits:
    bias = fields.flag("use_bias", True)
    return {
        "rotary": True,
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
        "feed_forward_bias": bias,
        "tied": fields.flag("tie_word_embeddings", True),
    }


def _gpt(fields: Fields) -> Traits:
    """LayerNorm and biases everywhere: GPT-2, BLOOM, OPT, GPT-NeoX, Phi."""
    return {
        "query_key_value_bias": True,
        "attention_output_bias": True,
        "feed_forward_bias": True,
        "tied": fields.flag("tie_word_embeddings", True),
    }


def _gpt2(fields: Fields) -> Traits:
    return {**_gpt(fields), "positions": fields.count("n_positions", default=1024)}


def _gpt_bigcode(fields: Fields) -> Traits:
    return {**_gpt2(fields), "kv_heads": 1 if fields.flag("multi_query", True) else 0}


def _gpt_neo(fields: Fields) -> Traits:
    positions = fields.count("max_position_embeddings", default=2048)
    return {**_gpt(fields), "query_key_value_bias": False, "positions": positions}


def _gptj(fields: Fields) -> Traits:
    return {
        "rotary": True,
        "block_norms": 1,
        "feed_forward_bias": True,
        "head_bias": True,
        "tied": fields.flag("tie_word_embeddings", False),
    }


def _gpt_neox(fields: Fields) -> Traits:
    bias = fields.flag("attention_bias", True)
    return {
        **_gpt(fields),
        "rotary": True,
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
        "tied": fields.flag("tie_word_embeddings", False),
    }


def _opt(fields: Fields) -> Traits:
    # The first two rows of the position embedding are an offset.
    positions = fields.count("max_position_embeddings", default=2048) + 2
    hidden = fields.count("hidden_size")
    # OPT 350M alone projects between a narrower embedding and the blocks.
    plain = fields.count("word_embed_proj_dim", default=hidden) == hidden
    relu = fields.config.get("activation_function", "relu") == "relu"
    inexact = {} if plain else {"exact": False}
    return {**_gpt(fields), "positions": positions, "relu": relu, **inexact}


def _bloom(fields: Fields) -> Traits:
    return {**_gpt(fields), "embedding_norm": True}


def _phi(fields: Fields) -> Traits:
    return {
        **_gpt(fields),
        "rotary": True,
        "block_norms": 1,
        "head_bias": True,
        "tied": fields.flag("tie_word_embeddings", False),
    }


def _falcon(fields: Fields) -> Traits:
    bias = fields.flag("bias", False)
    new = fields.flag("new_decoder_architecture", False)
    one_kv = not new and fields.flag("multi_query", True)
    parallel = fields.flag("parallel_attn", True)
    return {
        "kv_heads": 1 if one_kv else fields.count("num_kv_heads"),
        "rotary": not fields.flag("alibi", False),
        "block_norms": 1 if parallel and not new else 2,
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
        "feed_forward_bias": bias,
        "tied": fields.flag("tie_word_embeddings", True),
    }


def _mpt(fields: Fields) -> Traits:
    return {
        "norm": "layer without bias",
        "feed_forward": fields.count("expansion_ratio", default=4) * fields.count("d_model"),
        "tied": fields.flag("tie_word_embeddings", True),
    }


FAMILIES: dict[str, Callable[[Fields], Traits]] = {
    "bloom": _bloom,
    "cohere": _cohere,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "granite": _llama,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _mixtral,
    "mpt": _mpt,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "opt": _opt,
    "phi": _phi,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _smollm3,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}
