"""Counting real models on the meta device: any architecture that transformers can build."""

import json

import pytest
import torch
import transformers

from zerolab.accounting import InputError
from zerolab.accounting.activations import Batch, Keeping, activations
from zerolab.accounting.configs import FAMILIES, read_config
from zerolab.training.count import Count, count

OTHERS = [
    *("apertus", "arcee", "biogpt", "bitnet", "codegen", "ctrl", "cwm", "diffllama", "ernie4_5"),
    *("exaone", "exaone4", "glm", "glm4", "gpt_oss", "gpt_neox_japanese", "helium", "internlm3"),
    *("minimax", "modernbert-decoder", "nanochat", "olmo3", "olmoe", "openai-gpt", "persimmon"),
    *("phimoe", "qwen2_moe", "seed_oss", "xglm", "granitemoe", "deepseek_v3"),
]
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def config_file(tmp_path, family):
    """The family's own config.json, cut to two layers."""
    config = transformers.AutoConfig.for_model(family)
    for name in LAYERS if family != "gpt_neo" else ():  # which wants as many kinds of attention
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, 2)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:2]
    path = tmp_path / "config.json"
    path.write_text(config.to_json_string(use_diff=False))
    return path


@pytest.mark.parametrize("family", sorted({*FAMILIES, *OTHERS}))
def test_thirty_and_more_architectures_are_counted(tmp_path, family):
    path = config_file(tmp_path, family)
    two, three, four = (count(path, batch=size, sequence=8) for size in (2, 3, 4))
    assert two.parameters == three.parameters > 0
    # Each further sequence keeps the same again.
    assert four.activations - three.activations == three.activations - two.activations > 0
    if family in FAMILIES:
        assert two.parameters == read_config(path).parameters


def test_a_fused_llama_is_the_accountings(tmp_path):
    path = config_file(tmp_path, "llama")
    keeping = Keeping(norm="eager", activation="eager")
    lines = activations(read_config(path), Batch(size=2, sequence=64), keeping)
    assert count(path, batch=2, sequence=64) == Count(
        parameters=read_config(path).parameters, activations=sum(lines.values()), attention="flash"
    )


def test_seventy_billion_parameters_take_no_memory(tmp_path):
    path = tmp_path / "config.json"
    wide = {"hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8}
    path.write_text(json.dumps({"model_type": "llama", "vocab_size": 32_000, **wide, **heads}))
    assert count(path, sequence=4096).parameters == 68_976_648_192


def test_fp32_keeps_more(tmp_path):
    path = config_file(tmp_path, "gpt2")
    assert count(path, sequence=8, element=4).activations > count(path, sequence=8).activations


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"hidden_size": 8}, "its forward cannot be counted: ValueError"),
        ({"model_type": "no_such_thing"}, "its forward cannot be counted: ValueError"),
        ({"model_type": "vit"}, "its forward cannot be counted: ValueError"),
    ],
)
def test_what_cannot_be_counted_is_refused_with_the_reason(tmp_path, config, reason):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match=reason) as caught:
        count(path)
    assert "\n" not in str(caught.value)


def test_another_element_is_refused_before_the_model_is_built(tmp_path):
    with pytest.raises(InputError, match="element: got 3; accepted is 2 or 4 bytes"):
        count(tmp_path / "missing.json", element=3)


def test_code_that_a_config_names_is_neither_asked_about_nor_run(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    elsewhere = {"AutoModelForCausalLM": "somebody/model--modeling.Model"}
    path.write_text(json.dumps({"model_type": "vit", "auto_map": elsewhere}))
    asked = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.append(words) or "y")
    with pytest.raises(InputError, match="its forward cannot be counted: ValueError: .*somebody"):
        count(path)
    assert asked == []


def test_no_weights_are_made(tmp_path):
    with torch.random.fork_rng():
        before = torch.get_rng_state()
        count(config_file(tmp_path, "gpt2"), sequence=8)
        assert torch.equal(torch.get_rng_state(), before)
