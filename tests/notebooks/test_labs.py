"""The lab notebooks, and how they are graded.

The two notebooks themselves run whole, ranks and all. What grading does with broken ones is tried
on small notebooks that never start a rank.
"""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from zerolab.accounting import InputError
from zerolab.cli import main
from zerolab.teaching.checks import LABS, grading, tasks_of
from zerolab.teaching.checks.grading import grade, read_cells, run_cells

LAB_FOLDER = Path(__file__).parents[2] / "labs"
LAB_1 = LAB_FOLDER / "01-memory-accounting.ipynb"
SOLUTION_1 = LAB_FOLDER / "solutions" / LAB_1.name
NAMES = [task.name for task in tasks_of("1")]


# The notebooks in the repository.


def test_every_lab_has_a_notebook_and_a_solution():
    numbers = [f"{int(lab):02}" for lab in LABS]
    for folder in (LAB_FOLDER, LAB_FOLDER / "solutions"):
        assert [path.name[:2] for path in sorted(folder.glob("*.ipynb"))] == numbers


@pytest.mark.parametrize("path", [LAB_1, SOLUTION_1], ids=["lab", "solution"])
def test_a_notebook_is_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.language_info == {"name": "python"}
    assert all(not cell.metadata for cell in notebook.cells)


def test_the_lab_is_stored_fresh_and_the_solution_executed():
    lab, solution = (nbformat.read(path, as_version=4) for path in (LAB_1, SOLUTION_1))
    for cell in lab.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    counts = [cell.execution_count for cell in solution.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    outputs = [output for cell in solution.cells for output in cell.get("outputs", ())]
    assert {output.output_type for output in outputs} == {"stream"}
    assert {output.name for output in outputs} == {"stdout"}
    text = "".join(output.text for output in outputs)
    assert text.count("✓") == len(NAMES)
    assert "✗" not in text


def test_lab_and_solution_ask_the_same():
    """Every function, signature, docstring and check of the lab is the solution's too."""
    unsolved, solved = read_cells(LAB_1), read_cells(SOLUTION_1)
    stubs = [cell for cell in unsolved if "raise NotImplementedError" in cell]
    assert len(stubs) == len(NAMES)
    for stub in stubs:
        head = stub.partition("    raise NotImplementedError")[0]
        assert any(cell.startswith(head) for cell in solved), head
    for name in NAMES:
        check = [cell for cell in unsolved if cell.startswith(f'check("{name}"')]
        assert len(check) == 1
        assert solved.count(check[0]) == 1


def test_the_fresh_lab_runs_without_an_error_and_nothing_is_done_yet(monkeypatch, capsys):
    errors = []

    def run_and_note_errors(*arguments):
        errors.append(run_cells(*arguments))
        return errors[-1]

    monkeypatch.setattr(grading, "run_cells", run_and_note_errors)
    assert main(["check", str(LAB_1)]) == 1
    assert errors == [{}]
    assert capsys.readouterr().out.splitlines() == [
        f"✗ {task.name} not done yet: complete {task.function}" for task in tasks_of("1")
    ]


def test_the_solution_passes_and_stays_as_it_is(capsys):
    before = SOLUTION_1.read_bytes(), SOLUTION_1.stat().st_mtime_ns
    siblings = sorted(SOLUTION_1.parent.iterdir())
    assert main(["check", str(SOLUTION_1), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert [task["name"] for task in report["tasks"]] == NAMES
    assert all(task["message"].startswith("passed, on ") for task in report["tasks"])
    assert (SOLUTION_1.read_bytes(), SOLUTION_1.stat().st_mtime_ns) == before
    assert sorted(SOLUTION_1.parent.iterdir()) == siblings


# Notebooks as readers hand them in.

SETUP = "from zerolab.accounting import PRECISIONS\nfrom zerolab.teaching.checks import check"
STATE_BYTES = "def state_bytes(parameters, precision):\n    return parameters * precision.total"
PADDING = "def padding(unit_sizes, ranks):\n    return sum(-size % ranks for size in unit_sizes)"
CHECK = 'check("1.1", state_bytes)'


@pytest.fixture
def notebook(tmp_path):
    """`notebook(cell, ...)`: the path of a notebook with these code cells."""

    def write(*cells):
        path = tmp_path / "handed in.ipynb"
        written = [new_markdown_cell("# My lab"), *map(new_code_cell, cells)]
        nbformat.write(new_notebook(cells=written), path)
        return path

    return write


def graded(path, timeout=60):
    """Messages by task, and the names of the tasks that passed."""
    report = grade(path, timeout)
    assert [task.name for task in report.tasks] == NAMES
    messages = {task.name: task.message for task in report.tasks}
    return messages, {task.name for task in report.tasks if task.passed}


def test_what_is_missing_is_not_done_and_what_is_there_counts(notebook):
    path = notebook(
        SETUP,
        STATE_BYTES,
        CHECK,
        "1 / 0",  # does not keep the later cells from running
        "def waste(parameters, ranks, precision):\n    return ranks * parameters * precision.total",
        "def states(parameters, strategy, ranks, precision:\n    return {}",
        PADDING,
        "open('left behind', 'w').close()",
        "exit()",
        "input('wait for me')",
    )
    before = path.read_bytes()
    messages, passed = graded(path)
    assert passed == {"1.1", "1.5"}
    assert messages["1.2"] == "not done yet: complete policies"
    assert "one copy is needed" in messages["1.3"]
    assert messages["1.4"].startswith("not done yet: complete states; its cell raised SyntaxError")
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_the_report_is_plain_data(notebook):
    path = notebook(SETUP, STATE_BYTES, CHECK)
    report = grade(path)
    data = json.loads(json.dumps(report.as_dict()))
    assert set(data) == {"file", "lab", "passed", "tasks"}
    assert data["file"] == str(path)
    assert data["lab"] == "1"
    assert data["passed"] is False
    assert [set(task) for task in data["tasks"]] == [{"name", "passed", "message"}] * len(NAMES)
    assert [task["passed"] for task in data["tasks"]] == [True] + [False] * 6


@pytest.mark.skipif(sys.platform == "win32", reason="a kernel is interrupted by a signal")
def test_loops_without_end_cost_their_own_task_only(notebook):
    path = notebook(
        SETUP,
        CHECK,
        "while True:\n    print('still here')",
        STATE_BYTES,
        "def waste(parameters, ranks, precision):\n    while True:\n        pass",
        PADDING,
    )
    messages, passed = graded(path, timeout=2)
    assert passed == {"1.1", "1.5"}
    assert "had not returned after 10 s" in messages["1.3"]


def test_what_brings_the_kernel_down_is_left_out_of_a_second_run(notebook):
    path = notebook(
        SETUP,
        CHECK,
        "import os",
        STATE_BYTES,
        "os._exit(1)",
        "def policies(parameters, gigabytes):\n    pass\nos.abort()",
        "def waste(parameters, ranks, precision):\n    os._exit(1)",
        PADDING,
    )
    messages, passed = graded(path)
    assert passed == {"1.1", "1.5"}
    assert messages["1.2"] == "not done yet: complete policies; its cell ended the kernel"
    assert messages["1.3"] == "waste() ended the kernel"


def test_a_notebook_cannot_mark_itself(notebook):
    """Answers are judged where the notebook's code does not run."""
    path = notebook(
        SETUP,
        CHECK,
        "import zerolab.accounting, zerolab.teaching.checks as checks",
        "from zerolab.teaching.checks import checking, lab01",
        "check = lambda name, function: print('passed')",
        "checking.judge = lambda task, outcomes: checking.Verdict(task.name, True, 'passed')",
        "def state_bytes(parameters, precision):\n    return 0",
        "for task in lab01.TASKS:\n    object.__setattr__(task, 'truth', lambda *case: 0)",
        "lab01.total = lambda *case: 0",
    )
    messages, passed = graded(path)
    assert passed == set()
    assert "expected 112_000_000_000, got 0" in messages["1.1"]


def test_a_lab_is_known_by_its_checks_whatever_the_files_name(notebook):
    path = notebook(SETUP, "check('1.5', None)")
    assert grade(path).lab == "1"


def test_a_kernel_that_does_not_start_is_an_error_not_a_mark(notebook, monkeypatch):
    path = notebook(SETUP, STATE_BYTES, CHECK)
    monkeypatch.setenv("PYTHONHOME", str(path))
    with pytest.raises(RuntimeError, match="python3 does not start: it ended the kernel"):
        grade(path)


def test_without_a_kernel_there_is_a_hint(notebook, monkeypatch):
    none = Mock(side_effect=NoSuchKernel("python3"))
    monkeypatch.setattr(KernelSpecManager, "get_kernel_spec", none)
    with pytest.raises(InputError, match="kernel: got 'python3'; .* pip install ipykernel"):
        grade(notebook(SETUP, STATE_BYTES, CHECK))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such file"),
        (b"", "this is not a notebook"),
        (b"import zerolab", "this is not a notebook"),
        (b"\x00\xff\xfe", "this is not a notebook"),
        (b"[]", "this is not a notebook"),
        (b'{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "not a notebook"),
    ],
)
def test_a_file_that_is_no_notebook_is_one_line(tmp_path, content, said):
    path = tmp_path / "lab.ipynb"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        grade(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_is_no_notebook(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        grade(tmp_path)


def test_a_notebook_of_no_lab_is_one_line(notebook):
    with pytest.raises(InputError, match=r'no cell of this one calls check\("1\.1", …\)'):
        grade(notebook("print('hello')", "check('9.1', print)"))
