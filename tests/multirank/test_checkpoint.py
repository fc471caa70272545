"""Checkpoints: saved on some ranks under one strategy, resumed on others under another."""

import json
import os
import signal
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import reference
import torch
from reference import GPT, SHAPE, batch, difference
from safetensors.torch import load_file, save_file
from torch import nn

from zerolab.training.checkpoint import CheckpointError, load, save
from zerolab.training.checkpoint.index import INDEX, files_of, read_index
from zerolab.training.checkpoint.reader import Checkpoint
from zerolab.training.checkpoint.writer import SAVING, Writer

BEFORE, AFTER = 3, 3  # steps before the save, and after it
TIED = reference.GPTShape(vocabulary=61, context=16, layers=2, heads=2, width=30, tied=True)
# Of which 2 and 4 ranks can each compute a part.
SPLIT = reference.GPTShape(vocabulary=64, context=16, layers=2, heads=4, width=24)
SPLIT_TIED = reference.GPTShape(**{**vars(SPLIT), "tied": True})
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-3}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
}


class Setup(NamedTuple):
    """How a run is made; a strategy of "" is plain torch in one process, or with `tensor` ranks to
    a layer, tensor parallelism alone."""

    ranks: int
    strategy: str
    precision: str = "fp32"
    optimizer: str = "AdamW"
    grouped: bool = False
    shape: reference.GPTShape = SHAPE
    layout: str | None = None
    tensor: int = 1

    @property
    def data(self) -> int:
        """Ranks of data parallelism."""
        return self.ranks // self.tensor


def groups(module: nn.Module) -> list[dict]:
    """Three groups, the middle one across all units."""
    named = dict(module.named_parameters())
    head = [p for name, p in named.items() if name.startswith("head")]
    matrices = [p for n, p in named.items() if p.dim() > 1 and not n.startswith("head")]
    vectors = [p for name, p in named.items() if p.dim() == 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors}, {"params": head}]


