"""Parameters that are shared, frozen, unused, tiny or out of place; buffers."""

import copy
import gc
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F

from zerolab.accounting.memory import persistent_states
from zerolab.parallel import STRATEGIES, ShardedAdam
from zerolab.runtime.memory import MemoryMeter

ADAM = {"lr": 1e-2, "eps": 1e-4}
STEPS = 3
WIDTH = 7  # divides by no number of ranks
RANKS = [2, 3, 4]


def inputs(step: int, rank: int = 0, ranks: int = 1) -> Tensor:
    """A rank's slice of the step's 12 examples, [12 / ranks, WIDTH]."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, WIDTH, generator=generator).chunk(ranks)[rank]


def update(module: nn.Module, losses: Callable[[int], Tensor]) -> dict[str, Tensor]:
    """A few steps of plain torch, a parameter without a gradient counting as one of zero."""
    optimizer = torch.optim.AdamW(module.parameters(), **ADAM)
    for step in range(STEPS):
        losses(step).backward()
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    return module.state_dict()


def train(rank: int, ranks: int, strategy: str, build: Callable[[], nn.Module], **options) -> dict:
    """The same steps on one rank of several."""
    torch.manual_seed(0)
    model = STRATEGIES[strategy](build(), **options)
    optimizer = ShardedAdam(model, **ADAM)
    for step in range(STEPS):
        model(inputs(step, rank, ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.full_state_dict()


def assert_equals_one_process(world, strategy: str, build: Callable[[], nn.Module], **options):
    torch.manual_seed(0)
    module = build()
    expected = update(module, lambda step: module(inputs(step)))
    for state in world.run(train, world.ranks, strategy, build, **options):
        assert_close(state, expected)


def assert_close(state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            state[name], value, rtol=0, atol=1e-5, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


# -- tied ----------------------------------------------------------------------------------------


def train_tied(rank: int, strategy: str) -> tuple[bool, dict[str, Tensor]]:
    torch.manual_seed(0)
    module = zoo.ZOO["Llama, tied"].build()
    model = STRATEGIES[strategy](module)
    optimizer = ShardedAdam(model, **ADAM)
    for _ in range(STEPS):
        zoo.loss_of(model(**zoo.causal(2))).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module.lm_head.weight is module.model.embed_tokens.weight, model.full_state_dict()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", RANKS)
def test_tied_parameters_stay_tied(world_of, ranks, strategy):
    for same_object, state in world_of(ranks).run(train_tied, strategy):
        assert same_object
        assert state["lm_head.weight"].equal(state["model.embed_tokens.weight"])
        reloaded = zoo.ZOO["Llama, tied"].build()
        reloaded.load_state_dict(state)
        assert reloaded.lm_head.weight is reloaded.model.embed_tokens.weight
        assert reloaded.lm_head.weight.equal(state["lm_head.weight"])


class TiedByName(nn.Module):
    """One parameter is a child's and the root's; the root uses it after the child has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.projection = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = h + block(h).tanh()
        return F.mse_loss(F.linear(h, self.projection), x)


class OneBlock(nn.Module):
    """The same module twice in a list, and once beside it."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([shared, nn.Linear(WIDTH, WIDTH), shared])
        self.head = shared

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for block in self.blocks:
            h = h + block(h).tanh()
        return F.mse_loss(self.head(h), x)


@pytest.mark.parametrize("build", [TiedByName, OneBlock])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", RANKS)
def test_shared_in_other_ways(world_of, ranks, strategy, build):
    assert_equals_one_process(world_of(ranks), strategy, build)


# -- frozen --------------------------------------------------------------------------------------


def lora() -> nn.Module:
    """Llama with LoRA: in every block some parameters are trained and most are frozen."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    module = zoo.ZOO["Llama"].build()
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    return get_peft_model(module, config)


def lora_batch(step: int, rank: int = 0, ranks: int = 1) -> zoo.Batch:
    torch.manual_seed(step)
    return {name: value.chunk(ranks)[rank] for name, value in zoo.causal(12).items()}


