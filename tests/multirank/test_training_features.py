"""What training loops do beyond forward, backward and step, against one process."""

import sys
import warnings
from contextlib import nullcontext

import pytest
import reference
import torch
from reference import difference
from torch import nn
from torch.nn import functional as F

STRATEGIES = ("ddp", "zero1", "zero2", "zero3")
RANKS = (2, 3, 4)


def strategies():
    from zerolab.parallel import STRATEGIES

    return STRATEGIES


# -- optimizers, groups, schedulers --------------------------------------------------------------

# A key's bias has no gradient but rounding. Without an eps far above that, dividing by its own size
# makes whole steps of it, in one process as in several, each in another direction.
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-3}),
    "Adam": (torch.optim.Adam, {"lr": 1e-3, "amsgrad": True}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 1e-2, "eps": 1e-3}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-3, "eps": 1e-3}),
}


def grouped(module: nn.Module) -> list[dict]:
    """Weight decay for matrices only, and another learning rate for the head: three groups."""
    named = dict(module.named_parameters())
    head = [p for name, p in named.items() if name.startswith("head")]
    matrices = [p for n, p in named.items() if p.dim() > 1 and not n.startswith("head")]
    vectors = [p for name, p in named.items() if p.dim() == 1]
    return [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
        {"params": head, "lr": 5e-4},
    ]


def optimize(rank: int, ranks: int, strategy: str, name: str, with_groups: bool):
    """Ten steps with a scheduler; under plain torch where `strategy` is empty."""
    torch.manual_seed(0)
    module = reference.GPT(reference.SHAPE)
    groups = grouped(module) if with_groups else None
    optimizer_class, arguments = OPTIMIZERS[name]
    if strategy:
        from zerolab.parallel import ShardedOptimizer

        model = strategies()[strategy](module)
        optimizer = ShardedOptimizer(model, optimizer_class, groups, **arguments)
    else:
        model, optimizer = module, optimizer_class(groups or module.parameters(), **arguments)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    for step in range(reference.STEPS):
        model(*reference.batch(step, rank, ranks)).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return model.full_state_dict() if strategy else model.state_dict()


@pytest.mark.parametrize(
    ("name", "with_groups"), [*((name, False) for name in OPTIMIZERS), ("AdamW", True)]
)
@pytest.mark.parametrize(("ranks", "strategy"), [(2, "zero1"), (3, "zero3"), (4, "zero2")])
def test_any_element_wise_optimizer(world_of, ranks, strategy, name, with_groups):
    expected = optimize(0, 1, "", name, with_groups)
    for parameters in world_of(ranks).run(optimize, ranks, strategy, name, with_groups):
        assert difference(parameters, expected) <= 1e-5


def step_with_an_optimizer_built_too_early(rank: int) -> None:
    module = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    model = strategies()["zero3"](module)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def test_an_optimizer_of_replaced_parameters_is_detected(world_of):
    with pytest.raises(Exception, match="built on the parameters of a module that is sharded"):
        world_of(2).run(step_with_an_optimizer_built_too_early)


def wrong_groups(rank: int) -> None:
    from zerolab import ShardedAdam

    module = nn.Linear(3, 3)
    foreign, before = nn.Linear(3, 3).weight, {"params": module.weight}
    model = strategies()["zero1"](module)
    with pytest.raises(ValueError, match="group 1 .* that is not the wrapped model"):
        ShardedAdam(model, groups=[before, {"params": [foreign]}])
    with pytest.raises(ValueError, match="group 1 .* that is in another group too"):
        ShardedAdam(model, groups=[before, {"params": module.parameters()}])
    optimizer = ShardedAdam(model, groups=[before])
    with pytest.raises(RuntimeError, match="groups are made with it"):
        optimizer.add_param_group({"params": module.bias})
    with pytest.raises(RuntimeError, match="read from a checkpoint"):
        optimizer.load_state_dict(optimizer.state_dict())


def test_what_would_train_other_tensors_than_asked_is_refused(world_of):
    world_of(2).run(wrong_groups)


# -- precision -----------------------------------------------------------------------------------


