"""One environment: the pins, conda's file, the package's ranges and what is installed agree."""

import ast
import re
import sys
import tomllib
from importlib.metadata import distributions, packages_distributions, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pinned() -> dict[str, Requirement]:
    """The lines of requirements.txt, by name."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / "requirements.txt").open())
    requirements = [Requirement(line) for line in lines if line]
    names = [canonicalize_name(requirement.name) for requirement in requirements]
    assert len(names) == len(set(names)), "a package is pinned twice"
    return dict(zip(names, requirements, strict=True))


PINS = pinned()


def here(requirement: Requirement) -> bool:
    """Whether a requirement applies to this system and Python."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def test_every_package_has_one_exact_public_version():
    for requirement in PINS.values():
        (specifier,) = requirement.specifier
        assert specifier.operator == "=="
        # "2.13.0", not "2.13.0+cpu": any build of that version will do.
        assert Version(specifier.version).local is None
        assert requirement.url is None


def test_requirements_name_no_registry():
    text = (ROOT / "requirements.txt").read_text()
    assert not re.search(r"^\s*-|https?://|index-url|find-links", text, re.MULTILINE)


def test_what_is_installed_is_what_is_pinned():
    installed = {name: Version(version(name)).public for name, pin in PINS.items() if here(pin)}
    assert installed == {name: next(iter(PINS[name].specifier)).version for name in installed}


def test_everything_that_is_needed_is_pinned():
    """Whatever a pinned package needs is pinned too, so that nothing floats."""
    by_name = {canonicalize_name(found.metadata["Name"]): found for found in distributions()}
    needed = {
        canonicalize_name(requirement.name)
        for name, pin in PINS.items()
        if here(pin)
        for requirement in map(Requirement, by_name[name].requires or ())
        # A torch built for CUDA brings that build's own libraries.
        if here(requirement) and not (name == "torch" and _is_cuda(requirement.name))
    }
    assert needed - set(PINS) == set()


def test_everything_that_is_imported_is_pinned():
    """No file here leans on a package that happens to be installed."""
    named = {"lately_written"}  # by the test that imports it
    homes = packages_distributions()
    loose = {
        f"{path.relative_to(ROOT)}: {module}"
        for folder in ("zerolab", "tests", "book")
        for path in (ROOT / folder).rglob("*.py")
        for module in _imported(path) - named
        if not {canonicalize_name(home) for home in homes.get(module, [module])} & set(PINS)
    }
    assert loose == set()


def _imported(path: Path) -> set[str]:
    """Top-level modules that a file imports, neither Python's nor the project's own."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules.add(node.module.partition(".")[0])
    own = {path.stem for folder in ("tests", "book") for path in (ROOT / folder).rglob("*.py")}
    return modules - own - {"zerolab"} - set(sys.stdlib_module_names)


def _is_cuda(name: str) -> bool:
    return name.startswith(("nvidia-", "cuda-", "triton"))


@pytest.mark.parametrize("text", PROJECT["dependencies"])
def test_the_packages_ranges_admit_the_pins(text):
    range_ = Requirement(text)
    pin = next(iter(PINS[canonicalize_name(range_.name)].specifier)).version
    assert range_.specifier.contains(pin)


def test_condas_file_draws_on_the_same_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *from_conda, pips = environment["dependencies"]
    assert set(pips) == {"pip"}
    assert pips["pip"][0] == "-r requirements.txt"
    assert pips["pip"][1:] == ["-e ."]
    # conda brings Python and pip alone: a second version of a package could differ from the pin.
    assert {item.partition("=")[0] for item in from_conda} == {"python", "pip"}
    (python,) = (item.partition("=")[2] for item in from_conda if item.startswith("python="))
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(python)


def test_a_warning_stops_the_build_of_the_book():
    builds = re.findall(r"jupyter-book build .*", (ROOT / "Makefile").read_text())
    assert builds
    assert all({"-W", "-n"} <= set(build.split()) for build in builds)


def test_make_and_ci_use_the_same_pins():
    makefile = (ROOT / "Makefile").read_text()
    assert "--requirement requirements.txt" in makefile
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111 == 0o111
    assert "make test" in (ROOT / ".ci" / "run").read_text()