def train_lora(rank: int, ranks: int, strategy: str) -> tuple:
    gc.collect()
    module = lora()
    with MemoryMeter() as meter:
        model = STRATEGIES[strategy](module)
        optimizer = ShardedAdam(model, **ADAM)
        for step in range(STEPS):
            zoo.loss_of(model(**lora_batch(step, rank, ranks))).backward()
            held = {kind: meter.live[kind] for kind in ("gradients", "optimizer", "parameters")}
            optimizer.step()
            optimizer.zero_grad()
    sizes = [unit.numel for unit in model.units]
    return model.full_state_dict(), held, model.unit_sizes, sizes


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", RANKS)
def test_frozen_parameters_cost_parameters_only(world_of, ranks, strategy):
    module = lora()
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    before = copy.deepcopy(module.state_dict())
    expected = update(module, lambda step: zoo.loss_of(module(**lora_batch(step))))
    results = world_of(ranks).run(train_lora, ranks, strategy)
    for state, held, trained_sizes, all_sizes in results:
        assert_close(state, expected)
        assert all(state[n].equal(before[n]) for n in before if "lora" not in n)
        assert sum(trained_sizes) == trained < 0.1 * sum(all_sizes)
        predicted = persistent_states(trained_sizes, strategy, ranks, "fp32")
        assert held["gradients"] == predicted.gradients
        assert held["optimizer"] == predicted.optimizer
        stored = persistent_states(all_sizes, strategy, ranks, "fp32")
        assert held["parameters"] == stored.parameters


# -- unused --------------------------------------------------------------------------------------


