"""Architectures that people train, under every strategy, against one process."""

import gc
import re
import warnings
from collections import Counter
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from zoo import LAYERS, ZOO, Batch, loss_of

from zerolab.accounting.memory import ModelStates, persistent_states
from zerolab.parallel import STRATEGIES, ShardedAdam
from zerolab.parallel.units import find_units, parameter_owner
from zerolab.runtime.memory import MemoryMeter

GLOBAL_BATCH = 12  # divides by 2, 3 and 4 ranks
STEPS = 3
# Some gradients are zero but for rounding: those of a key's bias, say. An eps above that keeps Adam
# from dividing the rounding by its own size.
ADAM = {"lr": 1e-2, "eps": 1e-4}
# What a strategy has to treat specially: ties, a layer applied many times, an encoder and a
# decoder, experts, parameters that are no module's own, and the plainest.
CHOSEN = ("GPT-2", "ALBERT", "T5", "Mixtral", "wav2vec 2.0", "LSTM")
# Two ranks under every strategy; more of them under the one that does most, the chosen under all.
CASES = [
    (ranks, name, strategy)
    for ranks in (2, 3, 4)
    for name in ZOO
    for strategy in STRATEGIES
    if ranks == 2 or strategy == "zero3" or name in CHOSEN
]


def batch(name: str, step: int, rank: int = 0, ranks: int = 1) -> Batch:
    """A rank's slice of the step's global batch."""
    torch.manual_seed(step)
    own = slice(rank * GLOBAL_BATCH // ranks, (rank + 1) * GLOBAL_BATCH // ranks)
    return {key: value[own] for key, value in ZOO[name].batch(GLOBAL_BATCH).items()}


def build(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return ZOO[name].build()


@cache
def train_alone(name: str) -> dict[str, Tensor]:
    """A few steps of plain torch in one process: the parameters after them."""
    module = build(name)
    optimizer = torch.optim.AdamW(module.parameters(), **ADAM)
    for step in range(STEPS):
        loss_of(module(**batch(name, step))).backward()
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)  # as the strategies count it
        optimizer.step()
        optimizer.zero_grad()
    return module.state_dict()


def train(
    rank: int, ranks: int, name: str, strategy: str, units: list[str] | None = None
) -> tuple[dict[str, Tensor], ModelStates, ModelStates]:
    """The same steps on one of several ranks: parameters, and persistent bytes as measured between
    backward and step, and by the formula."""
    gc.collect()  # the model before this one
    module = build(name, seed=rank)  # rank 0's parameters count
    with MemoryMeter() as meter:
        model = STRATEGIES[strategy](module, units=units)
        optimizer = ShardedAdam(model, **ADAM)
        for step in range(STEPS):
            loss_of(model(**batch(name, step, rank, ranks))).backward()
            states = {kind: meter.live[kind] for kind in ("parameters", "gradients", "optimizer")}
            optimizer.step()
            optimizer.zero_grad()
    trained = persistent_states(model.unit_sizes, strategy, ranks, "fp32")
    stored = persistent_states([unit.numel for unit in model.units], strategy, ranks, "fp32")
    predicted = ModelStates(stored.parameters, trained.gradients, trained.optimizer)
    return model.full_state_dict(), ModelStates(**states), predicted


@pytest.mark.parametrize(("ranks", "name", "strategy"), CASES)
def test_architecture(world_of, ranks, name, strategy):
    before, expected = build(name).state_dict(), train_alone(name)
    results = world_of(ranks).run(train, ranks, name, strategy)
    first = results[0][0]
    assert first.keys() == expected.keys()
    assert any((before[key] - value).abs().max() > 1e-3 for key, value in first.items())
    for parameters, persistent, predicted in results:
        for key, value in expected.items():
            torch.testing.assert_close(parameters[key], value, rtol=0, atol=1e-5, msg=key)
            assert parameters[key].equal(first[key]), key
        assert persistent == predicted


# One layer applied many times is most of ALBERT, whatever is done; torch's attention layer is most
# of a model that is little else.
FEW_BLOCKS = ("ALBERT", "LSTM", "GRU", "nn.MultiheadAttention")


def largest_share(module: nn.Module, names: list[str] | None = None) -> float:
    """The part of a module's parameters that the largest of its units holds."""
    units = find_units(module, names)
    owned = Counter[str]()
    for name, parameter in module.named_parameters():
        owned[parameter_owner(name, units)] += parameter.numel()
    return max(owned.values()) / owned.total()


@pytest.mark.parametrize("name", [name for name in ZOO if name not in FEW_BLOCKS])
def test_units_are_found_without_being_named(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert largest_share(build(name)) < 0.5


def test_a_giant_unit_is_warned_of_with_names_that_serve(world_of):
    module = build("ALBERT")
    with pytest.warns(UserWarning, match="holds 72% of all parameters") as warned:
        assert largest_share(module) > 0.7
    (names,) = re.findall(r"units=\[\"(.*)\"\]", str(warned[0].message))
    assert largest_share(module, [names]) < 0.5
    expected = train_alone("ALBERT")
    for parameters, *_ in world_of(2).run(train, 2, "ALBERT", "zero3", units=[names]):
        assert max((parameters[key] - expected[key]).abs().max() for key in expected) <= 1e-5


def test_no_warning_where_nothing_smaller_can_be_named():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("LSTM", "GRU", "nn.MultiheadAttention"):
            find_units(build(name))


def test_a_star_names_one_part_of_a_name():
    named = find_units(build("GPT-2"), ["transformer.h.*"])
    assert list(named) == ["", *(f"transformer.h.{layer}" for layer in range(LAYERS))]


def test_units_that_are_never_called_are_refused():
    with pytest.raises(ValueError, match="'transformer.h' is a ModuleList, which is not called"):
        find_units(build("GPT-2"), ["transformer.h"])
