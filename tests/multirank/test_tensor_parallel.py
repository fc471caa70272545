"""Tensor parallelism against one process: the same parameters, and the textbook's messages."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from reference import difference
from torch import nn

from zerolab.accounting.activations import Batch, Keeping
from zerolab.accounting.traffic import tensor_parallel_traffic
from zerolab.training.gpt import GPT, GPTShape

# Heads, width and vocabulary that 2, 3 and 4 divide.
SHAPE = GPTShape(vocabulary=60, context=12, layers=2, heads=12, width=48)
# A key's bias has no gradient but rounding: an eps above that keeps Adam from making steps of it.
ADAM = {"lr": 1e-3, "eps": 1e-6}


def tokens_of(step: int, size: int = 4) -> tuple:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, SHAPE.vocabulary, (size, 13), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def train_alone(clip: float | None = None) -> tuple[dict, dict, list[float], list[float]]:
    """Parameters after ten steps, the first step's gradients, all losses, all norms."""
    torch.manual_seed(0)
    model = GPT(SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAM)
    gradients: dict = {}
    losses, norms = [], []
    for step in range(10):
        loss = model(*tokens_of(step))
        loss.backward()
        losses.append(loss.item())
        named = model.named_parameters()
        gradients = gradients or {name: parameter.grad.clone() for name, parameter in named}
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip or 1e9).item())
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict(), gradients, losses, norms


def forward_and_backward(rank: int, sequence_parallel: bool) -> tuple[float, dict]:
    """The loss, and whole gradients by name."""
    from zerolab.parallel import TensorParallel
    from zerolab.parallel.tensor_parallel import whole_tensor

    torch.manual_seed(rank)  # rank 0's parameters count
    model = TensorParallel(GPT(SHAPE), sequence_parallel=sequence_parallel)
    loss = model(*tokens_of(0))
    loss.backward()
    named = model.module.named_parameters()
    return loss.item(), {name: whole_tensor(p, p.grad, name) for name, p in named}


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_forward_and_gradients_equal_one_process(world_of, ranks, sequence_parallel):
    _, expected, losses, _ = train_alone()
    for loss, gradients in world_of(ranks).run(forward_and_backward, sequence_parallel):
        assert loss == pytest.approx(losses[0], abs=1e-5)
        assert difference(gradients, expected) <= 1e-5


def train(rank: int, sequence_parallel: bool, clip: float | None = None, tied: bool = False):
    from zerolab.parallel import TensorParallel
    from zerolab.runtime.ledger import ledger

    torch.manual_seed(rank)
    norm = 0.0
    model = TensorParallel(GPT(replace(SHAPE, tied=tied)), sequence_parallel=sequence_parallel)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAM)
    for step in range(10):
        ledger.clear()
        model(*tokens_of(step)).backward()
        events = [(e.operation, e.label, e.bytes) for e in ledger.events]
        if clip is not None:
            norm = model.clip_grad_norm_(clip)
        optimizer.step()
        optimizer.zero_grad()
    if tied:
        assert model.module.head.weight is model.module.token_embedding.weight
    return model.full_state_dict(), events, sum(p.numel() for p in model.parameters()), norm


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parameters_equal_one_process(world_of, ranks, sequence_parallel):
    expected, *_ = train_alone()
    for parameters, *_ in world_of(ranks).run(train, sequence_parallel):
        assert difference(parameters, expected) <= 1e-5


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_clipping_counts_what_every_rank_holds_once(world_of, sequence_parallel):
    expected, _, _, norms = train_alone(clip=0.05)
    for parameters, _, _, norm in world_of(2).run(train, sequence_parallel, 0.05):
        assert difference(parameters, expected) <= 1e-5
        assert norm == pytest.approx(norms[-1], rel=1e-3)


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_layer_waits_for_four_all_reduces(world_of, ranks):
    _, events, *_ = world_of(ranks).run(train, False)[0]
    activation = 4 * 12 * SHAPE.width * 4  # bytes of batch x sequence x width
    one = 2 * (ranks - 1) * activation // ranks
    by_label = Counter(label for operation, label, _ in events if operation == "all-reduce")
    for layer in range(SHAPE.layers):
        for label in ("attention.projection", "mlp.projection"):
            assert by_label.pop(f"blocks.{layer}.{label}") == 1
        for label in ("attention.qkv backward", "mlp.up backward"):
            assert by_label.pop(f"blocks.{layer}.{label}") == 1
    assert by_label == {"token_embedding": 1, "head backward": 1}
    assert {size for operation, _, size in events if operation == "all-reduce"} == {one}
    (loss,) = [event for event in events if event[0] != "all-reduce"]
    assert loss == ("all-gather", "loss", (ranks - 1) * 2 * 4 * 12 * 4)  # two numbers a token