def state_dtypes(rank: int, ranks: int, precision: str, half: torch.dtype) -> dict[str, set]:
    from zerolab import ShardedAdam

    model = strategies()["zero2"](reference.GPT(reference.SHAPE), precision=precision, half=half)
    optimizer = ShardedAdam(model)
    model(*reference.batch(0, rank, ranks)).backward()
    gradients = {unit.kept_gradient.dtype for unit in model.units}
    optimizer.step()
    moments = {s[key].dtype for s in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")}
    return {
        "parameters": {unit.parameter.dtype for unit in model.units},
        "gradients": gradients,
        "masters": {part.updated.dtype for part in optimizer.parts},
        "moments": moments,
    }


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("precision", "gradients"),
    [("mixed", None), ("mixed_fp32_grads", torch.float32), ("no_master", None)],
)
@pytest.mark.parametrize("ranks", RANKS)
def test_every_state_has_the_policys_dtype(world_of, ranks, precision, gradients, half):
    for found in world_of(ranks).run(state_dtypes, ranks, precision, half):
        assert found["parameters"] == {half}
        assert found["gradients"] == {gradients or half}
        assert found["masters"] == found["moments"] == {torch.float32}


def notices(rank: int, precision: str, strategy: str) -> list[tuple[str, bool]]:
    """What a rank warns of when it wraps two models, and whether that points here."""
    from zerolab.parallel.precision import tell_of_fp32_arithmetic

    tell_of_fp32_arithmetic.cache_clear()
    with warnings.catch_warnings(record=True) as told:
        for _ in range(2):
            strategies()[strategy](nn.Linear(2, 2), precision=precision)
    here = sys._getframe().f_code.co_filename
    return [(str(warning.message), warning.filename == here) for warning in told]


@pytest.mark.parametrize("strategy", ["zero1", "zero3"])  # of which one has a constructor more
def test_a_cpu_says_once_that_it_computes_in_fp32(world_of, strategy):
    first, second = world_of(2).run(notices, "mixed", strategy)
    ((told, points_here),) = first
    assert "stores and sends 16 bits, and computes in fp32" in told
    assert points_here
    assert second == []  # one rank speaks for all
    assert world_of(2).run(notices, "fp32", strategy) == [[], []]


