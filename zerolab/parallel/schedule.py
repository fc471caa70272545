"""Which stage comes next, and which are done.

Forward is learnt: it is expected to run the stages of the forward before. A wrong guess costs a
gather for nothing; ranks guess alike because they have seen the same stages.

Backward is known. Autograd runs first what was recorded last, so it comes past the beginnings and
ends of stages in exactly the reverse order:

    forward      root begins   block begins   block ends     root ends
    backward     post root     post block     pre block      pre root      from right to left

When it reaches one of these, all that lie to the right are behind it, even those of a stage whose
output this rank did not need. So ranks that need different outputs still do the same, in one order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from zerolab.parallel.layout import Stage


@dataclass(eq=False)
class Use:
    """One forward of a stage, until its backward has ended."""

    stage: Stage
    forward: int  # which of the model's forwards it belongs to
    inputs: list[Tensor] = field(default_factory=list)  # the differentiable ones, during forward
    begun: bool = False  # its backward


class Schedule:
    """The order of stages in the step before, and the tape of this one."""

    def __init__(self) -> None:
        self._forward = 0
        self._learnt: list[Stage] = []
        self._running: list[Stage] = []
        self._tape: list[tuple[Use, bool]] = []  # (use, whether this is its end)
        self._reached: set[int] = set()  # the forwards that the backward under way comes through

    def forward_begins(self) -> None:
        """Note that the model's forward begins."""
        self._forward += 1

    def begin(self, stage: Stage) -> tuple[Use, Stage | None]:
        """Note that a stage's forward begins; its use, and the stage to expect after it."""
        at = len(self._running)
        self._running.append(stage)
        use = Use(stage, self._forward)
        self._tape.append((use, False))
        expected = self._learnt[at : at + 2]
        return use, expected[1] if len(expected) == 2 and expected[0] is stage else None

    def end(self, use: Use, differentiable: bool) -> None:
        """Note that a stage's forward ends. Without a differentiable output it has no backward."""
        if differentiable:
            self._tape.append((use, True))
        else:
            self._tape.remove((use, False))

    def latest(self, stage: Stage) -> Use | None:
        """The use of a stage that began last."""
        return next((use for use, _ in reversed(self._tape) if use.stage is stage), None)

    def rewind(self, to: tuple[Use, bool] | None = None) -> Iterator[tuple[Use, bool]]:
        """What backward has come past when it comes to a point of the tape, in order, that point
        included; everything that is left where `to` is None. Nothing if the point is not, or no
        longer, on the tape.
        """
        if to is not None:
            if to not in self._tape:
                return
            self._reached.add(to[0].forward)
        while self._tape:
            point = self._tape.pop()
            if point[0].forward in self._reached:
                yield point
            if point == to:
                return

    def next_backward(self) -> Stage | None:
        """The stage whose backward is to be expected next."""
        coming = (use for use, is_end in reversed(self._tape) if is_end)
        return next((use.stage for use in coming if use.forward in self._reached), None)

    def step_ended(self) -> None:
        """A backward has ended: what ran is what to expect next."""
        if self._running:
            self._learnt = self._running
        self.forget()

    def forget(self) -> None:
        """Await no backward; a forward that was cut off says nothing about the next."""
        self._running, self._tape = [], []
        self._reached.clear()
