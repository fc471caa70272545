"""What `compare` and `train` have in common: the options, and the training itself."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zerolab import accounting
from zerolab.cli.options import add_link, add_precision, whole

if TYPE_CHECKING:
    from zerolab.training.compare import Row


def add_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default="4", metavar="N", help="default: 4")
    parser.add_argument("--steps", default="120", metavar="K", help="default: 120")
    parser.add_argument(
        "--corpus", metavar="FILE", help="a text file; default: Python's help topics"
    )
    add_precision(parser, "fp32")
    add_link(parser)
    parser.add_argument("--seed", default="0", metavar="I", help="default: 0")


def experiment(arguments: argparse.Namespace, strategies: Sequence[str]) -> "list[Row]":
    """Check all input before the first process starts; then train, with a progress bar."""
    from zerolab.runtime.world import MOST_RANKS

    ranks = whole("--ranks", arguments.ranks, 1, MOST_RANKS)
    seed = whole("--seed", arguments.seed, 0, 2**31 - 1)
    precision = accounting.precision_policy(arguments.precision).name
    if arguments.link is not None:
        accounting.link(arguments.link)

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from zerolab.runtime.world import World
    from zerolab.teaching.tables import NAMES
    from zerolab.training.compare import compare
    from zerolab.training.corpus import Corpus
    from zerolab.training.measure import FEWEST_STEPS
    from zerolab.training.train import MOST_STEPS, Settings

    steps = whole("--steps", arguments.steps, FEWEST_STEPS, MOST_STEPS)
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
