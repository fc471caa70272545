"""The accounting runs anywhere Python runs: no torch, nothing beyond the standard library."""

import subprocess
import sys


def test_imports_nothing_beyond_the_standard_library():
    program = (
        "import pkgutil, sys, importlib, zerolab.accounting as package\n"
        "for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
        "foreign = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(foreign - set(sys.stdlib_module_names) - before))"
    )
    # What the interpreter brings along (site hooks of installed packages) is not ours.
    program = "import sys; before = {n.partition('.')[0] for n in sys.modules}\n" + program
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['zerolab']"