def mesh(rank: int, setup: Setup) -> tuple:
    """This rank's groups: those that share its layers, and those that share its data's strategy."""
    import torch.distributed as dist

    together = [range(first, first + setup.tensor) for first in range(0, setup.ranks, setup.tensor)]
    across = [range(first, setup.ranks, setup.tensor) for first in range(setup.tensor)]
    tensor = [dist.new_group(list(ranks)) for ranks in together]
    data = [dist.new_group(list(ranks)) for ranks in across]
    return tensor[rank // setup.tensor], data[rank % setup.tensor]


def build(setup: Setup, seed: int, rank: int = 0) -> tuple:
    from zerolab.parallel import STRATEGIES, ShardedOptimizer, TensorParallel

    torch.manual_seed(seed)
    model: nn.Module = GPT(setup.shape)
    optimizer_class, arguments = OPTIMIZERS[setup.optimizer]
    more: dict = {"layout": setup.layout} if setup.layout else {}
    if setup.tensor > 1:
        tensor_group, more["group"] = mesh(rank, setup)
        model = TensorParallel(model, group=tensor_group)
    grouped = groups(getattr(model, "module", model)) if setup.grouped else None
    if not setup.strategy:
        return model, optimizer_class(grouped or model.parameters(), **arguments)
    model = STRATEGIES[setup.strategy](model, precision=setup.precision, **more)
    return model, ShardedOptimizer(model, optimizer_class, grouped, **arguments)


def train(
    rank: int, setup: Setup, folder: Path | None, first: int, last: int, then_save: Path | None
):
    """Steps first..last, resumed from a folder and saved to another, where given; the losses, and
    whole parameters at the end."""
    # Another seed when resuming: what is not loaded must show.
    model, optimizer = build(setup, 0 if folder is None else 7, rank)
    if folder is not None:
        assert load(folder, model, optimizer) == {"step": first}
    # A decaying learning rate, so that a lost one would show as well.
    losses = []
    for step in range(first, last):
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        loss = model(*batch(step, rank // setup.tensor, setup.data))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if then_save is not None:
        save(then_save, model, optimizer, {"step": last})
    plain = isinstance(model, GPT)
    return losses, model.state_dict() if plain else model.full_state_dict()


def run(world_of, setup: Setup, *arguments) -> tuple[list[float], dict]:
    """The ranks' mean losses and rank 0's parameters."""
    if setup.ranks == 1 and not setup.strategy:
        return train(0, setup, *arguments)
    results = world_of(setup.ranks).run(train, setup, *arguments)
    steps = zip(*(losses for losses, _ in results), strict=True)
    return [sum(losses) / setup.ranks for losses in steps], results[0][1]


@cache
def uninterrupted(**setup) -> tuple[list[float], dict]:
    return train(0, Setup(1, "", **setup), None, 0, BEFORE + AFTER, None)


@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        (Setup(4, "zero3"), [Setup(3, "zero1"), Setup(1, ""), Setup(2, "ddp")]),
        (Setup(3, "zero3", layout="owner"), [Setup(4, "zero3"), Setup(1, "")]),
        (Setup(2, "ddp"), [Setup(3, "zero3", layout="owner"), Setup(1, "zero3")]),
        (
            Setup(2, "zero2", optimizer="SGD"),
            [Setup(3, "zero3", optimizer="SGD"), Setup(1, "", optimizer="SGD")],
        ),
        (
            Setup(3, "zero1", grouped=True),
            [Setup(2, "zero3", grouped=True), Setup(1, "", grouped=True)],
        ),
        (
            Setup(2, "zero3", shape=TIED),
            [Setup(3, "zero2", shape=TIED), Setup(1, "", shape=TIED)],
        ),
        (
            Setup(4, "", shape=SPLIT, tensor=4),
            [
                Setup(2, "zero3", shape=SPLIT),
                Setup(4, "zero3", shape=SPLIT, tensor=2),
                Setup(1, "", shape=SPLIT),
            ],
        ),
        (
            Setup(3, "zero3", shape=SPLIT),
            [Setup(2, "", shape=SPLIT, tensor=2), Setup(4, "", shape=SPLIT, tensor=4)],
        ),
        (
            Setup(4, "zero3", shape=SPLIT, tensor=2),
            [
                Setup(2, "", shape=SPLIT, tensor=2),
                Setup(3, "zero3", shape=SPLIT),
                Setup(4, "zero1", shape=SPLIT, tensor=2),
            ],
        ),
        (
            Setup(2, "", grouped=True, shape=SPLIT_TIED, tensor=2),
            [
                Setup(3, "zero3", grouped=True, shape=SPLIT_TIED),
                Setup(4, "zero2", grouped=True, shape=SPLIT_TIED, tensor=2),
            ],
        ),
        (
            Setup(4, "zero3", optimizer="SGD", shape=SPLIT, layout="owner", tensor=2),
            [Setup(2, "", optimizer="SGD", shape=SPLIT, tensor=2)],
        ),
    ],
    ids=["flat", "owner", "ddp", "SGD", "groups", "tied", "tensor", "to tensor", "mesh",
         "tensor tied and grouped", "mesh of owners"],
)  # fmt: skip
def test_a_run_continues_anywhere_as_if_uninterrupted(world_of, tmp_path, saved, resumed):
    kind = {"optimizer": saved.optimizer, "grouped": saved.grouped, "shape": saved.shape}
    losses, expected = uninterrupted(**kind)
    run(world_of, saved, None, 0, BEFORE, tmp_path)
    for setup in resumed:
        continued, parameters = run(world_of, setup, tmp_path, BEFORE, BEFORE + AFTER, None)
        assert continued == pytest.approx(losses[BEFORE:], abs=1e-5)
        assert difference(parameters, expected) <= 2e-5
        if setup.shape.tied:
            tied = parameters["head.weight"], parameters["token_embedding.weight"]
            assert torch.equal(*tied)


@pytest.mark.parametrize("precision", ["mixed", "mixed_fp32_grads", "no_master"])
def test_sixteen_bit_runs_continue_to_the_last_bit(world_of, tmp_path, precision):
    """Master copies included: without them the resumed run would start from rounded parameters."""
    setup = Setup(2, "zero2", precision)
    losses, expected = run(world_of, setup, None, 0, BEFORE + AFTER, None)
    run(world_of, setup, None, 0, BEFORE, tmp_path)
    for strategy in ("zero2", "zero3"):
        resumed = setup._replace(strategy=strategy)
        continued, parameters = run(world_of, resumed, tmp_path, BEFORE, BEFORE + AFTER, None)
        assert continued == losses[BEFORE:]
        assert difference(parameters, expected) == 0


def test_a_mixed_run_resumes_in_fp32_from_its_master_copies(world_of, tmp_path):
    setup = Setup(3, "zero3", "mixed")
    run(world_of, setup, None, 0, BEFORE, tmp_path)
    module, optimizer = build(Setup(1, ""), seed=7)
    load(tmp_path, module, optimizer)
    rounded = {n: t for file in tmp_path.glob("model-*") for n, t in load_file(file).items()}
    assert {tensor.dtype for tensor in rounded.values()} == {torch.bfloat16}
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter.bfloat16(), rounded[name])
    weight = module.head.weight
    assert not torch.equal(weight, weight.bfloat16().float())


