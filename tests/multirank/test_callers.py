"""World called from a notebook, from scripts, and under torchrun; and callers that are killed."""

import os
import signal
import subprocess
import sys
import time
from textwrap import dedent

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from zerolab.runtime import launch


def living(pids):
    """Those that still run; a zombie has ended."""
    alive = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                alive.append(pid)
        except psutil.NoSuchProcess:
            pass
    return alive


def all_ended(pids, seconds):
    """Have all ended, at the latest after that time?"""
    until = time.monotonic() + seconds
    while living(pids) and time.monotonic() < until:
        time.sleep(0.02)
    return living(pids) == []


# ---------------------------------------------------------------- a notebook


CELLS = [
    """
    from dataclasses import dataclass

    import torch
    import torch.distributed as dist

    from zerolab import World, report

    world = World(2, device="cpu", threads=1)
    factor = 10
    """,
    """
    @dataclass
    class Shape:
        width: int

        def doubled(self):
            return Shape(2 * self.width)

        def scaled(self):
            return self.width * factor


    class Net(torch.nn.Module):
        def __init__(self, shape):
            super().__init__()
            self.layer = torch.nn.Linear(shape.width, 1, bias=False)


    def measure(rank, shape):
        print("width", shape.width, "on", rank)
        net = Net(shape.doubled())
        torch.nn.init.constant_(net.layer.weight, factor + rank)
        return shape.doubled(), net


    shapes = world.run(measure, Shape(3))
    [net for _, net in shapes]
    """,
    """
    assert [type(shape) for shape, _ in shapes] == [Shape, Shape]
    assert [shape for shape, _ in shapes] == [Shape(6), Shape(6)]
    assert [type(net) for _, net in shapes] == [Net, Net]
    assert [net.layer.weight[0, 0].item() for _, net in shapes] == [10.0, 11.0]
    """,
    """
    # A class that has been to the ranks and back still sees the notebook's variables.
    factor = 100
    assert Shape(3).scaled() == shapes[0][0].scaled() // 2 == 300
    assert world.run(lambda rank: Shape(rank).scaled()) == [0, 100]
    """,
    """
    def train(rank):
        total = torch.ones(1)
        dist.all_reduce(total)
        if rank == 1:
            raise ValueError(f"loss is {total.item()}")


    world.run(train)
    """,
    """
    heard = []
    world.run(lambda rank: report(rank), on_report=lambda rank, value: heard.append((rank, value)))
    assert sorted(heard) == [(0, 0), (1, 1)]
    """,
]


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    """The folder for temporary files of the kernel, after the notebook has been executed."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def notebook(tmp_path_factory, temporary):
    """The cells above, executed by a real kernel; the one that fails fails as it should."""
    cells = [nbformat.v4.new_code_cell(dedent(cell).strip()) for cell in CELLS]
    cells[4].metadata["tags"] = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    folder = str(tmp_path_factory.mktemp("notebook"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        NotebookClient(notebook, timeout=120, resources={"metadata": {"path": folder}}).execute()
    return notebook


def test_a_notebook_sees_the_output_of_ranks_in_its_cell(notebook):
    streams = [out.text for out in notebook.cells[1].outputs if out.output_type == "stream"]
    assert "".join(streams) == "[rank 0] width 3 on 0\n[rank 1] width 3 on 1\n"


def test_a_notebooks_exception_quotes_the_line_of_its_cell(notebook):
    (error,) = (out for out in notebook.cells[4].outputs if out.output_type == "error")
    assert error.ename == "RankError"
    assert error.evalue.startswith("rank 1 raised ValueError: loss is 2.0\n")
    assert 'File "Cell In[5]", line 5, in train\n    raise ValueError(f"loss' in error.evalue


def test_a_notebook_that_closes_nothing_leaves_nothing(notebook, temporary):
    # A folder of multiprocessing's would mean that Jupyter had to kill the kernel.
    left = [entry.name for entry in temporary.iterdir()]
    assert [name for name in left if name.startswith(("zerolab", "pymp"))] == []


# ---------------------------------------------------------------- scripts


@pytest.fixture
def script(tmp_path):
    """`script(code, *arguments)`: a running Python script, ended at the end of the test."""
    running = []

    def start(code, *arguments, command=()):
        path = tmp_path / "script.py"
        path.write_text(dedent(code))
        process = subprocess.Popen(
            [sys.executable, *command, str(path), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            start_new_session=True,  # a process group of its own, like a terminal's job
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_a_script_needs_no_main_guard_and_no_close(script, tmp_path):
    (tmp_path / "beside.py").write_text("def double(rank): return 2 * rank")
    process = script("""
        open("started", "a").write("x")
        import os, sys, weakref
        weakref.finalize(sys, len, "")  # what ends at exit is ordered by when it began
        from beside import double
        from zerolab import World

        class Answer:
            def __init__(self, rank):
                self.rank = rank

        world = World(2, device="cpu")
        assert world.run(double) == [0, 2]
        assert [type(answer) for answer in world.run(lambda rank: Answer(rank))] == [Answer] * 2
        print(*world.run(lambda rank: os.getpid()))
        """)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert (tmp_path / "started").read_text() == "x"
    assert living(map(int, out.split())) == []


def test_an_interrupt_of_a_scripts_terminal(script):
    process = script("""
        import time
        from zerolab import World, report

        with World(2, device="cpu") as world:
            try:
                world.run(lambda rank: (report("here"), time.sleep(100)),
                          on_report=lambda rank, value: print(value, flush=True))
            except KeyboardInterrupt:
                print("interrupted", world.run(lambda rank: rank))
        """)
    assert process.stdout.readline() == "here\n"
    assert process.stdout.readline() == "here\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "interrupted [0, 1]\n", "")


def test_no_name_of_this_machine_needs_to_resolve(script):
    process = script("""
        import ctypes, socket, sys
        from zerolab import World

        NEW_HOSTNAME = 0x04000000  # CLONE_NEWUTS of linux/sched.h: a host name of our own
        if sys.platform != "linux" or ctypes.CDLL(None).unshare(NEW_HOSTNAME) != 0:
            sys.exit("not permitted")
        socket.sethostname("no-such-host.invalid")
        with World(2, device="cpu") as world:
            print(world.run(lambda rank: socket.gethostname()))
        """)
    out, err = process.communicate(timeout=60)
    if err == "not permitted\n":
        pytest.skip("this process may not have a host name of its own (root on Linux may)")
    assert (process.returncode, out, err) == (0, f"{['no-such-host.invalid'] * 2}\n", "")


BUSY = {
    "idle": "None",
    "computing": "while True: torch.ones(500, 500) @ torch.ones(500, 500)",
    "in a collective": "dist.recv(torch.ones(1), src=1 - rank)",
    "holding the interpreter's lock": "re.match('(a+)+$', 'a' * 40 + 'b')",
}


@pytest.mark.skipif(launch.START_METHOD != "forkserver", reason="needs Linux's death signal")
@pytest.mark.parametrize("doing", BUSY.values(), ids=BUSY)
def test_nothing_outlives_a_caller_that_is_killed(script, tmp_path, doing):
    process = script(
        f"""
        import os, re, time
        import torch
        import torch.distributed as dist
        from zerolab import World, report

        def work(rank):
            report((os.getpid(), os.getppid()))
            {doing}

        def tell(rank, pids):
            print(*pids, os.listdir(os.environ["TMPDIR"])[0], flush=True)

        os.environ["TMPDIR"] = {str(tmp_path / "temporary")!r}
        os.mkdir(os.environ["TMPDIR"])
        world = World(2, device="cpu", threads=1)
        world.run(work, on_report=tell)
        time.sleep(100)
        """
    )
    told = [process.stdout.readline().split() for _ in range(2)]
    pids = {int(pid) for *pids, _ in told for pid in pids}  # two ranks and their server
    assert len(pids) == 3
    time.sleep(0.5)  # let the ranks get busy
    assert len(living(pids)) == 3
    process.kill()
    assert all_ended(pids, seconds=2)
    if "re.match" not in doing:  # such a rank cannot tidy up
        assert list((tmp_path / "temporary").glob("zerolab-*")) == []


@pytest.mark.skipif(launch.START_METHOD != "forkserver", reason="needs Linux's death signal")
def test_nothing_outlives_a_caller_that_is_killed_as_it_starts(script):
    process = script("from zerolab import World\nprint('go', flush=True)\nWorld(2, device='cpu')")
    assert process.stdout.readline() == "go\n"
    time.sleep(0.2)
    children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert children
    process.kill()
    assert all_ended(children, seconds=2)


# ---------------------------------------------------------------- torchrun


def test_torchruns_ranks_are_used_as_they_are(script):
    code = """
        import os, sys
        import torch
        import torch.distributed as dist
        from zerolab import World, report
        from zerolab.accounting.errors import InputError

        def add_up(rank, offset):
            total = torch.tensor([rank + 1.0])
            dist.all_reduce(total)
            report(rank)
            try:
                World(2)
            except RuntimeError as error:
                assert "do not nest" in str(error)
            return os.getpid(), total.item() + offset

        try:
            World(3)
        except InputError as error:
            assert "WORLD_SIZE" in str(error)
        heard = []
        with World(2, device="cpu") as world:
            assert world.device == "cpu"
            results = world.run(add_up, offset=1, timeout=60,
                                on_report=lambda rank, value: heard.append((rank, value)))
            here = int(os.environ["RANK"])
            assert heard == [(here, here)]
            assert results[here][0] == os.getpid()
            assert [total for _, total in results] == [4.0, 4.0]
            assert len({pid for pid, _ in results}) == 2
        assert not dist.is_initialized()
        sys.stdout.write(f"rank {here} is well\\n")
        """
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    process = script(code, command=torchrun)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == ["rank 0 is well", "rank 1 is well"]


def test_a_run_under_torchrun_that_takes_too_long_says_where(script):
    code = """
        import time
        from zerolab import World

        def hang(rank):
            time.sleep(100)

        World(2, device="cpu").run(hang, timeout=1)
        """
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    process = script(code, command=torchrun)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert 'script.py", line 6 in hang' in err