@pytest.mark.parametrize("ranks", [2, 4])
def test_sequence_parallelism_sends_the_same_bytes(world_of, ranks):
    _, plain, *_ = world_of(ranks).run(train, False)[0]
    _, cut, *_ = world_of(ranks).run(train, True)[0]
    in_layers = [e for e in cut if e[1].startswith("blocks") and not e[1].endswith("gradient")]
    operations = Counter(operation for operation, *_ in in_layers)
    assert operations == {"all-gather": 4 * SHAPE.layers, "reduce-scatter": 4 * SHAPE.layers}
    same = sum(size for _, label, size in plain if label.startswith("blocks"))
    assert sum(size for *_, size in in_layers) == same
    batch = Batch(size=4, sequence=12, element=4, tensor_parallel=ranks, sequence_parallel=True)
    # Norms and summed biases see a rank's tokens only, so that their gradients are summed as well.
    activations = sum(size for _, label, size in cut if not label.endswith("gradient"))
    assert activations == tensor_parallel_traffic(SHAPE.on_paper, batch, Keeping()).bytes


def test_parameters_are_shared_out(world_of):
    _, _, whole, _ = world_of(1).run(train, False)[0]
    _, _, half, _ = world_of(2).run(train, False)[0]
    kept = SHAPE.context * SHAPE.width + SHAPE.layers * 6 * SHAPE.width + 2 * SHAPE.width
    assert half == (whole - kept) // 2 + kept  # positions, norms and summed biases are on all


def test_a_tied_head_stays_tied(world_of):
    results = world_of(2).run(train, False, None, True)
    parameters = results[0][0]
    assert difference(parameters, results[1][0]) == 0
    assert torch.equal(parameters["head.weight"], parameters["token_embedding.weight"])


def recompute(rank: int, to_the_end: bool) -> list:
    from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

    from zerolab.parallel import TensorParallel
    from zerolab.runtime.ledger import ledger

    model = TensorParallel(GPT(SHAPE))
    for block in model.module.blocks:
        block.forward = lambda x, run=block.forward: checkpoint(run, x, use_reentrant=False)
    ledger.clear()
    with set_checkpoint_early_stop(not to_the_end):
        model(*tokens_of(0)).backward()
    return [e.label for e in ledger.events if e.operation == "all-reduce"]


def test_recomputation_makes_it_six(world_of):
    """Torch stops recomputing when backward has what it needs, before a layer's last all-reduce."""
    for to_the_end, expected in ((True, 6), (False, 5)):
        labels = world_of(2).run(recompute, to_the_end)[0]
        assert sum(label.startswith("blocks") for label in labels) == expected * SHAPE.layers


