"""The GPT: its size by formula, its causality, its start."""

import math

import pytest
import torch

from zerolab.training.gpt import GPT, GPT_34M, GPTShape

pytestmark = pytest.mark.quick


def count(model):
    return sum(p.numel() for p in model.parameters())  # tied tensors are listed once


@pytest.mark.parametrize(
    "shape",
    [
        GPTShape(),
        GPTShape(vocabulary=50, context=7, layers=3, heads=2, width=6),
        GPTShape(vocabulary=50, context=7, layers=1, heads=1, width=5, tied=True),
    ],
)
def test_the_formula_counts_what_the_module_holds(shape):
    assert shape.parameters == count(GPT(shape))


def test_the_34m_shape_is_that_of_the_benchmarks():
    with torch.device("meta"):
        model = GPT(GPT_34M)
    assert GPT_34M.parameters == count(model) == 33_674_240
    assert model.head.weight is not model.token_embedding.weight


def test_no_token_sees_what_comes_after_it():
    torch.manual_seed(0)
    model = GPT(GPTShape(vocabulary=11, context=8, layers=2, heads=2, width=8))
    tokens = torch.randint(11, (2, 8))
    later = tokens.clone()
    later[:, 5:] = (later[:, 5:] + 1) % 11
    before, after = model(tokens), model(later)
    assert before.shape == (2, 8, 11)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_an_untrained_gpt_guesses_evenly():
    torch.manual_seed(0)
    tokens = torch.randint(256, (4, 128))
    loss = GPT(GPTShape())(tokens, tokens.roll(-1, 1))
    assert loss.shape == ()
    assert loss.item() == pytest.approx(math.log(256), abs=0.1)


def test_the_residual_stream_starts_as_gpt2_started_it():
    torch.manual_seed(0)
    model = GPT(GPTShape(layers=8))
    assert model.blocks[3].mlp.up.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks[3].mlp.projection.weight.std().item() == pytest.approx(0.005, rel=0.05)
    assert model.final_norm.weight.eq(1).all()
    assert model.blocks[0].attention.qkv.bias.eq(0).all()


def test_a_longer_sequence_than_the_context_is_refused():
    model = GPT(GPTShape(vocabulary=11, context=8, layers=1, heads=1, width=4))
    with pytest.raises(ValueError, match=r"9 tokens is longer than the context of 8"):
        model(torch.zeros(1, 9, dtype=torch.long))


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"width 10 does not divide into 3 heads"):
        GPTShape(width=10, heads=3)
    with pytest.raises(ValueError, match=r"at least 1"):
        GPTShape(layers=0)
