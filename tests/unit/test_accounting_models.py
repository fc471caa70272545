"""Parameter counts against the published ones and against the real classes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from zerolab.accounting import InputError
from zerolab.accounting.catalogue import MODELS, model
from zerolab.accounting.configs import FAMILIES, read_config, shape_of
from zerolab.accounting.models import Shape

DATA = Path(__file__).parent.parent / "data"
PUBLISHED = json.loads((DATA / "models.json").read_text())["models"]
CONFIGS = [entry for entry in PUBLISHED if entry["config"]]


def by_name(entry):
    return entry["name"]


def count_on_meta(config):
    """Elements of the real class's parameters: no weights are made."""
    with torch.device("meta"):
        real = transformers.AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in real.parameters())


def test_every_model_of_the_catalogue_has_a_published_count():
    assert len(MODELS) >= 30
    assert sorted(MODELS) == sorted(map(by_name, PUBLISHED))


@pytest.mark.parametrize("entry", PUBLISHED, ids=by_name)
def test_count_is_the_published_one(entry):
    ours = model(entry["name"]).parameters
    if isinstance(entry["published"], int):
        assert ours == entry["published"]
    else:
        printed, unit = float(entry["published"][:-1]), entry["published"][-1]
        # Papers round, GPT-3's 174.6 billion to "175.0B".
        assert ours / {"M": 1e6, "B": 1e9}[unit] == pytest.approx(printed, rel=0.015)


@pytest.mark.parametrize("entry", CONFIGS, ids=by_name)
def test_catalogue_and_config_json_and_real_class_agree(entry):
    shape = shape_of(entry["config"])
    assert shape == model(entry["name"])
    keys = dict(entry["config"])
    config = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
    assert count_on_meta(config) == shape.parameters


@pytest.mark.parametrize("family", FAMILIES)
def test_every_exact_family_equals_its_real_class(family):
    config = transformers.AutoConfig.for_model(family)
    shape = shape_of(config.to_dict())
    assert shape.exact
    assert shape.parameters == count_on_meta(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_is_tied_by_default_where_the_real_class_ties_it(family):
    config = transformers.AutoConfig.for_model(family)
    said = config.to_dict()
    said.pop("tie_word_embeddings", None)
    assert shape_of(said).tied == config.tie_word_embeddings


@pytest.mark.parametrize(
    ("family", "option"),
    [
        ("phi", {"qk_layernorm": True}),
        ("opt", {"word_embed_proj_dim": 512}),
        ("cohere", {"use_qk_norm": True}),
    ],
)
def test_options_that_are_not_counted_are_said_to_be(family, option):
    config = transformers.AutoConfig.for_model(family, **option)
    shape = shape_of(config.to_dict())
    assert not shape.exact
    assert shape.parameters != count_on_meta(config)


def test_units_sum_to_the_whole_and_are_the_blocks():
    for shape in MODELS.values():
        sizes = shape.unit_sizes
        assert len(sizes) == shape.layers + 2
        assert len(set(sizes[1:-1])) == 1


def test_experts_that_a_token_skips_are_not_active():
    # Jiang et al., arXiv 2401.04088: 47B parameters, of which a token uses 13B.
    shape = model("mixtral-8x7b")
    assert shape.parameters / 1e9 == pytest.approx(47, abs=0.5)
    assert shape.active_parameters / 1e9 == pytest.approx(13, abs=0.5)
    assert model("llama-2-7b").active_parameters == model("llama-2-7b").parameters


def test_unknown_family_is_read_with_llamas_layout_and_marked():
    config = dict(CONFIGS[0]["config"], model_type="brand_new")
    assert not shape_of(config).exact
    llama = next(e["config"] for e in CONFIGS if e["name"] == "llama-2-7b")
    assumed = shape_of(dict(llama, model_type="brand_new"))
    assert replace(assumed, exact=True) == model("llama-2-7b")


def test_multi_modal_config_is_read_for_its_language_part(tmp_path):
    llama = next(e["config"] for e in CONFIGS if e["name"] == "llama-3-8b")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llava", "text_config": llama, "vision_config": {}}))
    assert read_config(path) == model("llama-3-8b")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file or directory"),
        ("seven", "this is not JSON"),
        ("[1, 2]", "this is not a JSON object"),
        ("{}", "no num_hidden_layers or n_layer or n_layers or num_layers"),
        ('{"num_hidden_layers": 0}', "num_hidden_layers is 0"),
        ('{"num_hidden_layers": "32"}', "num_hidden_layers is '32'"),
        ('{"num_hidden_layers": 32, "hidden_size": -1}', "hidden_size is -1"),
        ('{"num_hidden_layers": 32, "hidden_size": 1e30}', "hidden_size is 1e[+]30"),
        ('{"num_hidden_layers": NaN}', "num_hidden_layers is nan"),
        (b"\xff\xfe\x00", "this is not JSON"),
    ],
)
def test_a_file_that_is_no_config_is_refused_with_the_reason(tmp_path, text, reason):
    path = tmp_path / "config.json"
    if isinstance(text, bytes):
        path.write_bytes(text)
    elif text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=f"^--config: got '.*'; accepted is .*{reason}") as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


NAMES = sorted({name for entry in CONFIGS for name in entry["config"]} - {"model_type"})
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 4096), st.text(max_size=3), st.floats()
)


@given(st.sampled_from(CONFIGS), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3))
def test_any_change_to_a_config_gives_a_shape_or_the_one_error(entry, changes):
    try:
        shape = shape_of({**entry["config"], **changes})
    except InputError:
        return
    assert isinstance(shape, Shape)
    assert shape.parameters > 0


def test_unknown_model_names_the_nearest():
    with pytest.raises(
        InputError, match=r"^--model: got 'llama2-7b'; accepted is one of llama-2-7b"
    ):
        model("llama2-7b")
