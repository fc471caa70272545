"""What public calculators print, taken apart: a run's true bytes and each tool's own terms.

Four set-ups (`case`) were given to nine tools (`tools`). Each figure they print is a `Cell`: our
count of the same thing under a named policy, plus what the tool counts otherwise, term by term.
All are bytes on one GPU.
"""

from zerolab.accounting.reconciliation.case import CASES, Case, Cell, autograd
from zerolab.accounting.reconciliation.tools import TOOLS, Tool

__all__ = ["CASES", "TOOLS", "Case", "Cell", "Tool", "autograd"]
