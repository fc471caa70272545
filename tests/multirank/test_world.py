"""What World promises: results, output, failures told, nothing left behind."""

import ctypes
import gc
import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from zerolab import World, report
from zerolab.accounting.errors import InputError
from zerolab.runtime import launch
from zerolab.runtime.failure import RankError, RankTimeout
from zerolab.runtime.ledger import ledger

pytestmark = pytest.mark.quick

LONG = 100  # seconds that a rank is busy, were it not ended


def living(pids):
    """Those that still run; a zombie has ended."""
    return [pid for pid in pids if psutil.pid_exists(pid) and not _is_zombie(pid)]


def _is_zombie(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pids(rank):
    return os.getpid()


@pytest.fixture
def world():
    """A World of its own, for tests that end ranks."""
    with World(3, device="cpu", threads=1) as world:
        yield world


# ---------------------------------------------------------------- results


def test_results_come_by_rank_and_arguments_arrive(world_of):
    def compute(rank, factor, offset=0):
        return rank * factor + offset

    assert world_of(3).run(compute, 10, offset=5) == [5, 15, 25]


def test_ranks_share_a_process_group_and_stay_warm(world_of):
    def add_up(rank):
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        return total.item(), dist.get_backend()

    world = world_of(3)
    before = world.run(pids)
    assert world.run(add_up) == [(6.0, "gloo")] * 3
    assert world.run(pids) == before
    assert len({*before, os.getpid()}) == 4


@dataclass
class Point:
    x: int


def test_the_ledger_that_a_function_sees_is_its_ranks_own(world_of):
    def write(rank):
        with ledger.entry("all-gather", "a cell's view", 4, 2):
            pass
        from zerolab.runtime.ledger import ledger as own

        return own.events[-1].label, own.clear()

    assert world_of(2).run(write) == [("a cell's view", None)] * 2
    assert "a cell's view" not in [event.label for event in ledger.events]


def test_functions_of_a_module_travel_by_name(world_of):
    def move(rank, point):
        return Point(point.x + rank)

    assert world_of(2).run(move, Point(1)) == [Point(1), Point(2)]
    assert world_of(2).run(_move_by_name, Point(1)) == [Point(1), Point(2)]


def _move_by_name(rank, point):
    return Point(point.x + rank)


def test_tensors_arrive_as_leaves_on_the_cpu(world_of):
    def make(rank):
        weight = torch.nn.Parameter(torch.full((2,), float(rank)))
        return weight, weight.detach() * 2

    for rank, (weight, double) in enumerate(world_of(2).run(make)):
        assert isinstance(weight, torch.nn.Parameter)
        assert weight.is_leaf
        assert weight.device == double.device == torch.device("cpu")
        assert torch.equal(double, torch.full((2,), 2.0 * rank))


def test_a_large_argument_is_warned_of_and_a_view_is_named(world_of):
    view = torch.zeros(20_000_000)[:4]
    with pytest.warns(UserWarning, match=r"sends.*80 MB.*\(4,\), a view.*\.clone\(\)") as said:
        assert world_of(2).run(lambda rank: view.numel()) == [4, 4]
    assert said[0].filename == __file__


def test_a_large_result_is_warned_of(world_of):
    def make(rank):
        return torch.zeros(20_000_000 if rank == 1 else 1)

    with pytest.warns(UserWarning, match="receives from rank 1: 80 MB"):
        world_of(2).run(make)


def test_what_cannot_travel_is_refused_before_it_leaves(world_of):
    lock = threading.Lock()
    with pytest.raises(TypeError, match="lock") as raised:
        world_of(2).run(lambda rank: lock)
    assert "make them inside the function" in raised.value.__notes__[0]
    assert world_of(2).run(lambda rank: rank) == [0, 1]


def test_directory_and_import_path_follow_the_caller(world_of, tmp_path, monkeypatch):
    (tmp_path / "lately_written.py").write_text(
        "def where(rank):\n    import os; return os.getcwd()"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    from lately_written import where

    assert world_of(2).run(where) == [str(tmp_path)] * 2


def test_environment_and_threads_of_a_rank(monkeypatch):
    def look(rank):
        return os.environ["COLOUR"], torch.get_num_threads()

    monkeypatch.setenv("COLOUR", "blue")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    before = dict(os.environ)
    with World(2, device="cpu") as world:
        assert world.run(look) == [("blue", max(1, cores // 2))] * 2
    with World(1, device="cpu", threads=3) as world:
        assert world.run(look) == [("blue", 3)]
    assert dict(os.environ) == before


# ---------------------------------------------------------------- reports and output


def test_a_report_arrives_while_the_run_goes_on(world_of, tmp_path):
    def wait_for_the_answer(rank):
        report({"step": rank})
        while not (tmp_path / str(rank)).exists():
            time.sleep(0.01)

    heard = []

    def answer(rank, value):
        heard.append((rank, value))
        (tmp_path / str(rank)).touch()

    world_of(2).run(wait_for_the_answer, on_report=answer, timeout=LONG)
    assert sorted(heard, key=str) == [(0, {"step": 0}), (1, {"step": 1})]


def test_a_report_between_runs_is_not_taken_for_one_of_the_next(world_of, tmp_path):
    def report_late(rank):
        def late():
            while not (tmp_path / "ended").exists():
                time.sleep(0.01)
            report("late")
            (tmp_path / f"reported{rank}").touch()

        threading.Thread(target=late).start()

    heard = []
    world_of(2).run(report_late)
    (tmp_path / "ended").touch()
    while not all((tmp_path / f"reported{rank}").exists() for rank in range(2)):
        time.sleep(0.01)
    world_of(2).run(lambda rank: report("now"), on_report=lambda rank, value: heard.append(value))
    assert heard == ["now", "now"]


def test_report_outside_a_rank_is_refused():
    with pytest.raises(RuntimeError, match=r"World.run"):
        report(1)


def test_output_comes_by_rank_whatever_writes_it(world_of, capsys):
    def talk(rank):
        time.sleep(0.1 * (1 - rank))  # rank 1 speaks first
        print(f"one of {rank}\ntwo of {rank}")
        os.write(1, b"from below\n")
        os.system("echo from a child")
        print("to stderr", file=sys.stderr)
        print("no end", end="")

    world_of(2).run(talk)
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"[rank {rank}] {line}"
        for rank in range(2)
        for line in (f"one of {rank}", f"two of {rank}", "from below", "from a child", "no end")
    ]
    assert said.err.splitlines() == ["[rank 0] to stderr", "[rank 1] to stderr"]


def test_late_output_comes_with_the_next_run_or_the_end(world, capsys, tmp_path):
    def print_late(rank, name):
        def late():
            while not (tmp_path / name).exists():
                time.sleep(0.01)
            print(name)
            (tmp_path / f"{name}{rank}").touch()

        threading.Thread(target=late).start()

    def let(name):
        (tmp_path / name).touch()
        while not all((tmp_path / f"{name}{rank}").exists() for rank in range(3)):
            time.sleep(0.01)

    world.run(print_late, "first")
    let("first")
    assert capsys.readouterr().out == ""
    world.run(print_late, "second")
    assert capsys.readouterr().out == "[rank 0] first\n[rank 1] first\n[rank 2] first\n"
    let("second")
    world.close()
    assert capsys.readouterr().out == "[rank 0] second\n[rank 1] second\n[rank 2] second\n"


def test_live_output_comes_in_whole_lines_while_the_run_goes_on(capsys, tmp_path):
    shown = []

    def talk(rank):
        print("a whole line")
        print("half a ", end="", flush=True)
        for _ in range(10):  # the caller looks several times in between
            time.sleep(0.1)
            report(None)
        print("line")

    with World(1, device="cpu", live=True) as world:
        world.run(talk, on_report=lambda rank, value: shown.append(capsys.readouterr().out))
    shown.append(capsys.readouterr().out)
    assert "[rank 0] a whole line\n" in shown[:-1]
    assert shown[-1] == "[rank 0] half a line\n"
    assert set(shown[:-1]) == {"", "[rank 0] a whole line\n"}


# ---------------------------------------------------------------- failures


class Unsendable(Exception):
    """Pickles, but cannot be made again."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_an_exception_comes_back_with_its_rank_and_line(world, capsys):
    def fail(rank):
        print("before")
        if rank == 1:
            raise ZeroDivisionError("on purpose")

    with pytest.raises(
        RankError, match=r"^rank 1 raised ZeroDivisionError: on purpose\n"
    ) as raised:
        world.run(fail)
    message = str(raised.value)
    assert "ranks 0 and 2: finished" in message
    assert 'raise ZeroDivisionError("on purpose")' in message
    assert "zerolab/runtime" not in message  # the reader's frames only
    assert raised.value.rank == 1
    assert isinstance(raised.value.cause, ZeroDivisionError)
    assert capsys.readouterr().out == "".join(f"[rank {rank}] before\n" for rank in range(3))
    assert world.run(lambda rank: rank) == [0, 1, 2]


def test_an_exception_that_cannot_travel_is_told_all_the_same(world):
    def fail(rank):
        raise Unsendable("one", "two")

    with pytest.raises(RankError, match=r"^rank 0 raised Unsendable: one and two") as raised:
        world.run(fail)
    assert "ranks 1 and 2: raised Unsendable" in str(raised.value)
    assert raised.value.cause is None


def test_a_rank_that_exits_is_told(world):
    with pytest.raises(RankError, match=r"^rank 0 raised SystemExit: 3"):
        world.run(lambda rank: sys.exit(3))


def test_a_result_that_cannot_travel_is_told_like_an_exception(world):
    with pytest.raises(RankError, match=r"rank 0 raised TypeError: cannot pickle.*lock"):
        world.run(lambda rank: threading.Lock())


def test_ranks_that_wait_for_one_that_raised_are_named_and_ended(world):
    def fail(rank):
        if rank == 0:
            raise ValueError("boom")
        with ledger.entry("all-reduce", f"block {rank}", 4, 2):
            dist.all_reduce(torch.ones(1))

    before = world.run(pids)
    with pytest.raises(RankError, match=r"^rank 0 raised ValueError: boom") as raised:
        world.run(fail)
    assert "rank 1: waits in all-reduce of block 1" in str(raised.value)
    assert "rank 2: waits in all-reduce of block 2" in str(raised.value)
    assert living(before) == []
    assert world.run(lambda rank: rank) == [0, 1, 2]


def test_a_rank_killed_inside_a_collective(world):
    killed_at = []

    def die(rank):
        if rank == 2:

            def kill():
                report(time.monotonic())
                os.kill(os.getpid(), signal.SIGKILL)

            threading.Timer(0.3, kill).start()
        if rank != 0:
            with ledger.entry("all-reduce", "weights", 4, 2):
                dist.all_reduce(torch.ones(1))
        time.sleep(LONG)

    before = world.run(pids)
    with pytest.raises(RankError, match=r"^rank 2 was ended by signal SIGKILL") as raised:
        world.run(die, on_report=lambda rank, moment: killed_at.append(moment))
    assert time.monotonic() - killed_at[0] < 1.0  # monotonic time is the same in all processes
    assert raised.value.rank == 2
    assert "rank 0: at " in str(raised.value)
    assert "time.sleep(LONG)" in str(raised.value)
    assert re.search("rank 1: (waits|raised .*) in all-reduce of weights", str(raised.value))
    assert living(before) == []
    assert world.run(lambda rank: rank) == [0, 1, 2]


def test_a_crash_is_told_with_what_the_process_wrote(world, capsys):
    def crash(rank):
        if rank == 1:
            ctypes.string_at(0)
        time.sleep(LONG)

    with pytest.raises(RankError, match="rank 1 was ended by signal SIGSEGV"):
        world.run(crash)
    assert re.search(r'\[rank 1\]   File ".*", line \d+ in crash', capsys.readouterr().err)


def test_a_rank_that_leaves_is_told(world):
    with pytest.raises(RankError, match="rank 1 ended with exit code 7"):
        world.run(lambda rank: os._exit(7) if rank == 1 else time.sleep(LONG))


def test_a_rank_that_died_between_runs_is_replaced(world, capsys):
    victim = world.run(pids)[1]
    os.kill(victim, signal.SIGKILL)
    until = time.monotonic() + 10
    while psutil.pid_exists(victim) and time.monotonic() < until:
        time.sleep(0.001)  # a zombie's other threads may still be ending
    assert world.run(lambda rank: rank) == [0, 1, 2]
    assert "since the last run, rank 1 was ended by signal SIGKILL" in capsys.readouterr().err


@pytest.mark.skipif(launch.START_METHOD != "forkserver", reason="this system has no fork server")
def test_a_killed_fork_server_takes_its_ranks_along_and_is_replaced(world):
    before = world.run(pids)
    server = psutil.Process(before[0]).ppid()
    os.kill(server, signal.SIGKILL)
    until = time.monotonic() + 10
    while living([server, *before]) and time.monotonic() < until:
        time.sleep(0.01)
    assert living([server, *before]) == []
    assert world.run(lambda rank: rank) == [0, 1, 2]


def test_a_run_that_takes_too_long_is_ended_and_every_rank_located(world):
    def hang(rank):
        if rank == 0:
            re.match("(a+)+$", "a" * 40 + "b")  # years in C, without letting another thread run
        if rank == 1:
            with ledger.entry("all-gather", "blocks.3", 4, 2):
                dist.all_reduce(torch.ones(1))
        time.sleep(LONG)

    before = world.run(pids)
    with pytest.raises(
        RankTimeout, match=r"^the run did not end within its timeout of 1 s"
    ) as told:
        world.run(hang, timeout=1)
    message = str(told.value)
    assert "rank 0: no answer" in message
    assert "rank 1: waits in all-gather of blocks.3" in message
    assert re.search(rf"rank 2: at {re.escape(__file__)}:\d+ in hang: time.sleep\(LONG\)", message)
    assert living(before) == []
    assert world.run(lambda rank: rank, timeout=LONG) == [0, 1, 2]


def test_ranks_that_enter_different_collectives_are_told_apart():
    def diverge(rank):
        if rank == 0:
            with ledger.entry("all-gather", "blocks.3", 4, 2):
                dist.recv(torch.ones(1), src=1)
        with ledger.entry("reduce-scatter", "head", 4, 2):
            dist.recv(torch.ones(1), src=0)

    with World(2, device="cpu", timeout=1) as world:
        with pytest.raises(RankError) as raised:
            world.run(diverge)
        assert "all-gather of blocks.3" in str(raised.value)
        assert "reduce-scatter of head" in str(raised.value)
        assert world.run(lambda rank: rank) == [0, 1]


def test_an_interrupt_ends_the_run_and_the_next_one_works(world):
    before = world.run(pids)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        world.run(lambda rank: time.sleep(LONG))
    assert living(before) == []
    assert world.run(lambda rank: rank) == [0, 1, 2]


def test_idle_ranks_ignore_the_interrupt_of_their_terminal(world_of):
    before = world_of(2).run(pids)
    for pid in before:
        os.kill(pid, signal.SIGINT)
    assert world_of(2).run(pids) == before


def test_an_error_in_on_report_ends_the_run(world):
    def speak(rank):
        report(rank)
        time.sleep(LONG)

    def refuse(rank, value):
        raise LookupError("not today")

    with pytest.raises(LookupError, match="not today"):
        world.run(speak, on_report=refuse)
    assert world.run(lambda rank: rank) == [0, 1, 2]


# ---------------------------------------------------------------- life and death


def test_close_leaves_nothing_and_may_be_called_twice():
    world = World(2, device="cpu")
    ranks = world.run(pids)
    folders = world.run(lambda rank: psutil.Process().open_files()[0].path)
    world.close()
    world.close()
    assert living(ranks) == []
    assert not any(Path(folder).parent.exists() for folder in folders)
    with pytest.raises(RuntimeError, match="closed"):
        world.run(pids)


def test_a_world_that_nobody_holds_any_more_closes():
    world = World(2, device="cpu")
    ranks = world.run(pids)
    del world
    gc.collect()
    assert living(ranks) == []


def test_ranks_listen_on_the_loopback_interface_only(world_of):
    def listening(rank):
        connections = psutil.Process().net_connections("inet")
        return {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}

    assert set.union(*world_of(3).run(listening)) <= {"127.0.0.1", "::1"}


def test_a_world_made_in_a_thread_outlives_it():
    made = []
    thread = threading.Thread(target=lambda: made.append(World(2, device="cpu")))
    thread.start()
    thread.join()
    with made[0] as world:
        time.sleep(0.2)
        assert world.run(lambda rank: rank) == [0, 1]


def test_a_fork_of_the_caller_does_not_touch_its_ranks(world_of):
    world = world_of(2)
    before = world.run(pids)
    child = os.fork()
    if child == 0:
        world.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert world.run(pids) == before


def test_ranks_without_a_fork_server(monkeypatch):
    monkeypatch.setattr(launch, "START_METHOD", "spawn")

    def add_up(rank):
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        return total.item()

    with World(2, device="cpu", threads=1) as world:
        assert world.run(add_up) == [3.0, 3.0]


# ---------------------------------------------------------------- refusals and the choice of device


@pytest.mark.parametrize("ranks", [0, 5000, -1, "x", 2.0, True, None])
def test_a_wrong_number_of_ranks_is_refused(ranks):
    with pytest.raises(InputError) as raised:
        World(ranks)
    assert str(raised.value) == f"ranks: got {ranks!r}; accepted is a whole number from 1 to 256"


@pytest.mark.parametrize(
    ("options", "accepted"),
    [
        ({"device": "tpu"}, "one of cpu, auto, cuda"),
        ({"device": "cuda", "link": "1gbe"}, "links are emulated on CPUs"),
        ({"link": "carrier-pigeon"}, "10gbe"),
        ({"timeout": 0}, "seconds above 0"),
        ({"timeout": float("nan")}, "seconds above 0"),
        ({"threads": 0}, "whole number"),
    ],
)
def test_a_wrong_option_is_refused(options, accepted):
    with pytest.raises(InputError, match=accepted) as raised:
        World(2, **options)
    assert "\n" not in str(raised.value)


def test_a_wrong_timeout_of_a_run_is_refused(world_of):
    with pytest.raises(InputError, match="timeout"):
        world_of(2).run(pids, timeout=-1)


def test_worlds_do_not_nest(world):
    with pytest.raises(RankError, match="Worlds do not nest"):
        world.run(lambda rank: World(2))


def test_one_run_at_a_time(world):
    refused = []

    def run_again(rank, value):
        with pytest.raises(RuntimeError, match="one at a time"):
            world.run(pids)
        refused.append(rank)

    world.run(lambda rank: report(rank), on_report=run_again)
    assert sorted(refused) == [0, 1, 2]


def test_too_few_gpus_are_noticed_or_refused(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with World(2) as world:
        assert world.device == "cpu"
        assert world.run(lambda rank: dist.get_backend()) == ["gloo"] * 2
    assert "NCCL needs a GPU for each of 2 ranks, and there are 1" in capsys.readouterr().err
    with pytest.raises(InputError, match="NCCL needs a GPU for each of 2 ranks, not 1"):
        World(2, device="cuda")


def test_a_link_is_emulated_on_every_rank():
    from zerolab.accounting.links import LINKS
    from zerolab.runtime import link

    with World(2, device="cpu", link="1gbe") as world:
        assert world.run(lambda rank: link._link) == [LINKS["1gbe"]] * 2
