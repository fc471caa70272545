"""Activations against what autograd really saves, to the byte, and against the literature."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from zerolab.accounting import InputError
from zerolab.accounting.activations import (
    HUGGING_FACE,
    INDEX,
    Batch,
    Keeping,
    activations,
    block,
    embedding,
)
from zerolab.accounting.catalogue import MODELS, model
from zerolab.accounting.configs import shape_of
from zerolab.accounting.korthikanti import layer_bytes
from zerolab.runtime.memory import MemoryMeter, tag
from zerolab.runtime.saved import SavedTensors
from zerolab.training.gpt import GPT, GPTShape

DATA = Path(__file__).parent.parent / "data"

# -- the real classes of transformers, on the meta device, with fused parts put in their place ---


def flash(query, key, value, scaling):
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, 0.0, True, scale=scaling)[0].transpose(1, 2)


def repeated(query, states):
    copies = query.shape[1] // states.shape[1]
    return states if copies == 1 else states.repeat_interleave(copies, dim=1)


def attention(repeat, recompute):
    def core(query, key, value, scaling):
        if repeat:
            key, value = repeated(query, key), repeated(query, value)
        return flash(query, key, value, scaling)

    def forward(module, query, key, value, mask, scaling=None, **_):
        if recompute:
            return checkpoint(core, query, key, value, scaling, use_reentrant=True), None
        return core(query, key, value, scaling), None

    return forward


AttentionInterface.register("native on meta", attention(repeat=False, recompute=False))
AttentionInterface.register("repeated on meta", attention(repeat=True, recompute=False))
AttentionInterface.register("selective on meta", attention(repeat=True, recompute=True))


class FusedNorm(torch.autograd.Function):
    """As CUDA's fused RMSNorm: the input and one fp32 number a row."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)


