"""What holds for every test, those in notebooks too.

No test is skipped in silence: a skip whose reason is not named here is a failure. The last lines of
a run say how much of each kind ran.
"""

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent

# Reasons that begin so are a system's, not a gap in what was installed. None applies to root on
# Linux, where continuous integration runs.
NAMED_SKIPS = (
    "a kernel is interrupted by a signal",
    "needs Linux's death signal",
    "no SIGALRM",
    "only Linux counts the bytes of its loopback interface",
    "the oracle stands beneath glibc's allocator",
    "this process may not have a host name of its own",
    "this system has no fork server",
    "throttling takes Linux, iproute2 and a network namespace",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if (ROOT / "tests" / "unit") in item.path.parents:
            item.add_marker("quick")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _unless_named((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _unless_named((yield))


def _unless_named(report):
    """The report, as a failure where it is a skip for a reason that is not named."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(NAMED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"skipped ({reason}), and conftest.py does not name that reason"
    return report


def pytest_terminal_summary(terminalreporter):
    ran = Counter(
        _kind(report.nodeid)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        if report.when == "call"
    )
    terminalreporter.write_line(
        "ran " + ", ".join(f"{number} {kind}" for kind, number in sorted(ran.items()))
    )


def _kind(nodeid: str) -> str:
    """ "unit", "site", ...: the folder of a test, or "notebook cells" for what nbval runs."""
    path = Path(nodeid.partition("::")[0])
    return "notebook cells" if path.suffix == ".ipynb" else path.parent.name
