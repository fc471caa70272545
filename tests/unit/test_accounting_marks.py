"""Every line of a memory account says how far it can be trusted."""

from dataclasses import replace

import pytest
from hypothesis import given
from setups import LLAMA, setups

from zerolab.accounting.activations import Keeping
from zerolab.accounting.beside import beside
from zerolab.accounting.catalogue import model
from zerolab.accounting.marks import BESIDE, MARKS, mark
from zerolab.accounting.moments import moments

STATES = ("parameters", "gradients", "optimizer")


@given(setups)
def test_every_part_of_every_moment_has_a_mark(setup):
    for moment in moments(setup):
        for part in moment.parts:
            assert mark(part, setup) in MARKS
            assert mark(part, setup) != "rule of thumb"  # ranges are never part of a total
    for allowance in beside(10**9, ranks=2):
        assert mark(allowance.name, setup) == "rule of thumb"


def test_what_is_counted_is_exact_and_what_is_assumed_is_not():
    for state in STATES:
        assert mark(state, LLAMA) == "exact"
    assert mark("activations", LLAMA) == mark("recomputed", LLAMA) == "exact"
    for part in ("gathered", "prefetched", "gradient buffers", "communication buffers", "logits"):
        assert mark(part, LLAMA) == "formula"
    assert set(BESIDE) == {a.name for a in beside(10**9, ranks=2)}


def test_what_no_test_counts_is_a_formula():
    split = replace(LLAMA, batch=replace(LLAMA.batch, tensor_parallel=2))
    assert mark("parameters", split) == mark("activations", split) == "formula"
    for name in ("mixtral-8x7b", "gemma-2-9b", "opt-66b", "bloom-176b", "falcon-7b"):
        setup = replace(LLAMA, shape=model(name))
        assert mark("activations", setup) == "formula"
        assert mark("optimizer", setup) == "exact"
    assert mark("activations", replace(LLAMA, keeping=Keeping(dropout=True))) == "formula"


def test_an_unknown_part_has_no_mark():
    with pytest.raises(KeyError):
        mark("miscellaneous", LLAMA)