# -- what the files hold -------------------------------------------------------------------------


class Oddities(nn.Module):
    """Buffers that are saved and one that is not, a frozen layer, a tensor without dimensions, and
    7 features, which divide by nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.norm = nn.BatchNorm1d(7)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("transposed", torch.randn(2, 3).T)  # a buffer with gaps
        self.register_buffer("cache", torch.ones(3), persistent=False)
        self.head = nn.Linear(7, 1)

    def forward(self, x):
        return self.head(self.norm(self.frozen(x))) * self.scale


def save_oddities(rank: int, folder: Path, strategy: str) -> dict:
    from zerolab.parallel import STRATEGIES, ShardedAdam

    torch.manual_seed(0)
    model = STRATEGIES[strategy](Oddities(), units=["frozen", "norm", "head"])
    optimizer = ShardedAdam(model)
    model(torch.randn(4, 7)).sum().backward()
    optimizer.step()
    save(folder, model, optimizer)
    return model.full_state_dict()


def load_oddities(rank: int, folder: Path) -> dict:
    from zerolab.parallel import ShardedAdam, Zero3

    model = Zero3(Oddities())
    load(folder, model, ShardedAdam(model))
    return model.full_state_dict()


@pytest.mark.parametrize("strategy", ["zero1", "zero3"])
def test_the_files_hold_whole_tensors_under_the_modules_names(world_of, tmp_path, strategy):
    expected = world_of(3).run(save_oddities, tmp_path, strategy)[0]
    index = json.loads((tmp_path / INDEX).read_text())
    held: dict[str, dict] = {"model": {}, "optimizer": {}}
    for kind, tensors in held.items():
        files = sorted(tmp_path.glob(f"{kind}-0*.safetensors"))
        assert [f.name for f in files] == [
            f"{kind}-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)
        ]
        for file in files:
            tensors |= load_file(file)
    assert difference(held["model"], expected) == 0
    assert held["model"].keys() == index["weight_map"].keys()
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in held["model"].values())
    trainable = [n for n, p in Oddities().named_parameters() if p.requires_grad]
    states = ("exp_avg", "exp_avg_sq", "step")
    assert held["optimizer"].keys() == {f"{name}.{s}" for name in trainable for s in states}
    for name in trainable:
        for key in states[:2]:
            assert held["optimizer"][f"{name}.{key}"].shape == expected[name].shape
        assert held["optimizer"][f"{name}.step"] == 1
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}
    for parameters in world_of(2).run(load_oddities, tmp_path):
        assert difference(parameters, expected) == 0


def save_split(rank: int, folder: Path, setup: Setup) -> dict:
    model, optimizer = build(setup, 0, rank)
    model(*batch(0, rank // setup.tensor, setup.data)).backward()
    optimizer.step()
    save(folder, model, optimizer)
    return model.full_state_dict()


@pytest.mark.parametrize(
    "setup",
    [Setup(2, "", shape=SPLIT, tensor=2), Setup(4, "zero3", shape=SPLIT, tensor=2)],
    ids=["tensor", "mesh"],
)
def test_what_tensor_parallelism_cut_is_whole_in_the_files(world_of, tmp_path, setup):
    """Every tensor once, in its own shape: nothing in a file says how many ranks there were."""
    expected = world_of(setup.ranks).run(save_split, tmp_path, setup)[0]
    alone, adam = build(Setup(1, "", shape=SPLIT), 0)
    alone(*batch(0)).backward()
    adam.step()
    held = [load_file(file) for file in sorted(tmp_path.glob("*.safetensors"))]
    names = [name for tensors in held for name in tensors]
    assert len(names) == len(set(names))
    tensors = {name: tensor for tensors in held for name, tensor in tensors.items()}
    for name, parameter in alone.named_parameters():
        assert torch.equal(tensors.pop(name), expected[name])
        for key, value in adam.state[parameter].items():
            assert torch.allclose(tensors.pop(f"{name}.{key}"), value, rtol=1e-3, atol=1e-7)
    assert not tensors


def gpt2(seed: int) -> nn.Module:
    import transformers

    torch.manual_seed(seed)
    shape = {"vocab_size": 61, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))


def save_gpt2(rank: int, folder: Path, wrapper: str) -> dict:
    from zerolab import parallel

    model = getattr(parallel, wrapper)(gpt2(0))
    if rank == 0:
        model.module.config.save_pretrained(folder)
    for _ in range(2):  # the config stays where it is when the checkpoint is replaced
        save(folder, model)
    again = parallel.TensorParallel(gpt2(7))  # its weights lie transposed, and three to a matrix
    load(folder, again)
    assert difference(again.full_state_dict(), model.full_state_dict()) == 0
    return model.full_state_dict()


@pytest.mark.parametrize("wrapper", ["Zero3", "TensorParallel"])
def test_transformers_reads_the_folder(world_of, tmp_path, wrapper):
    transformers = pytest.importorskip("transformers")
    expected = world_of(2).run(save_gpt2, tmp_path, wrapper)[0]
    model, report = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert difference(model.state_dict(), expected) == 0


def peaks(rank: int, folder: Path, precision: str) -> tuple[int, int, int]:
    """Most bytes beyond what persists, while saving and while loading; and the largest unit's."""
    import gc

    from zerolab import MemoryMeter, ShardedAdam, Zero3

    gc.collect()
    with MemoryMeter() as meter:
        model = Zero3(GPT(SHAPE), precision=precision)
        optimizer = ShardedAdam(model)
        model(*batch(0, rank, 4)).backward()
        optimizer.step()
        optimizer.zero_grad()
        persistent = meter.total
        meter.reset_peak()
        save(folder, model, optimizer)
        saving = meter.peak - persistent
        meter.reset_peak()
        load(folder, model, optimizer)
        assert meter.total == persistent
        loading = meter.peak - persistent
    return saving, loading, max(4 * unit.size for unit in model.units)


