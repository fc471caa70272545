"""`zerolab memory`: what each strategy keeps on a rank, and what is alive when."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from zerolab import accounting
from zerolab.accounting import STRATEGIES, InputError, ModelStates, Setup
from zerolab.accounting.activations import block, embedding, output
from zerolab.accounting.beside import Explanation, beside, explain
from zerolab.accounting.marks import FLAT, mark
from zerolab.accounting.moments import moments, peak
from zerolab.accounting.quantities import parse_size
from zerolab.accounting.tensor_parallel import unit_sizes
from zerolab.cli import options
from zerolab.cli.output import print_csv, print_json, print_parts, setting

SUMMARY = "bytes that each strategy keeps on a rank, and with a batch what is alive when"
COLUMNS = ("strategy", "moment", "part", "bytes", "bytes_high", "mark")


def add(parser: argparse.ArgumentParser) -> None:
    options.add_on_paper(parser)
    parser.add_argument(
        "--strategy", metavar="S", help=f"{', '.join(STRATEGIES)}; default: all, in less detail"
    )
    options.add_batch(parser)
    options.add_policy(parser)
    parser.add_argument(
        "--observed",
        metavar="SIZE",
        help="with --strategy and a batch: what a monitor shows, such as 71GB or 66.1GiB",
    )
    parser.add_argument(
        "--count",
        action="store_true",
        help="with --config: build the model without weights and count what it keeps, of "
        "--batch × --sequence tokens; default: 1 × 1024; in --precision's bytes a parameter",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.count:
        return _count(arguments)
    asked = _read(arguments)
    if arguments.csv:
        return print_csv(COLUMNS, _rows(asked))
    if arguments.json:
        return print_json(_json(asked))
    return print_parts(*_tables(asked))


@dataclass(frozen=True)
class _Asked:
    """States of one flat tensor by strategy; with a batch, the runs too."""

    parameters: int
    ranks: int
    precision: str
    states: dict[str, ModelStates]
    setups: dict[str, Setup]
    observed: Explanation | None

    @property
    def one(self) -> Setup:
        """For what is the same under every strategy."""
        return next(iter(self.setups.values()))


def _read(arguments: argparse.Namespace) -> _Asked:
    ranks = options.ranks(arguments)
    precision = accounting.precision_policy(arguments.precision).name
    only = arguments.strategy
    strategies = STRATEGIES if only is None else (options.strategy("--strategy", only),)
    parameters, shape = options.size(arguments)
    setups, on_a_rank = {}, parameters
    if shape is not None and options.asks_for_a_batch(arguments):
        setups = {name: options.setup(arguments, shape, name) for name in strategies}
        on_a_rank = sum(unit_sizes(shape, setups[strategies[0]].batch.tensor_parallel))
    states = {s: accounting.model_states(on_a_rank, s, ranks, precision) for s in strategies}
    observed = _observed(arguments, setups)
    return _Asked(parameters, ranks, precision, states, setups, observed)


def _observed(arguments: argparse.Namespace, setups: dict[str, Setup]) -> Explanation | None:
    if arguments.observed is None:
        return None
    shown = parse_size(arguments.observed, "--observed")
    if len(setups) != 1:
        raise InputError(
            "--observed",
            arguments.observed,
            "what one run shows: with --model or --config, --strategy, and --batch or --sequence",
        )
    (setup,) = setups.values()
    return explain(shown, peak(setup).total, setup.devices)


def _tables(asked: _Asked) -> list[Any]:
    from zerolab.teaching import paper

    found: list[Any] = [setting(asked.parameters, asked.precision, asked.ranks)]
    if asked.setups:
        found.append(paper.batch_line(asked.one))
    found += [paper.states_table(asked.states), paper.STATES_NOTE]
    if len(asked.setups) == 1:
        run = asked.one
        found += [paper.moments_table(run), paper.beside_table(run), paper.moments_note(run)]
    elif asked.setups:
        found += [paper.peaks_table(asked.setups), paper.PEAKS_NOTE]
    if asked.observed is not None:
        found.append(paper.observed_note(asked.observed))
    if asked.setups:
        found.append(paper.activations_table(asked.one))
    return found


def _json(asked: _Asked) -> dict:
    found: dict = {
        "parameters": asked.parameters,
        "ranks": asked.ranks,
        "precision": asked.precision,
        "marks": dict.fromkeys(("parameters", "gradients", "optimizer"), FLAT),
        "strategies": {name: kept.as_dict() for name, kept in asked.states.items()},
    }
    for name, setup in asked.setups.items():
        found["strategies"][name] |= _account(setup, asked.observed)
    if asked.setups:
        run = asked.one
        found["batch"] = asdict(run.batch) | {"micro_batches": run.micro_batches}
        found["kept"] = asdict(run.keeping)
        found["activations"] = _lines(run)
    return found


def _lines(setup: Setup) -> dict[str, dict[str, int]]:
    """What autograd keeps, line by line, of the whole model: bytes by part."""
    kept = (setup.shape, setup.batch, setup.keeping)
    blocks = {name: setup.shape.layers * size for name, size in block(*kept).items()}
    return {"embedding": embedding(*kept), "blocks": blocks, "output": output(*kept)}


def _account(setup: Setup, observed: Explanation | None) -> dict:
    """The moments of a step and what lies beside its peak, for JSON."""
    tightest = peak(setup)
    found: dict = {
        "moments": [
            {
                "moment": moment.name,
                "total": moment.total,
                "parts": [
                    {"part": part, "bytes": size, "mark": mark(part, setup)}
                    for part, size in moment.parts.items()
                ],
            }
            for moment in moments(setup)
        ],
        "peak": {"moment": tightest.name, "total": tightest.total},
        "beside": [
            {
                "part": allowance.name,
                "bytes": allowance.low,
                "bytes_high": allowance.high,
                "mark": mark(allowance.name, setup),
                "source": allowance.source,
            }
            for allowance in beside(tightest.total, setup.devices)
        ],
    }
    if observed is not None:
        found["observed"] = dict(_remainders(observed))
    return found


def _remainders(observed: Explanation) -> Iterator[tuple[str, int]]:
    yield "shown", observed.shown
    yield "tensors", observed.tensors
    yield "remainder", observed.remainder
    yield "named", observed.named
    yield "unexplained", observed.unexplained


def _rows(asked: _Asked) -> Iterator[tuple]:
    """The same account, a line a row; bytes and bytes_high differ where it is a range."""
    for strategy, kept in asked.states.items():
        for part in ("parameters", "gradients", "optimizer"):
            size = getattr(kept, part)
            yield strategy, "at rest", part, size, size, FLAT
    for strategy, setup in asked.setups.items():
        for moment in moments(setup):
            for part, size in moment.parts.items():
                yield strategy, moment.name, part, size, size, mark(part, setup)
        for beyond in beside(peak(setup).total, setup.devices):
            marked = mark(beyond.name, setup)
            yield strategy, "beside the peak", beyond.name, beyond.low, beyond.high, marked
        if asked.observed is not None:
            for name, size in _remainders(asked.observed):
                yield strategy, "observed", name, size, size, ""
    if asked.setups:
        marked = mark("activations", asked.one)
        for where, lines in _lines(asked.one).items():
            for name, size in lines.items():
                yield "", "activations", f"{where}: {name}", size, size, marked


def _count(arguments: argparse.Namespace) -> int:
    """The one path of `memory` that needs torch, and transformers."""
    if arguments.config is None:
        raise InputError("--count", "no --config", "a config.json beside it, as --config FILE")
    about_a_run = [name for name in options.BATCH if name not in ("batch", "sequence")]
    counted = (
        "nothing beside --count, which asks the model itself, but --batch, --sequence, --precision"
    )
    options.refuse(arguments, ["ranks", "strategy", "observed", *about_a_run], counted)
    element = accounting.precision_policy(arguments.precision).parameter
    batch = options.whole("--batch", arguments.batch or "1", 1, 10**6)
    sequence = options.whole("--sequence", arguments.sequence or "1024", 1, 10**7)
    from zerolab.training.count import count

    found = count(arguments.config, batch, sequence, element)
    if arguments.json:
        return print_json(vars(found))
    if arguments.csv:
        return print_csv(tuple(vars(found)), [tuple(vars(found).values())])
    return print_parts(
        f"{found.parameters:,} parameters; {accounting.decimal_bytes(found.activations)} of "
        f"activations for {batch} × {sequence:,} tokens in {8 * element} bits "
        f"({found.attention} attention)"
    )
