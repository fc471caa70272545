"""Checks of the lab notebooks: `check("1.3", waste)` says whether `waste` is right, or why not."""

from importlib import import_module
from typing import Any

from zerolab.teaching.checks.checking import Task, attempt, judge

LABS = {"1": "zerolab.teaching.checks.lab01"}


def check(name: str, function: Any) -> None:
    """Print whether the function solves the task of that name, such as "1.3".

    function: the function itself, not its result. Nothing that it does is raised here.
    """
    task = find(name)
    print(judge(task, attempt(task, function)))


def tasks_of(lab: str) -> tuple[Task, ...]:
    """All tasks of a lab, in order. lab: "1" and so on."""
    return import_module(LABS[lab]).TASKS


def find(name: str) -> Task:
    """The task of that name. Raises ValueError that lists the tasks for any other."""
    tasks = {task.name: task for lab in LABS for task in tasks_of(lab)}
    if name not in tasks:
        raise ValueError(f"there is no task {name!r}; there are {', '.join(tasks)}")
    return tasks[name]
