"""What `make test` does where the browser or the compiler is missing."""

import os
import stat

import pytest
import system_tools


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine("gcc", user=0)`: a machine that has these programs and no others."""

    def build(*programs, user):
        for name in programs:
            program = tmp_path / name
            program.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n')
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CHROMIUM", raising=False)
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(os, "geteuid", lambda: user)
        monkeypatch.setattr(system_tools, "CHROMIUM_NAMES", ("chromium", "google-chrome"))
        return tmp_path / "calls"

    return build


def test_nothing_is_done_where_all_is_there(machine, capfd):
    calls = machine("google-chrome", "cc", "tc", "apt-get", user=0)
    assert system_tools.main() == 0
    assert not calls.exists()
    assert capfd.readouterr() == ("", "")


def test_root_on_debian_installs_what_is_missing_and_no_more(machine):
    calls = machine("gcc", "tc", "apt-get", user=0)
    assert system_tools.main() == 0
    assert calls.read_text().splitlines() == [
        "apt-get --quiet=2 update",
        "apt-get --quiet=2 install --yes --no-install-recommends chromium",
    ]


@pytest.mark.parametrize(("programs", "user"), [(("apt-get",), 1000), ((), 0)])
def test_others_are_told_what_to_type(machine, capfd, programs, user):
    calls = machine(*programs, user=user)
    assert system_tools.main() == 1
    assert not calls.exists()
    said = capfd.readouterr().err
    assert "apt-get install chromium" in said
    assert "apt-get install build-essential" in said


def test_the_environment_may_name_the_browser(machine, monkeypatch, tmp_path):
    machine("my-browser", user=1000)
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "my-browser"))
    assert system_tools.chromium() == str(tmp_path / "my-browser")
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    assert system_tools.chromium() is None