def creep(rank: int, precision: str) -> float:
    """The loss after 200 steps, each too small to change a 16-bit parameter."""
    from zerolab import ShardedAdam

    torch.manual_seed(0)
    target = torch.ones(64)
    module = nn.Linear(1, 64, bias=False)
    module.weight.data.fill_(2.0)
    model = strategies()["zero3"](module, precision=precision)
    optimizer = ShardedAdam(model, lr=1e-3, weight_decay=0.0)
    for _ in range(200):
        loss = F.mse_loss(model(torch.ones(1, 1))[0], target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


@pytest.mark.parametrize("ranks", RANKS)
def test_without_a_master_copy_small_updates_are_lost(world_of, ranks):
    """bf16 near 2 has steps of 1/64: an update of 1e-3 rounds to nothing."""
    losses = {p: world_of(ranks).run(creep, p)[0] for p in ("fp32", "mixed", "no_master")}
    assert losses["mixed"] == pytest.approx(losses["fp32"], rel=0.02)
    assert losses["fp32"] < 0.75
    assert losses["no_master"] == 1.0  # where it began


def scale(rank: int, ranks: int, first_scale: float) -> tuple:
    from zerolab import ShardedAdam
    from zerolab.parallel import LossScaler

    torch.manual_seed(0)
    model = strategies()["zero2"](
        reference.GPT(reference.SHAPE), precision="mixed", half=torch.float16
    )
    optimizer = ShardedAdam(model, lr=reference.LEARNING_RATE)
    scaler = LossScaler(scale=first_scale)
    losses, stepped = [], []
    for step in range(reference.STEPS):
        loss = model(*reference.batch(step, rank, ranks))
        scaler.scaled(loss).backward()
        stepped.append(scaler.step(optimizer))
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, stepped, scaler.scale


@pytest.mark.parametrize("ranks", RANKS)
def test_loss_scaling_steps_in_fp16_and_backs_off(world_of, ranks):
    _, expected = reference.train_alone()
    results = world_of(ranks).run(scale, ranks, 2.0**10)
    means = [sum(step) / ranks for step in zip(*(losses for losses, *_ in results), strict=True)]
    assert means == pytest.approx(expected, abs=0.02)
    assert all(all(stepped) for _, stepped, _ in results)
    results = world_of(ranks).run(scale, ranks, 2.0**30)  # overflows fp16 at first
    assert results[0][1:] == results[1][1:]  # ranks decide alike
    _, stepped, last = results[0]
    assert not stepped[0]
    assert last == 2.0**30 / 2 ** stepped.count(False)


# -- batches, modes, failures --------------------------------------------------------------------


def uneven(rank: int, ranks: int, strategy: str) -> dict:
    """Rank r holds r + 1 of the sequences: the mean of means would be another number."""
    from zerolab import ShardedAdam
    from zerolab.parallel import mean_over_tokens

    torch.manual_seed(0)
    model = strategies()[strategy](reference.GPT(reference.SHAPE))
    optimizer = ShardedAdam(model, lr=reference.LEARNING_RATE)
    first = rank * (rank + 1) // 2
    for step in range(3):
        tokens, targets = (part[first : first + rank + 1] for part in reference.batch(step))
        logits = model(tokens)
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        mean_over_tokens(total, targets.numel()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.full_state_dict()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", RANKS)
def test_token_weighted_mean(world_of, ranks, strategy):
    torch.manual_seed(0)
    model = reference.GPT(reference.SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=reference.LEARNING_RATE)
    held = ranks * (ranks + 1) // 2
    for step in range(3):
        tokens, targets = (part[:held] for part in reference.batch(step))
        model(tokens, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    for parameters in world_of(ranks).run(uneven, ranks, strategy):
        assert difference(parameters, model.state_dict()) <= 1e-5


class Checkpointed(nn.Module):
    """The reference GPT, its blocks' activations recomputed in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.gpt = reference.GPT(reference.SHAPE)
        self.reentrant = reentrant

    def forward(self, tokens, targets):
        from torch.utils.checkpoint import checkpoint

        positions = torch.arange(tokens.shape[1])
        x = self.gpt.token_embedding(tokens) + self.gpt.position_embedding(positions)
        for block in self.gpt.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        logits = self.gpt.head(self.gpt.final_norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _fail(_: torch.Tensor) -> None:
    raise ArithmeticError("a gradient that nobody expected")


def variations(rank: int, ranks: int, strategy: str, variation: str) -> dict:
    """Ten steps of a loop that does something besides; "" for `strategy` is plain torch."""
    torch.manual_seed(0)
    reentrant = variation == "reentrant checkpoint"
    checkpointed = "checkpoint" in variation
    module = Checkpointed(reentrant) if checkpointed else reference.GPT(reference.SHAPE)
    if strategy:
        from zerolab import ShardedAdam

        model = strategies()[strategy](module)
        optimizer = ShardedAdam(model, lr=reference.LEARNING_RATE)
    else:
        model, optimizer = module, torch.optim.AdamW(module.parameters(), lr=1e-3)
    for step in range(reference.STEPS):
        tokens, targets = reference.batch(step, rank, ranks)
        if variation == "evaluation between":
            model.eval()
            with torch.no_grad():
                model(tokens, targets)
            model.train()
        if variation == "a failed forward between":
            with pytest.raises(IndexError):
                model(tokens + reference.SHAPE.vocabulary, targets)
        if variation == "a failed backward between":
            loss = model(tokens, targets)
            block = module.blocks[1].mlp.up.weight.register_hook(_fail)
            with pytest.raises(ArithmeticError):
                loss.backward()
            block.remove()
            (optimizer if step % 2 else model).zero_grad()
        autocast = torch.autocast("cpu", torch.bfloat16)
        with autocast if variation == "autocast" else nullcontext():
            if variation == "two forwards":
                half = len(tokens) // 2  # of three sequences: the first
                loss = half * model(tokens[:half], targets[:half])
                rest = (len(tokens) - half) * model(tokens[half:], targets[half:])
                loss = (loss + rest) / len(tokens)
            else:
                loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.full_state_dict() if strategy else model.state_dict()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "variation",
    [
        "checkpoint",
        "reentrant checkpoint",
        "evaluation between",
        "a failed forward between",
        "a failed backward between",
        "two forwards",
    ],
)
@pytest.mark.parametrize("ranks", RANKS)
def test_what_loops_do(world_of, ranks, variation, strategy):
    expected = variations(0, 1, "", variation)
    for parameters in world_of(ranks).run(variations, ranks, strategy, variation):
        assert difference(parameters, expected) <= 1e-5


@pytest.mark.parametrize("ranks", RANKS)
def test_autocast(world_of, ranks):
    """bf16 products round differently in batches of another size, so one process is only near; the
    strategies see the same batches and agree."""
    ddp = world_of(ranks).run(variations, ranks, "ddp", "autocast")[0]
    alone = variations(0, 1, "", "autocast")
    for name, value in alone.items():
        if not name.endswith("qkv.bias"):  # a key's has no gradient but rounding
            assert (ddp[name] - value).abs().mean() <= 1e-3, name
    for strategy in ("zero1", "zero2", "zero3"):
        sharded = world_of(ranks).run(variations, ranks, strategy, "autocast")[0]
        assert difference(sharded, ddp) <= 5e-6
