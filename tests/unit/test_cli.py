"""The command line: what it prints, what it refuses and how."""

import json
import os
import subprocess
import sys

import pytest

from zerolab.cli import main

pytestmark = pytest.mark.quick


def call(capsys, *arguments):
    """Exit status, standard output and standard error of one command."""
    try:
        status = main(arguments)
    except SystemExit as exit:  # argparse's own
        status = exit.code
    return status, *capsys.readouterr()


def test_memory_prints_the_zero_papers_first_figure(capsys):
    status, out, _ = call(
        capsys, "memory", "--params", "7.5B", "--ranks", "64", "--precision", "mixed", "--json"
    )
    found = json.loads(out)
    assert status == 0
    assert (found["parameters"], found["ranks"], found["precision"]) == (7_500_000_000, 64, "mixed")
    totals = {name: states["total"] for name, states in found["strategies"].items()}
    assert totals == {
        "ddp": 120_000_000_000,
        "zero1": 31_406_250_000,
        "zero2": 16_640_625_000,
        "zero3": 1_875_000_000,
    }
    assert found["strategies"]["zero2"] == {
        "parameters": 15_000_000_000,
        "gradients": 234_375_000,
        "optimizer": 1_406_250_000,
        "total": 16_640_625_000,
    }


def test_traffic_counts_two_passes_and_three(capsys):
    _, out, _ = call(capsys, "traffic", "--params", "1e9", "--ranks", "4", "--json")
    sent = {name: found["wire_bytes"] for name, found in json.loads(out)["strategies"].items()}
    two, three = 3_000_000_000, 4_500_000_000  # times 2 bytes, times 3/4
    assert sent == {"ddp": two, "zero1": two, "zero2": two, "zero3": three}


def test_memory_takes_a_published_model(capsys):
    status, out, _ = call(capsys, "memory", "--model", "llama-2-7b", "--ranks", "8", "--json")
    assert status == 0
    assert json.loads(out)["parameters"] == 6_738_415_616


def test_memory_takes_a_config_and_counts_the_real_model(capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "vocab_size": 1000,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "tie_word_embeddings": False,
            }
        )
    )
    status, out, _ = call(capsys, "memory", "--config", str(config), "--json")
    assert status == 0
    on_paper = json.loads(out)["parameters"]
    status, out, _ = call(capsys, "memory", "--config", str(config), "--count", "--json")
    assert status == 0
    counted = json.loads(out)
    assert counted["parameters"] == on_paper
    assert counted["activations"] > 0