def mesh(rank: int) -> tuple:
    """4 ranks as 2 x 2: this rank's pair for tensor parallelism, and its pair across."""
    import torch.distributed as dist

    tensor_groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    data_groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    return tensor_groups[rank // 2], data_groups[rank % 2]


def on_a_mesh(rank: int, strategy: str, clip: float | None) -> tuple[dict, float]:
    """4 ranks as 2 x 2: tensor parallel in pairs, data parallel across them."""
    from zerolab import ShardedAdam
    from zerolab.parallel import STRATEGIES, TensorParallel

    tensor_group, data_group = mesh(rank)
    torch.manual_seed(0)
    model = STRATEGIES[strategy](TensorParallel(GPT(SHAPE), group=tensor_group), group=data_group)
    optimizer = ShardedAdam(model, **ADAM)
    norm = 0.0
    for step in range(10):
        half = slice(rank // 2 * 2, rank // 2 * 2 + 2)
        tokens, targets = tokens_of(step)
        model(tokens[half], targets[half]).backward()
        if clip is not None:
            norm = model.clip_grad_norm_(clip)
        optimizer.step()
        optimizer.zero_grad()
    return model.full_state_dict(), norm


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
def test_zero_and_tensor_parallelism_together(world_of, strategy, clip):
    expected, _, _, norms = train_alone(clip=clip)
    for parameters, norm in world_of(4).run(on_a_mesh, strategy, clip):
        assert difference(parameters, expected) <= 1e-5
        assert clip is None or norm == pytest.approx(norms[-1], rel=1e-3)  # counted once


def overflow(rank: int) -> tuple[bool, float]:
    """A step by a scaler, where a gradient overflows in what only rank 1 and its like hold."""
    from zerolab import ShardedAdam
    from zerolab.parallel import LossScaler, TensorParallel, Zero2

    tensor_group, data_group = mesh(rank)
    model = Zero2(TensorParallel(GPT(SHAPE), group=tensor_group), group=data_group)
    model(*tokens_of(0)).backward()
    if rank == 1:
        cut = next(unit for unit in model.units if unit.cut is not None)
        cut.kept_gradient[0] = torch.inf
    scaler = LossScaler(scale=4.0)
    return scaler.step(ShardedAdam(model)), scaler.scale


def test_on_a_mesh_an_overflow_is_everybodys(world_of):
    assert world_of(4).run(overflow) == [(False, 2.0)] * 4


def test_the_norm_before_any_backward_is_zero(world_of):
    def clip(rank: int) -> float:
        from zerolab.parallel import TensorParallel

        return TensorParallel(GPT(SHAPE)).clip_grad_norm_(1.0)

    assert world_of(2).run(clip) == [0.0, 0.0]


def masks(rank: int, failing: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What dropout leaves of ones, after a column layer and after the row layer that follows.

    failing: only after a forward that failed between the two.
    """
    from zerolab.parallel import TensorParallel

    seen = {}

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 64), nn.Linear(64, 32)
            self.inner, self.outer = nn.Dropout(0.5), nn.Dropout(0.5)

        def forward(self, x):
            up = self.up(x)
            if torch.isnan(x).any():
                raise ArithmeticError("x is no number")
            seen["inner"] = self.inner(torch.ones_like(up))
            y = self.down(up * seen["inner"])
            seen["outer"] = self.outer(torch.ones_like(y))
            return y * seen["outer"]

    torch.manual_seed(0)
    model = TensorParallel(Net(), plan={"up": "column", "down": "row"})
    if failing:
        with pytest.raises(ArithmeticError):
            model(torch.full((4, 8), torch.nan))
    model(torch.ones(4, 8))
    return seen["inner"], seen["outer"]


@pytest.mark.parametrize("failing", [False, True])
def test_dropout_differs_where_split_and_agrees_where_whole(world_of, failing):
    (inner0, outer0), (inner1, outer1) = world_of(2).run(masks, failing)
    assert torch.equal(outer0, outer1)
    assert not torch.equal(inner0, inner1)
    assert 0.2 < (inner0 == 0).float().mean() < 0.8


def gradients_with_dropout(rank: int, recompute: bool) -> dict:
    from torch.utils.checkpoint import checkpoint

    from zerolab.parallel import TensorParallel

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 8), nn.Dropout(0.5))
    model = TensorParallel(net, plan={"0": "column", "2": "row"})
    x = torch.randn(4, 8)
    y = checkpoint(model, x, use_reentrant=False) if recompute else model(x)
    y.square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_recomputation_drops_the_same_again(world_of):
    once, again = (world_of(2).run(gradients_with_dropout, flag) for flag in (False, True))
    for kept, recomputed in zip(once, again, strict=True):
        assert difference(kept, recomputed) == 0
    assert difference(once[0], once[1]) > 0


class Loss(nn.Module):
    """Words in, and the loss of guessing them again: with targets that do not count, and a word
    that learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 4, padding_idx=7)
        self.head = nn.Linear(4, 12)
        self.loss = nn.CrossEntropyLoss(ignore_index=5)

    def forward(self, tokens, targets):
        return self.loss(self.head(self.words(tokens)), targets)


def loss_and_gradients(rank: int, split: bool) -> dict:
    from zerolab.parallel import TensorParallel
    from zerolab.parallel.tensor_parallel import whole_tensor

    torch.manual_seed(0)
    model = net = Loss()
    if split:
        plan = {"words": "vocabulary", "head": "column", "loss": "cross_entropy"}
        model = TensorParallel(net, plan=plan)
    tokens, targets = torch.arange(12).roll(3), torch.arange(12) % 6
    loss = model(tokens, targets)
    loss.backward()
    named = net.named_parameters()
    return {"loss": loss.detach()} | {n: whole_tensor(p, p.grad, n) for n, p in named}


@pytest.mark.parametrize("ranks", [2, 3])
def test_ignored_targets_and_padding_words_count_for_nothing(world_of, ranks):
    expected = loss_and_gradients(0, False)
    assert expected["words.weight"][7].eq(0).all()
    for found in world_of(ranks).run(loss_and_gradients, True):
        assert difference(found, expected) <= 1e-6


def wrong(rank: int, case: str) -> None:
    from zerolab.parallel import TensorParallel

    if case == "heads":
        TensorParallel(GPT(GPTShape(vocabulary=60, layers=1, heads=4, width=48)))
    elif case == "grouped":
        TensorParallel(hugging_face("llama grouped"))
    elif case == "vocabulary":
        TensorParallel(GPT(GPTShape(vocabulary=61, layers=1, heads=3, width=48)))
    elif case == "width":
        TensorParallel(nn.Sequential(nn.Linear(4, 4)), plan={"0": "column"})
    elif case == "row":
        TensorParallel(nn.Sequential(nn.Linear(4, 4)), plan={"0": "row"})
    elif case == "layer":
        TensorParallel(nn.Sequential(nn.ReLU()), plan={"0": "row"})
    elif case == "embedding":
        TensorParallel(nn.Sequential(nn.Linear(4, 6)), plan={"0": "vocabulary"})
    elif case == "renormed":
        TensorParallel(nn.Sequential(nn.Embedding(6, 4, max_norm=1.0)), plan={"0": "vocabulary"})
    elif case == "loss":
        net = nn.Sequential(nn.CrossEntropyLoss(label_smoothing=0.1))
        TensorParallel(net, plan={"0": "cross_entropy"})
    elif case == "number":
        net = nn.Sequential(nn.Linear(4, 6))
        TensorParallel(net, plan={"0.in_features": "divide"})
    elif case == "optimizer":
        net = nn.Sequential(nn.Linear(4, 6))
        optimizer = torch.optim.SGD(net.parameters())
        TensorParallel(net, plan={"0": "column"})
        optimizer.step()
    elif case == "kind":
        TensorParallel(nn.Sequential(nn.Linear(4, 6)), plan={"0": "colum"})
    elif case == "name":
        TensorParallel(nn.Sequential(nn.Linear(4, 6)), plan={"mlp.*": "column"})
    elif case == "model":
        TensorParallel(nn.Linear(2, 2))
    elif case == "sequence":
        TensorParallel(nn.Sequential(nn.Linear(4, 6)), plan={"0": "column"}, sequence_parallel=True)
    elif case == "tokens":
        model = TensorParallel(GPT(SHAPE), sequence_parallel=True)
        model(torch.zeros(1, 10, dtype=torch.long))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("heads", "blocks.0.attention.qkv has 4 heads, which do not divide into 3 ranks"),
        ("grouped", "self_attn.k_proj has 4 heads, which do not divide into 3 ranks"),
        ("vocabulary", "token_embedding.weight is 61 wide, which does not divide into 3 ranks"),
        ("width", "0.weight is 4 wide, which does not divide into 3 ranks"),
        ("row", "0.weight is 4 wide, which does not divide into 3 ranks"),
        ("layer", "0 is a ReLU, and the plan's 'row' needs a linear layer"),
        ("embedding", "0 is a Linear, and the plan's 'vocabulary' needs an nn.Embedding"),
        ("renormed", "0 is built with max_norm, scale_grad_by_freq or sparse"),
        ("loss", "0 has weights, label smoothing or another reduction than the mean"),
        ("number", "0.in_features is 4, and the plan's 'divide' needs a whole number"),
        ("optimizer", r"SGD was built on .* tensor parallelism has cut since \('0'\)"),
        ("kind", r"plan\['0'\]: got 'colum'; accepted is one of column,"),
        ("name", r"plan\['mlp.\*'\] names no part of Sequential"),
        ("model", "there is no plan for Linear, only for GPT"),
        ("sequence", "does not say where its sequence is cut"),
        ("tokens", "a sequence of 10 tokens does not divide into 3 parts"),
    ],
)
def test_wrong_input_is_told_in_a_sentence(world_of, case, message):
    with pytest.raises(Exception, match=message):
        world_of(3).run(wrong, case)