class FusedGate(torch.autograd.Function):
    """As a SwiGLU kernel: both inputs, and the activation is computed again in backward."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return gate * up


class FusedLoss(torch.autograd.Function):
    """As a cross-entropy kernel: the logits in their own precision and a sum for each row."""

    @staticmethod
    def forward(ctx, logits, labels):
        sums = logits.new_empty(logits.shape[0], dtype=torch.float32)
        ctx.save_for_backward(logits, sums, labels)
        return sums.sum()


def fuse(real, keeping):
    for module in real.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm") and keeping.norm == "fused":
            module.forward = lambda x, m=module: FusedNorm.apply(x, m.weight)
        if hasattr(module, "gate_proj") and keeping.activation == "fused":
            module.forward = lambda x, m=module: m.down_proj(
                FusedGate.apply(m.gate_proj(x), m.up_proj(x))
            )
        if name == "GPT2MLP" and keeping.activation == "fused":
            module.act = torch.nn.GELU(approximate="tanh")


def attention_name(keeping):
    if keeping.attention != "flash":
        return "eager"
    if keeping.recompute == "selective":
        return "selective on meta"
    return "repeated on meta" if keeping.repeated_kv else "native on meta"


def saved_by_autograd(config, batch, keeping):
    """Bytes that the real class saves for backward in one forward with its loss."""
    keys = dict(config)
    hugging_face = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
    hugging_face._attn_implementation = attention_name(keeping)
    dtype = {2: torch.bfloat16, 4: torch.float32}[batch.element]
    with torch.device("meta"):
        real = transformers.AutoModelForCausalLM.from_config(hugging_face, dtype=dtype).train()
        ids = torch.zeros(batch.size, batch.sequence, dtype=torch.long)
        mask = torch.zeros(batch.size, 1, batch.sequence, batch.sequence, dtype=dtype)
        fuse(real, keeping)
        if keeping.recompute == "full":
            real.activation_checkpointing_enable({"use_reentrant": True})
        with SavedTensors([*real.parameters(), *real.buffers(), mask]) as saved:
            hidden = real.base_model(
                ids, attention_mask=mask if keeping.attention != "flash" else None, use_cache=False
            ).last_hidden_state.flatten(0, 1)
            loss_of(real.lm_head, hidden, ids.flatten().clone(), keeping)
    return saved.bytes


def loss_of(head, hidden, labels, keeping):
    match keeping.loss:
        case "eager":
            return torch.nn.functional.cross_entropy(head(hidden).float(), labels)
        case "fused":
            return FusedLoss.apply(head(hidden), labels)
        case "chunked":
            pieces = [
                checkpoint(
                    lambda h, y: torch.nn.functional.cross_entropy(head(h).float(), y),
                    *piece,
                    use_reentrant=True,
                )
                for piece in zip(hidden.split(8), labels.split(8), strict=True)
            ]
            return sum(pieces)


def expected(config, batch, keeping):
    shape = shape_of(config)
    total = sum(activations(shape, batch, keeping).values())
    if keeping.recompute == "full":
        # Every checkpoint holds them as an argument; autograd itself does not save them.
        total -= embedding(shape, batch, keeping).get("cosines and sines", 0)
    return total


def llama(hidden, heads, kv_heads, feed_forward, family="llama", **more):
    return {
        "model_type": family,
        "num_hidden_layers": 2,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": feed_forward,
        "vocab_size": 40,
        **more,
    }


def gpt2(hidden, heads, feed_forward=None):
    return {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": hidden,
        "n_head": heads,
        "n_inner": feed_forward,
        "n_positions": 64,
        "vocab_size": 40,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **{f"{where}_pdrop": 0 for where in ("attn", "embd", "resid")},
    }


SHAPES = {
    "gpt2": gpt2(64, 4),
    "gpt2, one head": gpt2(24, 1),
    "gpt2, wide": gpt2(48, 6, 100),
    "llama, many heads": llama(64, 4, 4, 96),
    "llama, grouped": llama(64, 8, 2, 172),
    "llama, one key-value head": llama(96, 6, 1, 64),
    "llama, narrow heads": llama(64, 4, 2, 96, head_dim=8),
    "llama, wide heads": llama(64, 4, 2, 96, head_dim=32),
    "llama, tied": llama(32, 2, 1, 72, tie_word_embeddings=True),
    "llama, biases": llama(64, 4, 2, 96, attention_bias=True, mlp_bias=True),
    "mistral": llama(64, 4, 2, 112, "mistral"),
    "qwen2": llama(56, 7, 1, 120, "qwen2"),
    "qwen3": llama(64, 4, 2, 96, "qwen3", head_dim=24),
    "smollm3": llama(64, 4, 2, 96, "smollm3", pad_token_id=0, bos_token_id=0, eos_token_id=0),
}


PARTS = list(product(("fused", "eager"), ("fused", "eager"), ("eager", "fused", "chunked")))
# Every policy on one model of each kind; on the others, each value of each part at least once.
THOROUGH = ("gpt2", "llama, grouped", "qwen3")
FEW = [("fused", "fused", "eager"), ("eager", "fused", "fused"), ("fused", "eager", "chunked")]


def policies(name, attention):
    recomputations = ("none", "selective", "full") if attention == "flash" else ("none", "full")
    for parts in PARTS if name in THOROUGH else FEW:
        for recompute in recomputations:
            norm, activation, loss = parts
            yield Keeping(
                attention=attention,
                norm=norm,
                activation=activation,
                loss=loss,
                recompute=recompute,
                repeated_kv=attention != "flash",
            )


def assert_equal_to_autograd(config, batch, keeping):
    assert expected(config, batch, keeping) == saved_by_autograd(config, batch, keeping), keeping


@pytest.mark.parametrize("name", SHAPES)
def test_flash_attention_equals_autograd_to_the_byte(name):
    for keeping in policies(name, "flash"):
        assert_equal_to_autograd(SHAPES[name], Batch(size=2, sequence=24), keeping)


@pytest.mark.parametrize("name", SHAPES)
def test_plain_attention_equals_autograd_to_the_byte(name):
    # Llama and its like take the softmax in fp32; GPT-2 does not.
    for keeping in policies(name, "plain" if name.startswith("gpt2") else "eager"):
        assert_equal_to_autograd(SHAPES[name], Batch(size=2, sequence=24), keeping)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_fp32_and_other_sizes_of_batch(name, attention):
    # One sequence and one key-value head are left out: there the copies are views.
    one_head = SHAPES[name].get("num_key_value_heads") == 1
    for size, sequence in ((2 if one_head else 1, 16), (3, 8)):
        batch = Batch(size=size, sequence=sequence, element=4)
        keeping = replace(HUGGING_FACE, attention=attention)
        assert_equal_to_autograd(SHAPES[name], batch, keeping)


REAL = {
    entry["name"]: entry["config"]
    for entry in json.loads((DATA / "models.json").read_text())["models"]
}


@pytest.mark.parametrize(
    "name",
    ["llama-2-7b", "llama-2-70b", "llama-3-8b", "mistral-7b", "qwen2.5-7b", "tinyllama-1.1b"],
)
@pytest.mark.parametrize("keeping", [Keeping(), HUGGING_FACE], ids=["fused", "hugging face"])
def test_real_models_at_full_size(name, keeping):
    batch = Batch(size=1, sequence=4096)
    assert_equal_to_autograd(REAL[name], batch, keeping)


# -- the GPT of this project, measured ---


@pytest.mark.parametrize(
    "gpt",
    [
        GPTShape(layers=2),
        GPTShape(layers=3, heads=2, width=48, vocabulary=100, context=32, tied=True),
    ],
)
def test_live_bytes_of_our_gpt_are_the_lines(gpt):
    shape, batch = gpt.on_paper, Batch(size=3, sequence=20, element=4)
    lines = sum(activations(shape, batch, Keeping()).values())
    module = GPT(gpt)
    assert shape.parameters == sum(parameter.numel() for parameter in module.parameters())
    for parameter in module.parameters():
        tag(parameter, "parameters")
    tokens = torch.zeros(batch.size, batch.sequence, dtype=torch.long)
    with MemoryMeter() as meter:
        loss = module(tokens, tokens.clone())
        live = meter.live["activations"]
    # The token ids were there before, and the loss is a number of its own.
    assert live == lines - INDEX * batch.tokens + loss.element_size()


# -- the literature ---

PUBLISHED = json.loads((DATA / "activations.json").read_text())
FORMS = ("none", "tensor", "tensor+sequence", "tensor+selective", "tensor+sequence+selective")


@pytest.mark.parametrize("form", [*FORMS, "full_recompute"])
def test_korthikanti_formulas_are_the_published_ones(form):
    for s, b, h, a, t in ((2048, 1, 12_288, 96, 8), (4096, 3, 4096, 32, 1), (128, 2, 256, 4, 2)):
        published = eval(PUBLISHED[form], {"s": s, "b": b, "h": h, "a": a, "t": t})
        assert layer_bytes(form, s, b, h, a, t) == published


def test_korthikanti_score_terms_of_gpt_3_and_mt_nlg():
    for name, printed in (("gpt-3-175b", 80), ("mt-nlg-530b", 64)):
        shape = model(name)
        s, h, a = 2048, shape.hidden, shape.heads
        scores = layer_bytes("none", s, 1, h, a) - 34 * s * h
        assert scores / (s * h) == printed == PUBLISHED["checks"][f"5as/h for {name[:-5].upper()}"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [1, 8])
def test_our_lines_become_korthikantis_under_his_policy(form, ranks):
    shape = model("gpt-3-175b")
    keeping = Keeping(
        attention="plain",
        dropout=True,
        recompute="selective" if "selective" in form else "none",
    )
    parallel = ranks if "tensor" in form else 1
    batch = Batch(
        size=1, sequence=2048, tensor_parallel=parallel, sequence_parallel="sequence" in form
    )
    # He leaves out what the norms keep beside their inputs: 8 bytes a token and norm.
    statistics = batch.outside(2 * 8 * batch.tokens)
    ours = sum(block(shape, batch, keeping).values()) - statistics
    assert ours == layer_bytes(form, 2048, 1, shape.hidden, shape.heads, parallel)


def test_full_recomputation_keeps_the_input_of_a_layer():
    shape = model("gpt-3-175b")
    lines = block(shape, Batch(size=1, sequence=2048), Keeping(recompute="full"))
    assert sum(lines.values()) == layer_bytes("full_recompute", 2048, 1, shape.hidden, shape.heads)


@pytest.mark.parametrize(
    ("name", "keeping", "factor", "gib"),
    [
        ("llama-2-7b", HUGGING_FACE, 45.53, 23.38),
        ("llama-2-7b", Keeping(activation="eager"), 37.53, 19.32),
        ("llama-2-7b", Keeping(), 32.16, 16.63),
        ("llama-2-70b", Keeping(), 33.53, 84.45),
    ],
)
def test_bytes_a_token_and_width_by_policy(name, keeping, factor, gib):
    batch, shape = Batch(size=1, sequence=4096), model(name)
    layer = sum(block(shape, batch, keeping).values())
    assert layer / (batch.tokens * shape.hidden) == pytest.approx(factor, abs=0.005)
    total = sum(activations(shape, batch, keeping).values())
    assert total / 2**30 == pytest.approx(gib, abs=0.005)


# -- laws ---

batches = st.builds(
    Batch,
    size=st.integers(1, 64),
    sequence=st.integers(1, 10**5),
    element=st.sampled_from([2, 4]),
    tensor_parallel=st.integers(1, 64),
    sequence_parallel=st.booleans(),
)
keepings = st.builds(
    Keeping,
    attention=st.sampled_from(["flash", "plain", "eager"]),
    norm=st.sampled_from(["fused", "eager"]),
    activation=st.sampled_from(["fused", "eager"]),
    loss=st.sampled_from(["eager", "fused", "chunked"]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    repeated_kv=st.booleans(),
    dropout=st.booleans(),
)
shapes = st.sampled_from(sorted(MODELS)).map(model)


def lines_of(shape, batch, keeping):
    return activations(shape, batch, keeping)


@given(shapes, batches, keepings, st.integers(1, 64))
def test_more_tensor_parallel_ranks_never_keep_more(shape, batch, keeping, more):
    wider = replace(batch, tensor_parallel=batch.tensor_parallel * more)
    before, after = lines_of(shape, batch, keeping), lines_of(shape, wider, keeping)
    assert all(after[line] <= before[line] for line in before)


@given(shapes, batches, keepings)
def test_sequence_parallelism_never_keeps_more(shape, batch, keeping):
    on, off = (replace(batch, sequence_parallel=use) for use in (True, False))
    before, after = lines_of(shape, off, keeping), lines_of(shape, on, keeping)
    assert all(after[line] <= before[line] for line in before)


@given(shapes, batches, keepings)
def test_recomputation_never_keeps_more(shape, batch, keeping):
    none, selective, full = (
        lines_of(shape, batch, replace(keeping, recompute=recompute))
        for recompute in ("none", "selective", "full")
    )
    assert all(full[line] <= selective[line] <= none[line] for line in none)


@given(shapes, batches, keepings)
def test_fusing_never_keeps_more(shape, batch, keeping):
    fused = replace(keeping, norm="fused", activation="fused", attention="flash", loss="chunked")
    before, after = lines_of(shape, batch, keeping), lines_of(shape, batch, fused)
    assert all(after[line] <= before[line] for line in before)


@given(shapes, batches, keepings, st.integers(1, 100))
def test_more_tokens_never_keep_less(shape, batch, keeping, more):
    before = lines_of(shape, batch, keeping)
    for larger in (
        replace(batch, size=batch.size + more),
        replace(batch, sequence=batch.sequence + more),
    ):
        after = lines_of(shape, larger, keeping)
        assert all(before[line] <= after[line] for line in before)


def test_bad_batches_are_named():
    with pytest.raises(InputError, match=r"^--batch: got 0; accepted is a whole number from 1"):
        Batch(size=0, sequence=1)
    with pytest.raises(InputError, match=r"^--sequence: got -1; "):
        Batch(size=1, sequence=-1)


def test_ids_are_eight_bytes():
    assert torch.tensor([1]).element_size() == INDEX
