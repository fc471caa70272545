"""Grading a lab notebook: run it from top to bottom in a fresh kernel, then try what it defines.

The reader's file is only read: its cells run in an empty temporary folder. The functions are called
in the kernel, where they were defined; their answers are judged here, out of the notebook's reach.
"""

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat

from zerolab.accounting import InputError
from zerolab.teaching.checks import LABS, find, tasks_of
from zerolab.teaching.checks.checking import TIME_LIMIT, Outcome, Task, Verdict, attempt, judge
from zerolab.teaching.checks.kernel import GRACE, Kernel, fresh_kernel

CELL_LIMIT = 120.0  # seconds
WANTED = "the file of a lab notebook, such as labs/01-memory-accounting.ipynb"


@dataclass(frozen=True)
class Report:
    """The marks of one notebook: a verdict for each task of its lab."""

    file: str
    lab: str
    tasks: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        return all(task.passed for task in self.tasks)

    def as_dict(self) -> dict[str, Any]:
        tasks = [asdict(task) for task in self.tasks]
        return {"file": self.file, "lab": self.lab, "passed": self.passed, "tasks": tasks}


def grade(path: str | Path, timeout: float = CELL_LIMIT) -> Report:
    """Mark every task of the lab that the notebook is.

    timeout: seconds that one cell may take. A cell that raises or takes longer does not keep the
    later ones from running; one that the kernel does not survive is left out in a second run.
    Raises InputError for a file that is missing, is no notebook, or is none of the labs, and where
    there is no kernel to run it in.
    """
    cells = read_cells(Path(path))
    lab = lab_of(cells, str(path))
    tasks = tasks_of(lab)
    verdicts: list[Verdict] = []
    fatal: dict[int, str] = {}  # cells that the kernel did not survive, and how it went
    while len(verdicts) < len(tasks):
        with TemporaryDirectory(ignore_cleanup_errors=True) as name:
            folder = Path(name)
            with fresh_kernel(folder) as kernel:
                errors = run_cells(kernel, cells, fatal, timeout)
                for task in tasks[len(verdicts) :]:
                    if kernel.lost:
                        break
                    verdicts.append(mark(task, kernel, folder, _defining(task, cells, errors)))
    return Report(str(path), lab, tuple(verdicts))


def read_cells(path: Path) -> list[str]:
    """The source of each code cell."""
    if not path.is_file():
        raise InputError("notebook", str(path), f"{WANTED}; there is no such file")
    try:
        notebook = nbformat.read(path, as_version=4)
        return [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    except OSError as error:
        raise InputError("notebook", str(path), f"{WANTED}; {error.strerror}") from None
    except Exception:  # nbformat raises whatever it stumbles over
        raise InputError("notebook", str(path), f"{WANTED}; this is not a notebook") from None


def lab_of(cells: list[str], path: str) -> str:
    """Which lab the cells are from: the one whose tasks they check, whatever the file's name."""
    labs = re.findall(r"""\bcheck\(\s*["'](\d+)\.\d+["']""", "\n".join(cells))
    known = Counter(lab for lab in labs if lab in LABS)
    if not known:
        raise InputError("notebook", path, f'{WANTED}; no cell of this one calls check("1.1", …)')
    return known.most_common(1)[0][0]


def run_cells(
    kernel: Kernel, cells: list[str], fatal: dict[int, str], timeout: float
) -> dict[int, str]:
    """Run all cells but the fatal ones; the errors that cells ended with, by cell.

    Stops at a cell that the kernel does not survive, and adds it to `fatal`.
    """
    errors = dict(fatal)
    for number, cell in enumerate(cells):
        if number in fatal:
            continue
        if error := kernel.run(cell, timeout):
            errors[number] = error
        if kernel.lost:
            fatal[number] = errors[number]
            break
    return errors


def mark(task: Task, kernel: Kernel, folder: Path, error: str | None) -> Verdict:
    """The verdict on what the kernel now defines.

    error: what the cell that should define the function ended with, if it ended badly.
    """
    file = folder / f"{task.name}.json"
    trouble = kernel.run(
        "import zerolab.teaching.checks.grading as _grading\n"
        f"_grading.record({task.name!r}, globals(), {str(file)!r})",
        TIME_LIMIT + GRACE,
    )
    if not file.exists():
        return Verdict(task.name, False, f"{task.function}() {trouble}")
    outcomes = [Outcome(**outcome) for outcome in json.loads(file.read_text())]
    if error and outcomes[0].unfinished == task.function:
        outcomes = [Outcome(unfinished=f"{task.function}; its cell {error}")]
    return judge(task, outcomes)


def record(name: str, namespace: dict[str, Any], file: str) -> None:
    """Called in the kernel: try the task's function, if the notebook defines one, on all cases."""
    task = find(name)
    outcomes = attempt(task, namespace.get(task.function))
    Path(file).write_text(json.dumps([asdict(outcome) for outcome in outcomes]))


def _defining(task: Task, cells: list[str], errors: dict[int, str]) -> str | None:
    """The error of the cell that defines the task's function."""
    return next((errors[n] for n in errors if f"def {task.function}(" in cells[n]), None)