class Branching(nn.Module):
    """Side branches at every depth, whose outputs only some losses need."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.sides = nn.ModuleList(nn.Linear(WIDTH, 5) for _ in range(3))
        self.choice = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor, needed: tuple[int, ...]) -> Tensor:
        h, sides = x, []
        for block, side in zip(self.blocks, self.sides, strict=True):
            sides.append(side(h))
            h = h + block(h).tanh()
        if needed:
            h = h * self.choice
        return h.square().mean() + sum(sides[i].square().mean() for i in needed)


def train_branches(rank: int, strategy: str, needs: list[tuple[int, ...]], overlap: bool) -> dict:
    torch.manual_seed(0)
    model = STRATEGIES[strategy](Branching(), overlap=overlap)
    optimizer = ShardedAdam(model, **ADAM)
    for step in range(STEPS):
        model(inputs(step, rank, len(needs)), needs[rank]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.full_state_dict()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("needs", "overlap"),
    [
        ([(), ()], True),
        ([(1,), ()], True),
        ([(0, 2), (1,)], False),
        ([(0, 1, 2), (), (2,)], True),
        ([(2,), (), (), (0,)], True),
    ],
)
def test_ranks_may_need_different_outputs(world_of, strategy, needs, overlap):
    """All ranks call the same modules; what a rank does not use has a gradient of zero there."""
    torch.manual_seed(0)
    module, ranks = Branching(), len(needs)

    def loss(step: int) -> Tensor:
        return sum(module(inputs(step, r, ranks), needs[r]) for r in range(ranks)) / ranks

    expected = update(module, loss)
    for state in world_of(ranks).run(train_branches, strategy, needs, overlap):
        assert_close(state, expected)


class HalfCalled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x).square().mean()


def leave_out(rank: int, ranks: int, strategy: str) -> tuple[dict, dict]:
    """A module that no rank calls is not reduced, and not decayed either."""
    torch.manual_seed(0)
    model = STRATEGIES[strategy](HalfCalled())
    before = model.full_state_dict()
    optimizer = ShardedAdam(model, weight_decay=0.5)
    model(inputs(0, rank, ranks)).backward()
    optimizer.step()
    return before, model.full_state_dict()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", RANKS)
def test_what_no_rank_calls_is_left_alone(world_of, ranks, strategy):
    for before, after in world_of(ranks).run(leave_out, ranks, strategy):
        assert after["unused.weight"].equal(before["unused.weight"])
        assert not after["used.weight"].equal(before["used.weight"])


# -- sizes ---------------------------------------------------------------------------------------


class Odd(nn.Module):
    """A scalar, one element, none at all; modules without parameters; an integer parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.zeros(0, 3))
        self.shift = nn.Parameter(torch.tensor([3, 1]), requires_grad=False)
        self.net = nn.Sequential(nn.Linear(WIDTH, 1), nn.GELU(), nn.Identity(), nn.Linear(1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return (self.net(x) * self.scale - self.shift.sum()).square().mean() + self.nothing.sum()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", RANKS)
def test_sizes_that_do_not_divide(world_of, strategy, ranks):
    assert_equals_one_process(world_of(ranks), strategy, Odd)


def wrap_nothing(rank: int, strategy: str) -> float:
    return STRATEGIES[strategy](nn.ReLU())(torch.tensor([-1.0, 2.0])).sum().item()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", RANKS)
def test_a_module_without_parameters_is_computed(world_of, ranks, strategy):
    assert world_of(ranks).run(wrap_nothing, strategy) == [2.0] * ranks


# -- where a parameter is used ---------------------------------------------------------------------


class Lists(nn.Module):
    """Parameters in torch's lists of parameters belong to the module that reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts = nn.ParameterList(nn.Parameter(torch.randn(WIDTH)) for _ in range(2))
        self.scales = nn.ParameterDict({"a": nn.Parameter(torch.ones(WIDTH))})
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for prompt, block in zip(self.prompts, self.blocks, strict=True):
            x = block(x + prompt) * self.scales["a"]
        return x.square().mean()


class Positions(nn.Module):
    """Returns its parameter, or a view of it: neither may outlive the gathered unit."""

    def __init__(self, as_view: bool) -> None:
        super().__init__()
        self.weight, self.as_view = nn.Parameter(torch.randn(WIDTH)), as_view

    def forward(self) -> Tensor:
        return self.weight[None, :] if self.as_view else self.weight


class Borrowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.view, self.itself = Positions(as_view=True), Positions(as_view=False)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        view, itself = self.view(), self.itself()
        for block in self.blocks:
            x = block(x * view).tanh() * itself
        return x.square().mean()


class Functional(nn.Module):
    """A head tied to the first layer without a module of its own."""

    def __init__(self, before: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.before = before

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            x = F.linear(x, self.blocks[1].weight)
        h = self.first(x)
        for block in self.blocks:
            h = h + block(h).tanh()
        return F.linear(h, self.first.weight).square().mean()


@pytest.mark.parametrize("build", [Lists, Borrowing])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", RANKS)
def test_parameters_used_where_they_belong(world_of, ranks, strategy, build):
    assert_equals_one_process(world_of(ranks), strategy, build)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2"])
@pytest.mark.parametrize("ranks", RANKS)
def test_whole_parameters_may_be_used_anywhere(world_of, ranks, strategy, before):
    assert_equals_one_process(world_of(ranks), strategy, lambda: Functional(before))


def test_a_released_parameter_says_that_it_is_used_out_of_place(world_of):
    with pytest.raises(Exception, match="first.weight was used outside the forward of first"):
        world_of(2).run(train, 2, "zero3", Functional)


def test_units_can_be_named_so_that_it_is_in_place(world_of):
    assert_equals_one_process(world_of(2), "zero3", Functional, units=["blocks.*"])


def look_between_steps(rank: int) -> tuple:
    model = STRATEGIES["zero3"](Functional())
    weight = model.module.first.weight
    facts = weight.shape, weight.dtype, isinstance(weight, nn.Parameter), weight.grad
    weight.norm()
    return facts


def test_between_steps_a_released_parameter_has_a_shape_and_no_values(world_of):
    with pytest.raises(Exception, match="take its values from full_state_dict"):
        world_of(2).run(look_between_steps)


class Hidden:
    """An object in which torch finds no tensor."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Hiding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([HidingBlock(), nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](x).value).square().mean()


class HidingBlock(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Hidden:
        return Hidden(super().forward(x))


def test_an_output_that_hides_its_tensors_is_refused(world_of):
    with pytest.raises(Exception, match="blocks.0 returns Hidden, in which no tensor is found"):
        world_of(2).run(train, 2, "zero3", Hiding)


# -- buffers -------------------------------------------------------------------------------------


def beside_torch(rank: int, ranks: int, strategy: str) -> tuple[dict, dict]:
    """Batch norm's statistics are each rank's own batch's, so torch's DDP is the reference."""
    torch.manual_seed(rank)
    module = zoo.Convolutional()
    module.register_buffer("mask", torch.tensor([rank == 0, True]))
    module.register_buffer("nothing", torch.zeros(0))
    theirs = nn.parallel.DistributedDataParallel(copy.deepcopy(module))
    ours = STRATEGIES[strategy](module)
    optimizers = torch.optim.AdamW(theirs.parameters(), **ADAM), ShardedAdam(ours, **ADAM)
    for step in range(STEPS):
        torch.manual_seed(step)
        batch = {name: value.chunk(ranks)[rank] for name, value in zoo.images(12).items()}
        for model, optimizer in zip((theirs, ours), optimizers, strict=True):
            if step == 1 and rank == 1:  # a write that the other ranks know nothing of
                model.module.mask.fill_(False)
            model(**batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return theirs.module.state_dict(), ours.full_state_dict()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", RANKS)
def test_buffers_follow_rank_0_as_torch_ddp_has_them(world_of, strategy, ranks):
    results = world_of(ranks).run(beside_torch, ranks, strategy)
    expected: OrderedDict = results[0][0]
    for _, state in results:
        assert_close(state, expected)
