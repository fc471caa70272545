"""The command line.

    zerolab memory --params 7e9 --ranks 64          what each strategy keeps on a rank
    zerolab traffic --params 7e9 --ranks 64         what each strategy sends in a step
    zerolab plan --model llama-2-7b --gpu h100-80gb --gpus 8 --link nvlink4    what fits, fastest
    zerolab compare --ranks 4                       train by each strategy, measure both
    zerolab train --strategy zero3                  train by one
    zerolab versus --ranks 2                        ZeRO-3 against tensor parallelism
    zerolab bench --pairs zero3/fsdp2               ours against the systems themselves
    zerolab check labs/01-memory-accounting.ipynb   grade a lab

Results go to standard output, progress to standard error. Exit status: 0; 1 where a lab is not
solved or a rank failed; 2 for wrong input; 130 when interrupted.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerolab import __version__, accounting
from zerolab.accounting import STRATEGIES, InputError
from zerolab.accounting.catalogue import model
from zerolab.accounting.configs import read_config
from zerolab.accounting.errors import unknown_name
from zerolab.accounting.gpus import GPUS, gpu
from zerolab.accounting.models import Shape
from zerolab.runtime.failure import RankError

# Everything else is imported where it is used: `memory` and `--help` must not wait for torch.
if TYPE_CHECKING:
    from zerolab.training.compare import Row

FIGURE = "zerolab-compare.png"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    parser, commands = _parser()
    try:
        if argv and not argv[0].startswith("-") and argv[0] not in commands:
            raise unknown_name("command", argv[0], commands)
        arguments, unknown = parser.parse_known_args(argv)
        if unknown:
            options = re.findall(r"--[a-z-]+", commands[arguments.command].format_usage())
            raise unknown_name("option", unknown[0], options)
        return arguments.run(arguments)
    except InputError as error:
        print(f"zerolab: {error}", file=sys.stderr)
        return 2
    except RankError as error:
        print(f"zerolab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("zerolab: interrupted", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, without the usage text."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(
        prog="zerolab",
        allow_abbrev=False,
        description="What DDP and ZeRO cost in memory and traffic: on paper, and measured.",
    )
    parser.add_argument("--version", action="version", version=f"zerolab {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands: dict[str, _Parser] = {}

    def command(name: str, run: Callable[[argparse.Namespace], int], summary: str) -> _Parser:
        commands[name] = subparsers.add_parser(
            name, help=summary, description=f"{summary}.", allow_abbrev=False
        )
        commands[name].set_defaults(run=run)
        commands[name].add_argument("--json", action="store_true", help="print JSON instead")
        return commands[name]

    for name, run, summary in (
        ("memory", _memory, "bytes of training state that each strategy keeps on a rank"),
        ("traffic", _traffic, "bytes that each strategy sends from a rank in a step"),
    ):
        paper = command(name, run, summary)
        size = paper.add_mutually_exclusive_group(required=True)
        size.add_argument("--params", metavar="P", help="such as 7e9 or 350M")
        _add_model(size)
        paper.add_argument("--ranks", default="8", metavar="N", help="default: 8")
        _add_precision(paper, "mixed")
        if name == "memory":
            paper.add_argument(
                "--count",
                action="store_true",
                help="with --config: build the model without weights and count what it keeps",
            )

    plan = command("plan", _plan, "which strategy fits and is fastest, and why, as predicted")
    _add_model(plan.add_mutually_exclusive_group(required=True))
    plan.add_argument("--gpu", required=True, metavar="G", help=f"one of {', '.join(GPUS)}")
    plan.add_argument("--gpus", required=True, metavar="N", help="how many")
    plan.add_argument(
        "--link", required=True, metavar="L", help=f"one of {', '.join(accounting.LINKS)}"
    )
    plan.add_argument("--batch", metavar="B", help="sequences a step, all GPUs; default: 4 a GPU")
    plan.add_argument("--sequence", default="4096", metavar="T", help="tokens; default: 4096")
    _add_precision(plan, "mixed")

    compare = command("compare", _compare, "train a small GPT by each strategy and compare costs")
    compare.add_argument(
        "--strategies", nargs="+", default=STRATEGIES, metavar="S", help=", ".join(STRATEGIES)
    )
    compare.add_argument(
        "--figure",
        metavar="FILE",
        help=f"default: {FIGURE}; with --json: no figure",
    )
    train = command("train", _train, "train a small GPT by one strategy")
    train.add_argument(
        "--strategy", default="zero3", metavar="S", help=f"{', '.join(STRATEGIES)}; default: zero3"
    )
    for experiment in (compare, train):
        experiment.add_argument("--ranks", default="4", metavar="N", help="default: 4")
        experiment.add_argument("--steps", default="120", metavar="K", help="default: 120")
        experiment.add_argument(
            "--corpus", metavar="FILE", help="a text file; default: Python's help topics"
        )
        _add_precision(experiment, "fp32")
        experiment.add_argument(
            "--link", metavar="L", help=f"emulate one of {', '.join(accounting.LINKS)}"
        )
        experiment.add_argument("--seed", default="0", metavar="I", help="default: 0")

    versus = command("versus", _versus, "ZeRO-3 against tensor parallelism, by experiment")
    versus.add_argument("--ranks", default="2", metavar="N", help="default: 2")
    versus.add_argument(
        "--tokens",
        default="64,256,1024",
        metavar="T,…",
        help="tokens a step, all ranks together; default: 64,256,1024",
    )
    versus.add_argument("--width", default="128", metavar="C", help="of the GPT; default: 128")
    versus.add_argument("--link", metavar="L", help=f"emulate one of {', '.join(accounting.LINKS)}")

    bench = command("bench", _bench, "ours against the systems themselves, as ratios")
    bench.add_argument("--ranks", default="2,4", metavar="N,…", help="default: 2,4")
    bench.add_argument(
        "--tokens",
        default="128,512",
        metavar="T,…",
        help="tokens a rank, multiples of the context of 128; default: 128,512",
    )
    bench.add_argument(
        "--pairs",
        metavar="A/B,…",
        help="such as zero3/fsdp2; default: all that have a bar and are installed",
    )
    bench.add_argument("--rounds", default="3", metavar="R", help="the quietest counts; default: 3")

    check = command("check", _check, "grade a lab notebook")
    check.add_argument("lab", metavar="LAB.ipynb")
    return parser, commands


def _add_model(group: Any) -> None:
    group.add_argument("--model", metavar="M", help="a published model, such as llama-2-7b")
    group.add_argument("--config", metavar="FILE", help="a Hugging Face config.json")


def _add_precision(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--precision",
        default=default,
        metavar="P",
        help=f"{', '.join(accounting.PRECISIONS)}; default: {default}",
    )


def _memory(arguments: argparse.Namespace) -> int:
    if arguments.count:
        return _count(arguments)
    parameters, ranks, precision = _on_paper(arguments)
    states = {s: accounting.model_states(parameters, s, ranks, precision) for s in STRATEGIES}
    if arguments.json:
        found = {strategy: kept.as_dict() for strategy, kept in states.items()}
        return _print_json(_paper_json(parameters, ranks, precision, found))
    from zerolab.teaching.tables import states_table

    return _print(_setting(parameters, precision, ranks), states_table(states))


def _count(arguments: argparse.Namespace) -> int:
    """The one path of `memory` that needs torch, and transformers."""
    if arguments.config is None:
        raise InputError("--count", "no --config", "a config.json beside it, as --config FILE")
    from zerolab.training.count import count

    found = count(arguments.config)
    if arguments.json:
        return _print_json(vars(found))
    return _print(
        f"{found.parameters:,} parameters; {accounting.decimal_bytes(found.activations)} of "
        f"activations for one sequence of 1,024 tokens in 16 bits ({found.attention} attention)"
    )


def _plan(arguments: argparse.Namespace) -> int:
    from zerolab.accounting.plan import plan

    batch = None if arguments.batch is None else _whole("--batch", arguments.batch, 1, 10**9)
    found = plan(
        _shape(arguments),
        gpu(arguments.gpu),
        _whole("--gpus", arguments.gpus, 1, 10**6),
        accounting.link(arguments.link),
        batch,
        _whole("--sequence", arguments.sequence, 1, 10**7),
        accounting.precision_policy(arguments.precision).name,
    )
    if arguments.json:
        candidates = [candidate.as_dict() for candidate in found.candidates]
        return _print_json({"advice": found.advice, "candidates": candidates})
    from zerolab.teaching.tables import plan_notes, plan_table

    return _print(plan_table(found), plan_notes(found))


def _traffic(arguments: argparse.Namespace) -> int:
    parameters, ranks, precision = _on_paper(arguments)
    sent = {s: accounting.wire_bytes(parameters, s, ranks, precision) for s in STRATEGIES}
    if arguments.json:
        found = {strategy: {"wire_bytes": size} for strategy, size in sent.items()}
        return _print_json(_paper_json(parameters, ranks, precision, found))
    from zerolab.teaching.tables import traffic_table

    return _print(_setting(parameters, precision, ranks), traffic_table(sent))


def _compare(arguments: argparse.Namespace) -> int:
    names = [name for item in arguments.strategies for name in item.split(",")]
    strategies = [_strategy("--strategies", name) for name in dict.fromkeys(names)]
    figure = arguments.figure or (None if arguments.json else FIGURE)
    if figure is not None:
        from zerolab.teaching.plots import check_figure_file, comparison_figure, save

        check_figure_file(Path(figure))
    rows = _experiment(arguments, strategies)
    if arguments.json:
        _print_json([row.as_dict() for row in rows])
    else:
        _print_rows(rows)
    if figure is not None:
        save(comparison_figure(rows), Path(figure))
        print(f"Figure: {figure}", file=sys.stderr if arguments.json else sys.stdout)
    return 0


def _train(arguments: argparse.Namespace) -> int:
    rows = _experiment(arguments, [_strategy("--strategy", arguments.strategy)])
    return _print_json(rows[0].as_dict()) if arguments.json else _print_rows(rows)


def _versus(arguments: argparse.Namespace) -> int:
    from zerolab.runtime.world import MOST_RANKS

    ranks = _whole("--ranks", arguments.ranks, 1, MOST_RANKS)
    tokens = [_whole("--tokens", count, 1, 10**6) for count in arguments.tokens.split(",")]
    width = _whole("--width", arguments.width, 1, 10**5)
    if width % 4:
        raise InputError("--width", arguments.width, "a multiple of the GPT's 4 heads")
    if arguments.link is not None:
        accounting.link(arguments.link)

    from zerolab.runtime.world import World
    from zerolab.training.gpt import GPTShape
    from zerolab.training.versus import check, crossing, sweep

    shape = GPTShape(width=width, context=64)
    for count in tokens:
        check(ranks, count, shape)
    with World(ranks, link=arguments.link) as world:
        found = sweep(world, tokens, shape)
    crossing_tokens = crossing(ranks, shape)
    if arguments.json:
        return _print_json(
            {
                "ranks": ranks,
                "link": arguments.link,
                "parameters": shape.parameters,
                "crossing_tokens": crossing_tokens,
                "sweep": [comparison.as_dict() for comparison in found],
            }
        )
    from zerolab.teaching.tables import versus_notes, versus_table

    setting = _setting(shape.parameters, "fp32", ranks)
    notes = versus_notes(found, crossing_tokens)
    return _print(f"A GPT of {setting}", versus_table(found), notes)


def _bench(arguments: argparse.Namespace) -> int:
    """Check all input before the first process starts; then measure, with a progress bar."""
    from zerolab.runtime.world import MOST_RANKS

    ranks = [_whole("--ranks", count, 1, MOST_RANKS) for count in arguments.ranks.split(",")]
    rounds = _whole("--rounds", arguments.rounds, 1, 100)
    tokens = [_whole("--tokens", count, 1, 10**6) for count in arguments.tokens.split(",")]

    from rich.console import Console
    from rich.progress import Progress

    from zerolab.training.bench import BARS, SHAPE, bench
    from zerolab.training.engines import installed, require

    for count in tokens:
        if count % SHAPE.context:
            raise InputError("--tokens", count, f"a multiple of the context of {SHAPE.context}")
    if arguments.pairs is None:
        pairs = [pair for pair in BARS if all(map(installed, pair))]
    else:
        pairs = [_pair(text) for text in arguments.pairs.split(",")]
    for name in {name for pair in pairs for name in pair}:
        require("--pairs", name)

    progress = Progress(console=Console(stderr=True))
    measurements = len(pairs) * len(ranks) * len(tokens) * (2 * rounds + 2)
    task = progress.add_task("measuring", total=measurements)
    with progress:
        found = list(
            bench(pairs, ranks, tokens, rounds, on_measurement=lambda: progress.advance(task))
        )
    if arguments.json:
        return _print_json([row.as_dict() for row in found])
    from zerolab.teaching.tables import bench_notes, bench_table

    left_out = [pair for pair in BARS if arguments.pairs is None and pair not in pairs]
    setting = f"A GPT of {SHAPE.parameters:,} parameters, fp32: ours over the peer"
    return _print(setting, bench_table(found), bench_notes(found, left_out))


def _check(arguments: argparse.Namespace) -> int:
    from zerolab.teaching.checks.grading import grade

    report = grade(arguments.lab)
    if arguments.json:
        _print_json(report.as_dict())
    else:
        print(*report.tasks, sep="\n")
    return 0 if report.passed else 1


def _experiment(arguments: argparse.Namespace, strategies: Sequence[str]) -> "list[Row]":
    """Check all input before the first process starts; then train, with a progress bar."""
    from zerolab.runtime.world import MOST_RANKS

    ranks = _whole("--ranks", arguments.ranks, 1, MOST_RANKS)
    seed = _whole("--seed", arguments.seed, 0, 2**31 - 1)
    precision = accounting.precision_policy(arguments.precision).name
    if arguments.link is not None:
        accounting.link(arguments.link)
    steps = _whole("--steps", arguments.steps, 3, 10**6)

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from zerolab.runtime.world import World
    from zerolab.teaching.tables import NAMES
    from zerolab.training.compare import compare
    from zerolab.training.corpus import Corpus
    from zerolab.training.train import Settings

    corpus = Corpus.from_file(arguments.corpus) if arguments.corpus else Corpus.default()
    settings = Settings(steps=steps, precision=precision, seed=seed)
    corpus.require(settings.shape.context)
    progress = Progress(
        TextColumn("{task.description:7}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    tasks = {
        strategy: progress.add_task(NAMES[strategy], total=steps, start=False, loss="–")
        for strategy in strategies
    }

    def on_step(strategy: str, step: int, loss: float) -> None:
        progress.start_task(tasks[strategy])
        progress.update(tasks[strategy], completed=step + 1, loss=f"{loss:.3f}")

    with progress, World(ranks, link=arguments.link) as world:
        return compare(world, strategies, settings, corpus, on_step)


def _on_paper(arguments: argparse.Namespace) -> tuple[int, int, str]:
    return (
        accounting.parse_count(arguments.params)
        if arguments.params is not None
        else _shape(arguments).parameters,
        _whole("--ranks", arguments.ranks, 1, 10**6),
        accounting.precision_policy(arguments.precision).name,
    )


def _shape(arguments: argparse.Namespace) -> Shape:
    if arguments.model is not None:
        return model(arguments.model)
    shape = read_config(arguments.config)
    if not shape.exact:
        print(
            f"zerolab: {arguments.config} is of an unknown family, read as if it were Llama's: "
            "zerolab memory --config FILE --count counts the real model",
            file=sys.stderr,
        )
    return shape


def _paper_json(parameters: int, ranks: int, precision: str, strategies: dict[str, Any]) -> dict:
    return {
        "parameters": parameters,
        "ranks": ranks,
        "precision": precision,
        "strategies": strategies,
    }


def _setting(parameters: int, precision: str, ranks: int) -> str:
    return f"{parameters:,} parameters, {precision}, {ranks:,} rank{'s' * (ranks > 1)}"


def _whole(option: str, text: str, lowest: int, highest: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = lowest - 1
    if not lowest <= number <= highest:
        raise InputError(option, text, f"a whole number from {lowest} to {highest}")
    return number


def _strategy(option: str, name: str) -> str:
    if name not in STRATEGIES:
        raise unknown_name(option, name, STRATEGIES)
    return name


def _pair(text: str) -> tuple[str, str]:
    ours, slash, peer = text.partition("/")
    if not (ours and slash and peer):
        raise InputError("--pairs", text, "two engines with a slash between, as zero3/fsdp2")
    return ours, peer


def _print_json(value: Any) -> int:
    print(json.dumps(value, indent=2))
    return 0


def _print(*parts: Any) -> int:
    from rich.console import Console

    Console(highlight=False).print(*parts)
    return 0


def _print_rows(rows: "Sequence[Row]") -> int:
    from zerolab.teaching.tables import comparison_notes, comparison_table

    first = rows[0]
    setting = _setting(first.parameter_count, first.precision, first.ranks)
    return _print(f"A GPT of {setting}", comparison_table(rows), comparison_notes(rows))


if __name__ == "__main__":
    sys.exit(main())