def test_without_a_process_group_it_says_what_to_do():
    from zerolab.parallel import TensorParallel

    with pytest.raises(RuntimeError, match="TensorParallel needs a process group: run it inside"):
        TensorParallel(GPT(SHAPE))


# -- other people's models, and other people's tensor parallelism --------------------------------


def hugging_face(name: str) -> nn.Module:
    """A small model of that architecture, random weights, no dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if name == "gpt2":
        config = GPT2Config(
            vocab_size=60, n_positions=12, n_embd=48, n_layer=2, n_head=12,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        )  # fmt: skip
        return GPT2LMHeadModel(config)
    config = LlamaConfig(
        vocab_size=60, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=12, num_key_value_heads=4 if name == "llama grouped" else 12,
        max_position_embeddings=12, tie_word_embeddings=name == "llama tied",
        pad_token_id=7 if name == "llama padded" else None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def train_hugging_face(rank: int, name: str, split: bool) -> dict:
    from zerolab.parallel import TensorParallel

    module = hugging_face(name)
    model = TensorParallel(module) if split else module
    # Gradients that are nothing but rounding (a key's bias) must not become whole steps.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
    for step in range(10):
        tokens, _ = tokens_of(step)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.full_state_dict() if split else model.state_dict()


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("gpt2", 2), ("gpt2", 3), ("gpt2", 4), ("llama", 2), ("llama", 3), ("llama grouped", 4),
     ("llama tied", 2), ("llama padded", 2)],
)  # fmt: skip
def test_models_of_transformers(world_of, name, ranks):
    expected = train_hugging_face(0, name, False)
    for parameters in world_of(ranks).run(train_hugging_face, name, True):
        assert difference(parameters, expected) <= 1e-5


def train_by_torch(rank: int) -> tuple[dict, list[float]]:
    """torch's own parallelize_module, with the same cuts."""
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import parallel as tp

    torch.manual_seed(0)
    module = hugging_face("llama")
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    plan: dict = {"lm_head": tp.ColwiseParallel(output_layouts=Replicate())}
    for layer in range(2):
        for column in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                       "mlp.gate_proj", "mlp.up_proj"):  # fmt: skip
            plan[f"model.layers.{layer}.{column}"] = tp.ColwiseParallel()
        for row in ("self_attn.o_proj", "mlp.down_proj"):
            plan[f"model.layers.{layer}.{row}"] = tp.RowwiseParallel()
    tp.parallelize_module(module, mesh, plan)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, eps=1e-6, foreach=False)
    losses = []
    for step in range(10):
        tokens, _ = tokens_of(step)
        loss = module(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    whole = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in module.state_dict().items()
    }
    return whole, losses


@pytest.mark.parametrize("ranks", [2, 4])
def test_torchs_own_computes_the_same(world_of, ranks):
    ours = world_of(ranks).run(train_hugging_face, "llama", True)[0]
    theirs, _ = world_of(ranks).run(train_by_torch)[0]
    assert difference(ours, theirs) <= 1e-5
