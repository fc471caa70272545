"""What the tests need from the system, beside Python: a browser, a C compiler, iproute2 on Linux.

The site is tested in a real Chromium. The memory meter is held against an allocation counter
written in C, the model of a step's time against a network that the kernel throttles. A test that
cannot run proves nothing, so a missing tool stops `make test`: as root on Debian it is installed,
elsewhere the line to type is printed.
"""

import os
import shutil
import subprocess
import sys

CHROMIUM_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
COMPILER_NAMES = ("gcc", "cc", "clang")


def chromium() -> str | None:
    """The path of the browser: `$CHROMIUM` where it is set, else the first that is installed."""
    return _first([os.environ["CHROMIUM"]] if os.environ.get("CHROMIUM") else CHROMIUM_NAMES)


def compiler() -> str | None:
    """The path of a C compiler: `$CC` where it is set, else the first that is installed."""
    return _first([os.environ["CC"]] if os.environ.get("CC") else COMPILER_NAMES)


def throttle() -> str | None:
    """The path of `tc`, which Debian keeps where only root's PATH looks."""
    return shutil.which("tc", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _first(names) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


TOOLS = (
    # what for, how it is found, Debian's package
    ("a browser (Chromium or Chrome; $CHROMIUM may name one)", chromium, "chromium"),
    ("a C compiler", compiler, "build-essential"),
    *([("ip and tc", throttle, "iproute2")] if sys.platform == "linux" else ()),
)


def main() -> int:
    missing = [(what, package) for what, find, package in TOOLS if find() is None]
    if not missing:
        return 0
    packages = [package for _, package in missing]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print("Installing what the tests need:", *packages, flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", "--quiet=2", *command], check=True, env=environment)
        return 0
    for what, package in missing:
        print(f"The tests need {what}. On Debian: sudo apt-get install {package}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
