"""The appendices that are written from the project itself: reference, packages, results."""

import inspect
import json
import tomllib
from importlib import import_module

import pytest
from sitemap import BOOK, ROOT

import zerolab.cli

PACKAGES = ("zerolab", "zerolab.parallel", "zerolab.accounting")


@pytest.fixture(scope="module")
def reference(documents, site):
    return documents[site / "reference.html"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_with_its_docstring(reference, package):
    module = import_module(package)
    for name in module.__all__:
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        home = getattr(value, "__module__", package)
        section = reference.find("section", id=f"{home}.{name}")
        assert section, f"{package}.{name} is missing"
        if callable(value):
            first = inspect.getdoc(value).split("\n")[0]
            assert _plain(first) in _plain(section.get_text()), f"{name} lacks its docstring"


def test_a_public_name_has_a_docstring_of_its_own():
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                assert value.__doc__, f"{package}.{name}"


def test_nothing_private_is_there(reference):
    terms = [term.get_text() for term in reference.select("article dt, article h3")]
    assert len(terms) > 100
    assert [term for term in terms if term.startswith("_")] == []


def test_options_are_told_as_the_command_line_tells_them(reference):
    (said,) = [
        term.find_next_sibling("dd").get_text().strip()
        for term in reference.select("#zerolab-memory dt")
        if term.get_text() == "--count"
    ]
    assert said.startswith("with --config: build the model without weights")
    assert "default" not in [term.get_text() for term in reference.select("article dt")]


def test_a_call_is_shown_as_it_is_written(reference):
    section = reference.find("section", id="zerolab.runtime.world.World")
    shown = section.find("pre").get_text()
    for parameter in inspect.signature(zerolab.World).parameters.values():
        assert f"{parameter.name}: " in shown
    assert "self" not in shown


def test_every_option_of_the_command_line_is_there(reference):
    for name, command in zerolab.cli.COMMANDS.items():
        section = reference.find("section", id=f"zerolab-{name}")
        assert command.SUMMARY.lower() in section.get_text().lower()
        assert "--json" in section.get_text()
    assert "--precision" in reference.find("section", id="zerolab-memory").get_text()


def test_the_colophon_names_what_the_package_needs(documents, site):
    rows = documents[site / "colophon.html"].select("table tbody tr")
    found = {row.td.get_text(): [cell.get_text() for cell in row.find_all("td")] for row in rows}
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for requirement in needed:
        name, version, licence, purpose = found[requirement.partition(">")[0]]
        assert name
        assert version[0].isdigit()
        assert licence
        assert purpose


def test_the_results_are_those_that_were_measured(documents, site):
    page = documents[site / "results.html"]
    shown = {tuple(c.get_text() for c in row.find_all("td")) for row in page.select("tbody tr")}
    compared, benched = (
        json.loads((BOOK / "data" / f"{name}.json").read_text()) for name in ("compare", "bench")
    )
    for row in compared["rows"]:
        kept = [f"{size:,}" for size in row["persistent"].values()]
        assert any([*cells[1:4]] == kept and f"{row['peak']:,}" in cells for cells in shown)
    for row in benched["rows"]:
        setup = (f"{row['ours']} / {row['peer']}", f"{row['ranks']}\xa0×\xa0{row['tokens']}")
        (ratios,) = [cells[2:] for cells in shown if cells[:2] == setup]
        for (name, ratio), text in zip(row["ratio"].items(), ratios, strict=True):
            assert text.endswith("*") == (name in row["missed"])
            assert ratio is None or abs(float(text.split()[0]) - ratio) <= 0.005
    for data in (compared, benched):
        assert data["command"] in page.get_text()
    missed = sum(len(row["missed"]) for row in benched["rows"])
    assert page.get_text().count("at most") == missed


def test_a_comparison_that_is_not_as_predicted_stops_the_build(monkeypatch):
    monkeypatch.syspath_prepend(BOOK / "extensions")
    import results

    class Directive:
        error = RuntimeError

    right = results.read("compare")
    assert len(results.Comparison.run(Directive)) == 3
    for state in ("persistent", "ledger_wire_bytes"):
        wrong = json.loads(json.dumps(right))
        if state == "persistent":
            wrong["rows"][1][state]["optimizer"] += 1
        else:
            wrong["rows"][1][state] += 1_000_000
        monkeypatch.setattr(results, "read", lambda name, wrong=wrong: wrong)
        with pytest.raises(RuntimeError, match="zero1 (keeps|sends)"):
            results.Comparison.run(Directive)


def _plain(text: str) -> str:
    """Without marks, and with quotation marks as they are typed."""
    for curled, typed in (("“", '"'), ("”", '"'), ("’", "'"), ("`", ""), ("*", "")):
        text = text.replace(curled, typed)
    return " ".join(text.split())