@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_no_more_than_one_unit_is_whole_at_a_time(world_of, tmp_path, precision):
    agreement = 4 * 16  # the ranks tell each other, an fp64 number a rank, whether all is well
    for saving, loading, largest in world_of(4).run(peaks, tmp_path, precision):
        assert largest <= saving <= largest + agreement
        assert loading <= largest + agreement


def tensor_peaks(rank: int, folder: Path, setup: Setup) -> tuple[int, int, int, int]:
    """Most bytes beyond what persists, while saving and while loading; the largest unit's, whole;
    and the largest single tensor's."""
    import gc

    from zerolab import MemoryMeter
    from zerolab.parallel.units import natural_units, parameter_owner

    sizes = {name: 4 * p.numel() for name, p in GPT(setup.shape).named_parameters()}
    units: dict[str, int] = {}
    for name, size in sizes.items():
        owner = parameter_owner(name, natural_units(GPT(setup.shape)))
        units[owner] = units.get(owner, 0) + size
    gc.collect()
    with MemoryMeter() as meter:
        model, optimizer = build(setup, 0, rank)
        model(*batch(0, rank // setup.tensor, setup.data)).backward()
        optimizer.step()
        optimizer.zero_grad()
        persistent = meter.total
        meter.reset_peak()
        save(folder, model, optimizer)
        saving = meter.peak - persistent
        meter.reset_peak()
        load(folder, model, optimizer)
        loading = meter.peak - persistent
    return saving, loading, max(units.values()), max(sizes.values())


@pytest.mark.parametrize(
    "setup",
    [Setup(4, "", shape=SPLIT, tensor=4), Setup(4, "zero3", shape=SPLIT, tensor=2)],
    ids=["tensor", "mesh"],
)
def test_one_unit_is_whole_at_a_time_under_tensor_parallelism(world_of, tmp_path, setup):
    """While a unit is put together, a rank also has one other rank's share of one tensor, and on a
    mesh what its own ranks of ZeRO-3 hold of the unit together: one of two shares."""
    few = 4 * 64  # what ranks tell each other, and scalars
    for saving, loading, unit, tensor in world_of(setup.ranks).run(tensor_peaks, tmp_path, setup):
        own = unit // setup.tensor if setup.strategy else 0
        assert saving <= unit + tensor // setup.tensor + own + few
        assert loading <= unit + few  # the parts of the file that are mapped included


# -- complete or absent --------------------------------------------------------------------------


def write(folder: Path, value: int) -> None:
    """A checkpoint whose every number is `value`, in four files."""
    writer = Writer(folder)
    writer.begin({"class": "SGD", "groups": [], "scalars": []}, value)
    for kind in ("model", "optimizer"):
        for place in (1, 2):
            tensors = {f"{kind}{place}.weight": torch.full((50,), float(value))}
            writer.write(kind, place, 2, tensors)
    writer.commit()


def value_of(folder: Path) -> int | None:
    """The value of the folder's checkpoint, which must be whole; None where it holds none."""
    if not (folder / INDEX).exists():
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            Checkpoint(folder)
        return None
    checkpoint = Checkpoint(folder)
    for tensors in (checkpoint.model, checkpoint.optimizer):
        assert len(tensors.names()) == 2
        for name in tensors.names():
            assert torch.equal(tensors.whole(name), torch.full((50,), float(checkpoint.extra)))
    return checkpoint.extra


OPERATIONS = ("mkdir", "open", "fsync", "chmod", "replace", "remove", "unlink", "rmdir")


def killed_in_operation(number: int, action) -> bool:
    """Whether `action`, in a process of its own, was killed before its file operation `number`."""
    pid = os.fork()
    if pid == 0:
        seen = 0

        def counted(function):
            def call(*arguments, **named):
                nonlocal seen
                seen += 1
                if seen == number:
                    if function is save_file:  # cut off in the middle of a file
                        Path(arguments[1]).with_name(".tmpA1b2C3").write_bytes(b"half")
                        Path(arguments[1]).write_bytes(b"half")
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **named)

            return call

        import zerolab.training.checkpoint.writer as module

        module.save_file = counted(save_file)
        for name in OPERATIONS:
            setattr(os, name, counted(getattr(os, name)))
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("present", [None, 1])
def test_a_save_killed_at_any_point_leaves_the_old_or_the_new_checkpoint(tmp_path, present):
    found, number, killed = [], 0, True
    while killed:
        number += 1
        folder = tmp_path / str(number)
        if present:
            write(folder, present)
        killed = killed_in_operation(number, lambda folder=folder: write(folder, 2))
        found.append(value_of(folder))
        write(folder, 3)
        assert value_of(folder) == 3
        # Nothing is left of any save before.
        assert set(os.listdir(folder)) == {INDEX, *files_of(read_index(folder))}
    assert len(found) > 30
    turn = found.index(2)
    assert set(found[:turn]) == {present}
    assert set(found[turn:]) == {2}


def test_everything_is_on_the_disk_before_the_index_names_it(tmp_path, monkeypatch):
    synced, moved = [], []
    fsync, replace = os.fsync, os.replace

    def recording_fsync(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def recording_replace(source, target):
        if Path(target).name == INDEX:
            assert {os.stat(path).st_ino for path in (source, *moved)} <= set(synced)
            assert synced[-1] == os.stat(tmp_path).st_ino  # the folder, after all moves
        moved.append(target)
        synced.append(None)  # what follows the last move must be a sync of the folder
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    write(tmp_path, 1)
    assert len(moved) == 5
    assert synced[-1] == os.stat(tmp_path).st_ino


def test_a_checkpoint_that_is_replaced_while_it_is_read_stays_readable(tmp_path):
    write(tmp_path, 1)
    checkpoint = Checkpoint(tmp_path)
    write(tmp_path, 2)
    assert torch.equal(checkpoint.model.whole("model2.weight"), torch.ones(50))
    assert value_of(tmp_path) == 2


def save_and_die(rank: int, folder: Path) -> None:
    model, optimizer = build(Setup(2, "zero3"), 0)
    save(folder, model, optimizer, {"step": 1})
    if rank == 0:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    save(folder, model, optimizer, {"step": 2})


def test_a_rank_killed_while_it_saves_is_named_and_the_old_checkpoint_loads(world_of, tmp_path):
    with pytest.raises(Exception, match="SIGKILL"):
        world_of(2).run(save_and_die, tmp_path)
    assert (tmp_path / SAVING).exists()
    assert Checkpoint(tmp_path).extra == {"step": 1}


def fail(rank: int, folder: Path) -> list[str]:
    """What each rank is told when rank 0 cannot write, at several points."""
    import resource

    told = []
    model, optimizer = build(Setup(2, "zero2"), 0)
    save(folder, model, optimizer, {"step": 1})

    def attempt(where: Path = folder, extra: object = None) -> None:
        with pytest.raises(CheckpointError) as error:
            save(where, model, optimizer, extra)
        told.append(str(error.value))

    small = (2000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, small)  # a disk that is full after 2000 bytes
    attempt()
    resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def refuse_to_move(*_) -> None:
        raise PermissionError("not permitted")

    replace = os.replace
    os.replace = refuse_to_move
    attempt()
    os.replace = replace
    attempt(where=folder / INDEX / "below a file")
    attempt(extra={"generator": torch.get_rng_state()})
    (folder.parent / "foreign").mkdir(exist_ok=True)
    (folder.parent / "foreign" / "model.safetensors").touch()
    attempt(where=folder.parent / "foreign")
    load(folder, model, optimizer)
    return told


def test_rank_0s_failure_to_write_reaches_all_ranks(world_of, tmp_path):
    folder = tmp_path / "run"
    first, second = world_of(2).run(fail, folder)
    assert first == second
    full, unmoved, unwritable, no_json, foreign = first
    assert "could not be written" in full
    assert "File too large" in full
    assert "PermissionError: not permitted" in unmoved
    assert "NotADirectoryError" in unwritable
    assert "tensor.tolist()" in no_json
    assert "foreign/model.safetensors was not written by `save`" in foreign
    assert Checkpoint(folder).extra == {"step": 1}
    assert not (folder / SAVING).exists()


def fail_on_a_mesh(rank: int, folder: Path) -> list[str]:
    """What each rank of 2 x 2 is told: when rank 0 cannot write, when rank 3 alone cannot read."""
    model, optimizer = build(Setup(4, "zero3", shape=SPLIT, tensor=2), 0, rank)
    save(folder, model, optimizer)
    told = []
    for action in (
        lambda: save(folder / INDEX / "below a file", model, optimizer),
        lambda: load(folder.parent if rank == 3 else folder, model, optimizer),
    ):
        with pytest.raises(CheckpointError) as error:
            action()
        told.append(str(error.value))
    return told


def test_one_ranks_failure_reaches_the_whole_mesh(world_of, tmp_path):
    told = world_of(4).run(fail_on_a_mesh, tmp_path / "run")
    assert all(words == told[0] for words in told)
    assert "NotADirectoryError" in told[0][0]
    assert f"{tmp_path} holds no checkpoint" in told[0][1]


# -- what does not fit ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(world_of, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    run(world_of, Setup(2, "zero2"), None, 0, 1, folder)
    return folder


def first_file(folder: Path, kind: str) -> Path:
    return min(folder.glob(f"{kind}-*"))


def remove(folder: Path) -> None:
    first_file(folder, "optimizer").unlink()


def truncate(folder: Path) -> None:
    os.truncate(first_file(folder, "model"), 300)


def empty(folder: Path) -> None:
    os.truncate(first_file(folder, "model"), 0)


def scribble(folder: Path) -> None:
    first_file(folder, "model").write_bytes(b"not a tensor " * 100)


def exchange(folder: Path) -> None:
    """A file with the same names and shapes, of another save."""
    path = first_file(folder, "optimizer")
    save_file(load_file(path), path)


def truncate_index(folder: Path) -> None:
    os.truncate(folder / INDEX, 100)


def remove_index(folder: Path) -> None:
    (folder / INDEX).unlink()


def cover_index(folder: Path) -> None:
    """An index that cannot be read, whoever asks: to root, permissions say nothing."""
    remove_index(folder)
    (folder / INDEX).mkdir()


def state_alone(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"optimizer": {"weight_map": {}}, "weight_map": {}}))


