"""Shapes of published models, as their papers or their config.json files give them."""

from functools import partial

from zerolab.accounting.errors import unknown_name
from zerolab.accounting.models import Shape

# GPT-2 and its like: LayerNorm, biases everywhere, a learned position embedding, a tied head.
_gpt = partial(
    Shape,
    query_key_value_bias=True,
    attention_output_bias=True,
    feed_forward_bias=True,
    tied=True,
)
# Llama and its like: RMSNorm, a gated feed-forward, rotary positions, no biases.
_llama = partial(Shape, norm="rms", gated=True, rotary=True)
_qwen2 = partial(_llama, query_key_value_bias=True)
_qwen3 = partial(_llama, query_key_norm="head", head_size=128)
_gemma = partial(_llama, tied=True, vocabulary=256_000)


def _gpt3(layers: int, hidden: int, heads: int) -> Shape:
    """Brown et al., arXiv 2005.14165, Table 2.1; the vocabulary is GPT-2's."""
    return _gpt(
        layers=layers,
        hidden=hidden,
        heads=heads,
        feed_forward=4 * hidden,
        vocabulary=50_257,
        positions=2048,
    )


def _gpt2(layers: int, hidden: int, heads: int) -> Shape:
    """Radford et al. 2019, Table 2, and the released config.json files."""
    return _gpt(
        layers=layers,
        hidden=hidden,
        heads=heads,
        feed_forward=4 * hidden,
        vocabulary=50_257,
        positions=1024,
    )


def _opt(layers: int, hidden: int, heads: int) -> Shape:
    """Zhang et al., arXiv 2205.01068, Table 1; the first two of 2050 positions are an offset."""
    return _gpt(
        layers=layers,
        hidden=hidden,
        heads=heads,
        feed_forward=4 * hidden,
        vocabulary=50_272,
        positions=2050,
        relu=True,
    )


def _bloom(layers: int, hidden: int, heads: int) -> Shape:
    """Le Scao et al., arXiv 2211.05100, Table 3: ALiBi instead of learned positions."""
    return _gpt(
        layers=layers,
        hidden=hidden,
        heads=heads,
        feed_forward=4 * hidden,
        vocabulary=250_880,
        embedding_norm=True,
    )


def _pythia(layers: int, hidden: int, heads: int, vocabulary: int) -> Shape:
    """Biderman et al., arXiv 2304.01373, Table 1; GPT-NeoX's layout, with an untied head."""
    return _gpt(
        layers=layers,
        hidden=hidden,
        heads=heads,
        feed_forward=4 * hidden,
        vocabulary=vocabulary,
        rotary=True,
        tied=False,
    )


def _llama2(layers: int, hidden: int, heads: int, kv_heads: int, feed_forward: int) -> Shape:
    """Touvron et al., arXiv 2302.13971 and 2307.09288, and the released config.json files."""
    return _llama(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        feed_forward=feed_forward,
        vocabulary=32_000,
    )


def _llama3(
    layers: int,
    hidden: int,
    heads: int,
    feed_forward: int,
    head_size: int = 128,
    tied: bool = False,
) -> Shape:
    """Grattafiori et al., arXiv 2407.21783, Table 3, and the released config.json files."""
    return _llama(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=8,
        head_size=head_size,
        feed_forward=feed_forward,
        vocabulary=128_256,
        tied=tied,
    )


