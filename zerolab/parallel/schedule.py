"""Which stage comes next: what prefetching needs to know.

The order is learnt: a forward is expected to run the stages of the forward before, and a backward
those of its own forward, from last to first. A wrong guess costs a gather for nothing; ranks guess
alike because they have seen the same stages.
"""

from zerolab.parallel.layout import Stage


class Schedule:
    """The order of stages in the step before, and so far in this one."""

    def __init__(self) -> None:
        self._learnt: list[Stage] = []
        self._running: list[Stage] = []
        self._back = 0  # stages of `_running` whose backward is still to come

    def forward(self, stage: Stage) -> Stage | None:
        """Note that a stage's forward begins; the one to expect after it."""
        at = len(self._running)
        self._running.append(stage)
        self._back = len(self._running)
        expected = self._learnt[at : at + 2]
        return expected[1] if len(expected) == 2 and expected[0] is stage else None

    def backward(self, stage: Stage) -> Stage | None:
        """Note that a stage's backward begins; the one to expect after it."""
        for at in reversed(range(self._back)):
            if self._running[at] is stage:
                self._back = at
                return self._running[at - 1] if at else None
        return None

    def step_ended(self) -> None:
        """A backward has ended: what ran is what to expect next."""
        if self._running:
            self._learnt, self._running = self._running, []
        self._back = 0

    def forget(self) -> None:
        """A forward was cut off: what ran of it says nothing."""
        self._running, self._back = [], 0