def test_plan_says_what_fits_and_what_would(capsys):
    job = ("--model", "llama-2-70b", "--gpu", "h100-80gb", "--link", "ib-hdr")
    status, out, _ = call(capsys, "plan", *job, "--gpus", "64", "--json")
    assert status == 0
    found = json.loads(out)
    best = found["candidates"][0]
    assert (best["strategy"], best["fits"]) == ("zero3", True)
    assert best["needed"] <= best["memory"]
    times = [c["step_seconds"] for c in found["candidates"] if c["fits"]]
    assert times == pytest.approx(sorted(times), rel=1e-5)
    status, out, _ = call(capsys, "plan", *job, "--gpus", "8")
    assert status == 0
    assert "nothing fits" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("memory", "--model", "llama-2-71b"), "--model: got 'llama-2-71b'; accepted is one of"),
        (("memory", "--params", "7e9", "--count"), "a config.json beside it"),
        (("memory", "--config", "no such file.json"), "no such file.json"),
        (
            ("plan", "--model", "gpt2", "--gpu", "h10", "--gpus", "8", "--link", "nvlink4"),
            "--gpu: got 'h10'; accepted is one of h100-80gb",
        ),
        (
            ("plan", "--model", "gpt2", "--gpu", "t4-16gb", "--gpus", "0", "--link", "nvlink4"),
            "--gpus: got '0'",
        ),
    ],
)
def test_models_and_plans_refuse_in_one_line(capsys, arguments, message):
    status, out, err = call(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("command", ["memory", "traffic"])
def test_tables_are_plain_text_of_80_columns_when_piped(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = call(capsys, command, "--params", "1e12", "--ranks", "1024")
    assert status == 0
    assert "1,000,000,000,000 parameters" in out
    assert all(name in out for name in ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"))
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_accounting_and_help_do_not_wait_for_torch():
    script = """
import sys
from zerolab.cli import main
try:
    main(sys.argv[1:])
finally:
    assert "torch" not in sys.modules
"""
    for arguments in (["memory", "--params", "7e9"], ["traffic", "--params", "7e9"], ["--help"]):
        subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True)


def test_help_names_every_command_and_what_it_accepts(capsys):
    status, out, _ = call(capsys, "--help")
    assert status == 0
    assert all(name in out for name in ("memory", "traffic", "compare", "train", "check"))
    _, out, _ = call(capsys, "compare", "--help")
    assert all(name in out for name in ("zero3", "mixed", "10gbe", "zerolab-compare.png"))


MEMORY = ("memory", "--params", "7e9")


@pytest.mark.parametrize(
    ("arguments", "option", "given", "accepted"),
    [
        ((), "COMMAND", "", "zerolab --help"),
        (("comprae",), "command", "comprae", "one of compare,"),
        (("memory",), "--params", "", "required"),
        (("memory", "--params"), "--params", "", "expected one argument"),
        (("memory", "--params", "-7"), "--params", "-7", "from 1"),
        (("memory", "--params=-7e9"), "--params", "-7e9", "from 1"),
        (("memory", "--params", "0"), "--params", "'0'", "from 1"),
        (("memory", "--params", "nan"), "--params", "nan", "7e9"),
        (("memory", "--params", "7e9GB"), "--params", "7e9GB", "350M"),
        (("memory", "--params", "1e30"), "--params", "1e30", "1e+15"),
        ((*MEMORY, "--ranks", "0"), "--ranks", "'0'", "from 1 to"),
        ((*MEMORY, "--ranks", "1.5"), "--ranks", "1.5", "whole number"),
        ((*MEMORY, "--precision", "mixd"), "--precision", "mixd", "one of mixed,"),
        ((*MEMORY, "--rnaks", "3"), "option", "--rnaks", "one of --ranks,"),
        ((*MEMORY, "--par", "3"), "option", "--par", "--params"),
        (("compare", "--ranks", "0"), "--ranks", "'0'", "from 1 to 256"),
        (("compare", "--ranks", "5000"), "--ranks", "5000", "from 1 to 256"),
        (("compare", "--strategies", "zero4"), "--strategies", "zero4", "zero3"),
        (("compare", "--strategies", "ddp,zer3"), "--strategies", "zer3", "one of zero3,"),
        (("compare", "--strategies", "ddp,"), "--strategies", "''", "zero3"),
        (("compare", "--steps", "2"), "--steps", "'2'", "from 3"),
        (("compare", "--steps", "many"), "--steps", "many", "from 3"),
        (("compare", "--seed", "-1"), "--seed", "-1", "from 0"),
        (("compare", "--precision", "fp8"), "--precision", "fp8", "fp32"),
        (("compare", "--link", "nvlnk4"), "--link", "nvlnk4", "one of nvlink4,"),
        (("compare", "--corpus", "missing.txt"), "--corpus", "missing.txt", "a text file"),
        (("compare", "--corpus", "empty.txt"), "--corpus", "empty.txt (empty)", "a text file"),
        (("compare", "--corpus", "binary.txt"), "--corpus", "byte 3", "UTF-8 text"),
        (("compare", "--corpus", "short.txt"), "--corpus", "100 bytes", "at least 1,290 bytes"),
        (("compare", "--figure", "figure"), "--figure", "figure", ".png"),
        (("compare", "--figure", "missing/figure.png"), "--figure", "missing", "can be written"),
        (("compare", "--figure", "short.txt/figure.png"), "--figure", "short.txt", "written"),
        (("compare", "--figure", "folder.png"), "--figure", "folder.png", "a file"),
        (("train", "--strategy", "zero"), "--strategy", "'zero'", "zero1"),
        (("train", "--corpus", "empty.txt"), "--corpus", "empty.txt", "a text file"),
        (("check",), "LAB.ipynb", "", "required"),
        (("check", "missing.ipynb"), "notebook", "missing.ipynb", "a lab notebook"),
        (("check", "short.txt"), "notebook", "short.txt", "a lab notebook"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(
    tmp_path, monkeypatch, capsys, arguments, option, given, accepted
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(b"\x7fEL\xff\0" * 400)
    (tmp_path / "short.txt").write_bytes(b"a b c d e " * 10)
    (tmp_path / "folder.png").mkdir()
    before = sorted(os.listdir(tmp_path))
    status, out, error = call(capsys, *arguments)
    assert (status, out) == (2, "")
    assert error.startswith("zerolab")
    assert error.endswith("\n")
    assert len(error.splitlines()) == 1
    assert option in error
    assert given in error
    assert accepted in error
    assert sorted(os.listdir(tmp_path)) == before


def test_python_m_zerolab_is_the_same_program():
    run = subprocess.run(
        [sys.executable, "-m", "zerolab", "memory", "--params", "nan"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert run.stderr.startswith("zerolab: --params: got 'nan'")