MODELS = {
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "gpt-3-125m": _gpt3(12, 768, 12),
    "gpt-3-1.3b": _gpt3(24, 2048, 16),
    "gpt-3-6.7b": _gpt3(32, 4096, 32),
    "gpt-3-175b": _gpt3(96, 12_288, 96),
    # Smith et al., arXiv 2201.11990, section 3; GPT-2's vocabulary padded for 8-way tensor
    # parallelism.
    "mt-nlg-530b": _gpt(
        layers=105,
        hidden=20_480,
        heads=128,
        feed_forward=81_920,
        vocabulary=51_200,
        positions=2048,
    ),
    "gpt-neox-20b": _pythia(44, 6144, 64, 50_432),
    # Wang and Komatsuzaki 2021: one norm feeds attention and feed-forward, side by side.
    "gpt-j-6b": Shape(
        layers=28,
        hidden=4096,
        heads=16,
        feed_forward=16_384,
        vocabulary=50_400,
        rotary=True,
        block_norms=1,
        feed_forward_bias=True,
        head_bias=True,
    ),
    "pythia-70m": _pythia(6, 512, 8, 50_304),
    "pythia-1.4b": _pythia(24, 2048, 16, 50_304),
    "pythia-6.9b": _pythia(32, 4096, 32, 50_432),
    "pythia-12b": _pythia(36, 5120, 40, 50_688),
    "opt-125m": _opt(12, 768, 12),
    "opt-1.3b": _opt(24, 2048, 32),
    "opt-13b": _opt(40, 5120, 40),
    "opt-66b": _opt(64, 9216, 72),
    "bloom-560m": _bloom(24, 1024, 16),
    "bloom-7b1": _bloom(30, 4096, 32),
    "bloom-176b": _bloom(70, 14_336, 112),
    "llama-65b": _llama2(80, 8192, 64, 64, 22_016),
    "llama-2-7b": _llama2(32, 4096, 32, 32, 11_008),
    "llama-2-13b": _llama2(40, 5120, 40, 40, 13_824),
    "llama-2-70b": _llama2(80, 8192, 64, 8, 28_672),
    "llama-3-8b": _llama3(32, 4096, 32, 14_336),
    "llama-3-70b": _llama3(80, 8192, 64, 28_672),
    "llama-3.1-405b": _llama3(126, 16_384, 128, 53_248),
    "llama-3.2-1b": _llama3(16, 2048, 32, 8192, head_size=64, tied=True),
    "llama-3.2-3b": _llama3(28, 3072, 24, 8192, tied=True),
    # Zhang et al., arXiv 2401.02385
    "tinyllama-1.1b": _llama2(22, 2048, 32, 4, 5632),
    # Allal et al., arXiv 2502.02737
    "smollm2-135m": _llama(
        layers=30,
        hidden=576,
        heads=9,
        kv_heads=3,
        feed_forward=1536,
        vocabulary=49_152,
        tied=True,
    ),
    # Jiang et al., arXiv 2310.06825 and 2401.04088
    "mistral-7b": _llama2(32, 4096, 32, 8, 14_336),
    "mixtral-8x7b": _llama(
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        feed_forward=14_336,
        vocabulary=32_000,
        experts=8,
        active_experts=2,
    ),
    "mixtral-8x22b": _llama(
        layers=56,
        hidden=6144,
        heads=48,
        kv_heads=8,
        feed_forward=16_384,
        vocabulary=32_000,
        experts=8,
        active_experts=2,
    ),
    # Qwen team, arXiv 2412.15115, and the released config.json files
    "qwen2.5-0.5b": _qwen2(
        layers=24,
        hidden=896,
        heads=14,
        kv_heads=2,
        feed_forward=4864,
        vocabulary=151_936,
        tied=True,
    ),
    "qwen2.5-7b": _qwen2(
        layers=28,
        hidden=3584,
        heads=28,
        kv_heads=4,
        feed_forward=18_944,
        vocabulary=152_064,
    ),
    "qwen2.5-32b": _qwen2(
        layers=64,
        hidden=5120,
        heads=40,
        kv_heads=8,
        feed_forward=27_648,
        vocabulary=152_064,
    ),
    "qwen2.5-72b": _qwen2(
        layers=80,
        hidden=8192,
        heads=64,
        kv_heads=8,
        feed_forward=29_568,
        vocabulary=152_064,
    ),
    # Qwen team, arXiv 2505.09388, and the released config.json files
    "qwen3-0.6b": _qwen3(
        layers=28,
        hidden=1024,
        heads=16,
        kv_heads=8,
        feed_forward=3072,
        vocabulary=151_936,
        tied=True,
    ),
    "qwen3-8b": _qwen3(
        layers=36,
        hidden=4096,
        heads=32,
        kv_heads=8,
        feed_forward=12_288,
        vocabulary=151_936,
    ),
    "qwen3-30b-a3b": _qwen3(
        layers=48,
        hidden=2048,
        heads=32,
        kv_heads=4,
        feed_forward=768,
        vocabulary=151_936,
        experts=128,
        active_experts=8,
    ),
    # Gemma team, arXiv 2403.08295 and 2408.00118
    "gemma-2b": _gemma(
        layers=18, hidden=2048, heads=8, kv_heads=1, head_size=256, feed_forward=16_384
    ),
    "gemma-7b": _gemma(layers=28, hidden=3072, heads=16, head_size=256, feed_forward=24_576),
    "gemma-2-9b": _gemma(
        layers=42,
        hidden=3584,
        heads=16,
        kv_heads=8,
        head_size=256,
        feed_forward=14_336,
        block_norms=4,
    ),
    "gemma-2-27b": _gemma(
        layers=46,
        hidden=4608,
        heads=32,
        kv_heads=16,
        head_size=128,
        feed_forward=36_864,
        block_norms=4,
    ),
    # Microsoft's released config.json files; Abdin et al., arXiv 2404.14219 and 2412.08905
    "phi-2": _gpt(
        layers=32,
        hidden=2560,
        heads=32,
        feed_forward=10_240,
        vocabulary=51_200,
        rotary=True,
        block_norms=1,
        head_bias=True,
        tied=False,
    ),
    "phi-3-mini": _llama(layers=32, hidden=3072, heads=32, feed_forward=8192, vocabulary=32_064),
    "phi-4": _llama(
        layers=40,
        hidden=5120,
        heads=40,
        kv_heads=10,
        feed_forward=17_920,
        vocabulary=100_352,
    ),
    # Almazrouei et al., arXiv 2311.16867: one key-value head, parallel blocks
    "falcon-7b": Shape(
        layers=32,
        hidden=4544,
        heads=71,
        kv_heads=1,
        feed_forward=18_176,
        vocabulary=65_024,
        rotary=True,
        block_norms=1,
        tied=True,
    ),
}


def model(name: str) -> Shape:
    """The shape of that name. Raises InputError, nearest name first, for any other."""
    if name not in MODELS:
        raise unknown_name("--model", name, MODELS)
    return MODELS[name]
