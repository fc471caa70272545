"""The command line: what it prints, what it refuses and how."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest

from zerolab.accounting import STRATEGIES
from zerolab.accounting.marks import BESIDE
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


RUN = ("memory", "--model", "llama-2-7b", "--ranks", "8", "--sequence", "4096")


def test_memory_lists_moments_whose_parts_add_up_and_names_the_peak(capsys):
    _, out, _ = call(capsys, *RUN, "--micro-batches", "2", "--json")
    found = json.loads(out)
    for strategy in STRATEGIES:
        entry = found["strategies"][strategy]
        assert len(entry["moments"]) == 5
        for moment in entry["moments"]:
            assert moment["total"] == sum(part["bytes"] for part in moment["parts"])
            assert {part["mark"] for part in moment["parts"]} == {"exact", "formula"}
        largest = max(entry["moments"], key=lambda moment: moment["total"])
        assert entry["peak"] == {"moment": largest["moment"], "total": largest["total"]}
        assert {a["part"] for a in entry["beside"]} == set(BESIDE)
        assert all(a["bytes"] <= a["bytes_high"] for a in entry["beside"])
        assert all(a["mark"] == "rule of thumb" and a["source"] for a in entry["beside"])
    kept = sum(size for lines in found["activations"].values() for size in lines.values())
    parts = {part["part"]: part["bytes"] for part in entry["moments"][0]["parts"]}
    assert parts["activations"] == kept


def test_what_autograd_keeps_is_an_option(capsys):
    def alive(*options):
        """At the end of forward."""
        _, out, _ = call(capsys, *RUN, "--strategy", "zero3", *options, "--json")
        (entry,) = json.loads(out)["strategies"].values()
        return entry["moments"][0]["total"]

    plain = alive()
    assert alive("--recompute", "full") < alive("--recompute", "selective") < plain
    assert alive("--loss", "fused") < plain
    assert alive("--loss", "chunked") < plain
    for dearer in ("--attention=plain", "--norm=eager", "--activation=eager", "--dropout"):
        assert alive(dearer) > plain
    assert alive("--tensor-parallel", "4", "--sequence-parallel") < plain
    assert alive("--batch", "2") > plain


def test_a_monitors_figure_is_taken_apart(capsys):
    _, out, _ = call(capsys, *RUN, "--strategy", "zero3", "--observed", "40GB", "--json")
    (entry,) = json.loads(out)["strategies"].values()
    found = entry["observed"]
    assert found["shown"] == 40 * 10**9
    assert found["tensors"] == entry["peak"]["total"]
    assert found["remainder"] == found["shown"] - found["tensors"]
    most = sum(a["bytes_high"] for a in entry["beside"])
    assert found["named"] == most
    assert found["unexplained"] == found["remainder"] - most > 0
    for shown, says in (
        ("40GB", "are unexplained"),
        ("33 GB", "nothing is unexplained"),
        ("28GiB", "more than is shown"),
    ):
        _, out, _ = call(capsys, *RUN, "--strategy", "zero3", "--observed", shown)
        assert says in " ".join(out.split())


def test_memory_as_csv_is_the_same_account(capsys):
    _, out, _ = call(capsys, *RUN, "--observed", "40GB", "--strategy", "zero2", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ["strategy", "moment", "part", "bytes", "bytes_high", "mark"]
    _, out, _ = call(capsys, *RUN, "--observed", "40GB", "--strategy", "zero2", "--json")
    found = json.loads(out)
    entry = found["strategies"]["zero2"]
    totals = {}
    for row in rows:
        totals[row["moment"]] = totals.get(row["moment"], 0) + int(row["bytes"])
    assert totals["at rest"] == entry["total"]
    for moment in entry["moments"]:
        assert totals[moment["moment"]] == moment["total"]
    assert totals["activations"] == sum(sum(v.values()) for v in found["activations"].values())
    ranges = [row for row in rows if int(row["bytes"]) < int(row["bytes_high"])]
    assert {row["part"] for row in ranges} == set(BESIDE)
    assert {row["mark"] for row in ranges} == {"rule of thumb"}


def test_traffic_counts_messages_accumulation_and_both_groups(capsys):
    options = ("--model", "llama-2-7b", "--ranks", "4", "--tensor-parallel", "8")
    _, out, _ = call(capsys, "traffic", *options, "--micro-batches", "3", "--json")
    found = json.loads(out)["strategies"]
    for entry in found.values():
        for name in ("wire_bytes", "messages"):
            assert entry[name] == entry["data"][name] + entry["tensor"][name]
    assert found["zero2"]["data"]["messages"] == 2 * found["zero1"]["data"]["messages"]
    assert found["zero3"]["tensor"] == found["ddp"]["tensor"]
    _, out, _ = call(capsys, "traffic", *options, "--micro-batches", "3", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ["strategy", "group", "wire_bytes", "messages", "seconds"]
    assert [(row["strategy"], row["group"]) for row in rows] == [
        (strategy, group) for strategy in STRATEGIES for group in ("data", "tensor")
    ]
    assert int(rows[-1]["wire_bytes"]) == found["zero3"]["tensor"]["wire_bytes"]
    assert {row["seconds"] for row in rows} == {""}


def test_traffic_on_a_link_takes_messages_times_latency_and_bytes_over_bandwidth(capsys):
    _, out, _ = call(
        capsys, "traffic", "--params", "1e9", "--ranks", "4", "--link", "ib-hdr", "--json"
    )
    found = json.loads(out)["strategies"]["zero3"]
    assert found["messages"] == 9
    assert found["seconds"] == pytest.approx(9 * 14e-6 + 4.5e9 / 25e9)


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
    count = ("memory", "--config", str(config), "--count")
    _, out, _ = call(capsys, *count, "--precision", "fp32", "--json")
    assert json.loads(out)["activations"] > counted["activations"]
    _, out, _ = call(capsys, *count, "--precision", "fp32")
    assert "1 × 1,024 tokens in 32 bits" in " ".join(out.split())


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


def test_plan_as_csv_has_a_line_a_candidate(capsys):
    job = ("--model", "llama-2-7b", "--gpu", "h100-80gb", "--link", "nvlink4", "--gpus", "8")
    _, out, _ = call(capsys, "plan", *job, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    _, out, _ = call(capsys, "plan", *job, "--json")
    found = json.loads(out)
    assert [{key: str(value) for key, value in c.items()} for c in found["candidates"]] == rows
    assert {row["tensor_parallel"] for row in rows} == {"1", "2", "4", "8"}
    assert 1e9 < found["zero2_faster_below"] < 1e12
    _, out, _ = call(capsys, "plan", *job)
    border = f"ZeRO-2 is faster than ZeRO-3 below {found['zero2_faster_below'] / 1e9:,.2f} GB/s"
    assert border in " ".join(out.split())
    assert "85.52 GB (79.65 GiB)" in out


def test_a_sequence_is_no_longer_than_the_positions(capsys):
    _, out, _ = call(capsys, "memory", "--model", "gpt2", "--batch", "1", "--json")
    kept = json.loads(out)["activations"]["embedding"]
    assert kept["position ids"] == 8 * 1024


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("memory", "--model", "llama-2-71b"), "--model: got 'llama-2-71b'; accepted is one of"),
        (("memory", "--params", "7e9", "--count"), "a config.json beside it"),
        (
            ("memory", "--config", "config.json", "--count", "--recompute", "full"),
            "--recompute: got 'full'; accepted is nothing beside --count",
        ),
        *(
            (
                ("memory", "--config", "config.json", "--count", option, given),
                f"{option}: got '{given}'; accepted is nothing beside --count",
            )
            for option, given in (("--ranks", "8"), ("--strategy", "zero3"), ("--observed", "7GB"))
        ),
        (
            ("memory", "--config", "config.json", "--count", "--precision", "fp8"),
            "--precision: got 'fp8'; accepted is one of",
        ),
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


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "arguments",
    [
        ("memory", "--params", "1e12", "--ranks", "1024"),
        ("traffic", "--params", "1e12", "--ranks", "1024", "--link", "1gbe"),
        ("memory", "--model", "gpt-3-175b", "--batch", "16", "--micro-batches", "2"),
        (*RUN, "--micro-batches", "2", "--strategy", "zero3", "--recompute", "full"),
        ("traffic", "--model", "bloom-176b", "--tensor-parallel", "8", "--link", "nvlink4"),
        *(
            ("plan", "--model", "llama-2-70b", "--gpu", "h100-80gb", "--gpus", n, "--link", "10gbe")
            for n in ("8", "64")
        ),
    ],
)
def test_tables_are_plain_text_that_fits_when_piped(capsys, monkeypatch, arguments, width):
    monkeypatch.setenv("COLUMNS", str(width))
    status, out, _ = call(capsys, *arguments)
    assert status == 0
    assert "ZeRO-3" in out
    assert "…" not in out  # nothing is cut
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= width


def test_a_reader_that_has_gone_is_no_error():
    script = f"{sys.executable} -m zerolab {' '.join(RUN)} --csv | head -1"
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert run.stdout == "strategy,moment,part,bytes,bytes_high,mark\n"
    assert run.stderr == ""


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
PLAN = ("plan", "--model", "gpt2", "--gpu", "t4-16gb", "--gpus", "8", "--link", "pcie4")


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
        ((*MEMORY, "--strategy", "zero4"), "--strategy", "zero4", "one of zero3,"),
        ((*MEMORY, "--batch", "4"), "--batch", "'4'", "only with --model or --config"),
        ((*MEMORY, "--loss", "eager"), "--loss", "eager", "only with --model or --config"),
        ((*MEMORY, "--observed", "71GB"), "--observed", "71GB", "with --model or --config"),
        ((*RUN, "--observed", "71GB"), "--observed", "71GB", "--strategy"),
        ((*RUN, "--observed", "71"), "--observed", "'71'", "a size with its unit"),
        ((*RUN, "--observed", "nanGB"), "--observed", "nanGB", "71GB"),
        ((*RUN, "--observed=-5GB"), "--observed", "-5GB", "66.1GiB"),
        ((*RUN, "--batch", "0"), "--batch", "'0'", "from 1"),
        ((*RUN, "--batch", "1e30"), "--batch", "1e30", "from 1"),
        ((*RUN, "--sequence", "nan"), "--sequence", "nan", "from 1"),
        ((*RUN, "--micro-batches", "-1"), "--micro-batches", "-1", "from 1"),
        ((*RUN, "--tensor-parallel", "3"), "--tensor-parallel", "3", "divides the 32 heads"),
        ((*RUN, "--attention", "flsh"), "--attention", "flsh", "one of flash,"),
        ((*RUN, "--recompute", "ful"), "--recompute", "ful", "one of full,"),
        (("memory", "--model", "gpt2", "--sequence", "2000"), "--sequence", "2000", "to 1024"),
        ((*MEMORY, "--json", "--csv"), "--csv", "--json", "not allowed with"),
        (("traffic", "--params", "7e9", "--batch", "2"), "--batch", "'2'", "only with --model"),
        (("traffic", "--params", "7e9", "--micro-batches", "0"), "--micro-batches", "'0'", "1"),
        (("traffic", "--params", "7e9", "--link", "nvlnk4"), "--link", "nvlnk4", "nvlink4,"),
        ((*PLAN, "--machine", "0"), "--machine", "'0'", "from 1"),
        ((*PLAN, "--machine-link", "nvlnk4"), "--machine-link", "nvlnk4", "one of nvlink4,"),
        ((*PLAN, "--batch", "7"), "--batch", "7", "a multiple of 2"),
        ((*PLAN, "--batch", "1e30"), "--batch", "1e30", "from 1"),
        ((*PLAN, "--batch", "100000000"), "--batch", "100000000", "from 1 to 2048"),
        ((*PLAN, "--sequence", "2048"), "--sequence", "2048", "to 1024"),
        (("memory", "--config", "short.txt"), "--config", "short.txt", "this is not JSON"),
        (("memory", "--config", "list.json"), "--config", "list.json", "not a JSON object"),
        (("memory", "--config", "tokenizer.json"), "--config", "tokenizer.json", "no num_hidden"),
        (("memory", "--config", "folder.png"), "--config", "folder.png", "directory"),
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
    (tmp_path / "list.json").write_text("[7e9]")
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "vocab_size": 50257}')
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