DAMAGE = {
    remove: "optimizer-00001-of-0[0-9]+.safetensors is missing",
    truncate: "model-00001-of-0[0-9]+.safetensors is truncated or no safetensors file",
    empty: "model-00001-of-0[0-9]+.safetensors is truncated or no safetensors file",
    scribble: "model-00001-of-0[0-9]+.safetensors is truncated or no safetensors file",
    exchange: "optimizer-00001-of-0[0-9]+.safetensors belongs to another checkpoint",
    truncate_index: f"{INDEX} is truncated or no index",
    remove_index: "holds no checkpoint",
    cover_index: "could not be read .IsADirectoryError",
    state_alone: "no index of a checkpoint .KeyError: 'class'",
}


def refuse(folder: Path, module: nn.Module, optimizer, message: str) -> None:
    """Loading says why not, and has changed nothing."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(CheckpointError, match=message) as error:
        load(folder, module, optimizer)
    assert "\n" not in str(error.value)
    assert difference(module.state_dict(), before) == 0
    assert optimizer is None or not optimizer.state


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_named_and_nothing_loaded(good, tmp_path, damage):
    import shutil

    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    damage(tmp_path)
    refuse(tmp_path, *build(Setup(1, ""), 7), DAMAGE[damage])


def test_another_model_or_optimizer_is_refused(good, tmp_path):
    smaller = reference.GPTShape(vocabulary=61, context=16, layers=2, heads=2, width=30)
    wider = reference.GPTShape(vocabulary=61, context=16, layers=3, heads=2, width=32)
    refuse(good, GPT(smaller), None, "holds blocks.2.* and 11 more, which the model has not")
    refuse(good, GPT(wider), None, r"has the shape \(\d+, 30\) in .* and \(\d+, 32\) in the model")
    refuse(good, GPT(TIED), None, "which the model has not")
    larger = GPT(SHAPE)
    larger.extra = nn.Linear(2, 2)
    refuse(good, larger, None, "holds no extra.bias and 1 more, which the model has")
    refuse(good, *build(Setup(1, "", optimizer="SGD"), 7), "state of AdamW, not of SGD")
    refuse(good, *build(Setup(1, "", grouped=True), 7), "saved with 1 parameter groups")
    module = GPT(SHAPE)
    module.head.requires_grad_(False)
    adam = torch.optim.AdamW(module.parameters())
    refuse(good, module, adam, "head.weight is in another parameter group")
    other = torch.optim.AdamW(GPT(SHAPE).parameters())
    refuse(good, module, other, "no parameter of the model")


def load_on_ranks(rank: int, good: Path, damaged: Path) -> str:
    model, optimizer = build(Setup(2, "zero3"), 7)
    before = model.full_state_dict()
    with pytest.raises(CheckpointError) as error:
        load(damaged if rank == 1 else good, model, optimizer)
    assert difference(model.full_state_dict(), before) == 0
    return str(error.value)


def test_what_one_rank_finds_all_ranks_raise(world_of, good, tmp_path):
    first, second = world_of(2).run(load_on_ranks, good, tmp_path)
    assert first == second
    assert f"{tmp_path} holds no checkpoint" in first
    (tmp_path / INDEX).mkdir()
    first, second = world_of(2).run(load_on_ranks, good, tmp_path)
    assert first == second
    assert f"{tmp_path} could not be read (IsADirectoryError" in first


def mismatched(rank: int, folder: Path) -> None:
    from zerolab.parallel import ShardedAdam, Zero1

    module = nn.Linear(2, 2)
    save(folder, Zero1(module), ShardedAdam(Zero1(nn.Linear(2, 2))))


def unwrapped(rank: int, folder: Path) -> None:
    save(folder, nn.Linear(2, 2))


def test_a_plain_module_is_not_saved_by_every_rank(world_of, tmp_path):
    with pytest.raises(Exception, match="a Linear is not what `save` takes: give a strategy or a"):
        world_of(2).run(unwrapped, tmp_path)


def test_an_optimizer_of_another_model_is_refused(world_of, tmp_path):
    with pytest.raises(Exception, match="ShardedAdam does not update this Zero1"):
        world_of(2).run(mismatched, tmp_path)


class Half(nn.Module):
    """Two layers, of which a step uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x)


def load_in_other_units(rank: int, folder: Path) -> None:
    from zerolab.parallel import ShardedAdam, Zero1

    model = Zero1(Half(), units=["used", "unused"])
    optimizer = ShardedAdam(model)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    save(folder, model, optimizer)
    load(folder, model, optimizer)
    one_unit = Zero1(Half(), units=[])
    load(folder, one_unit, ShardedAdam(one_unit))


def test_one_step_count_cannot_stand_for_two(world_of, tmp_path):
    with pytest.raises(Exception, match="used.weight and unused.weight lie in one unit and have"):
        world_of(2).run(load_in_other_units, tmp_path)
