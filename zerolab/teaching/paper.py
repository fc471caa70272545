"""Tables of what was calculated, for the terminal: memory, traffic, plans.

Bytes are decimal (GB = 10^9) everywhere; where a figure is held against a GPU or a monitor, which
count in GiB, both are shown.
"""

from collections.abc import Mapping

from rich.table import Table

from zerolab.accounting import Link, ModelStates, Setup, Traffic, decimal_bytes, gibibytes
from zerolab.accounting.activations import Lines, block, embedding, output
from zerolab.accounting.beside import Explanation, beside
from zerolab.accounting.gpus import GPU
from zerolab.accounting.marks import PARTS, mark
from zerolab.accounting.moments import Moment, moments, peak
from zerolab.accounting.plan import Plan
from zerolab.accounting.traffic import SplitTraffic, step_passes
from zerolab.teaching.calculator import duration
from zerolab.teaching.tables import NAMES, STATES, empty_table

STATES_NOTE = (
    "formula: one flat tensor, shards rounded up. Cut into units it is some bytes more: padding, "
    "and the optimizer's step counters."
)
PEAKS_NOTE = (
    "← the peak: the largest moment, not a sum of all. What is in it: --strategy. Beside it lie "
    "the CUDA context, communicator buffers and fragmentation."
)
PASSES_NOTE = (
    "A pass is one all-gather or one reduce-scatter of everything, (N-1)/N of it on the wire; an "
    "all-reduce is two."
)


def batch_line(setup: Setup) -> str:
    """What a rank computes in a step."""
    batch = setup.batch
    line = (
        f"{batch.size:,} × {batch.sequence:,} tokens a micro-batch, {setup.micro_batches:,} a step"
    )
    if batch.tensor_parallel > 1:
        sequence = " and sequences" if batch.sequence_parallel else ""
        line += f"; layers{sequence} split by {batch.tensor_parallel}: {setup.devices:,} GPUs"
    return line


def states_table(states: Mapping[str, ModelStates]) -> Table:
    """Bytes of each state that a rank keeps, a line a strategy."""
    table = empty_table("kept on a rank", *STATES, "total")
    for strategy, kept in states.items():
        sizes = (kept.parameters, kept.gradients, kept.optimizer, kept.total)
        table.add_row(NAMES[strategy], *map(decimal_bytes, sizes))
    return table


def peaks_table(setups: Mapping[str, Setup]) -> Table:
    """Bytes alive at each moment, a line a strategy; the peak is marked."""
    first = moments(next(iter(setups.values())))
    table = empty_table("alive on a rank", *(_kind(moment) for moment in first))
    for strategy, setup in setups.items():
        largest = peak(setup)
        table.add_row(
            NAMES[strategy],
            *(
                decimal_bytes(moment.total) + (" ←" if moment == largest else "  ")
                for moment in moments(setup)
            ),
        )
    return table


def moments_table(setup: Setup) -> Table:
    """What is alive at each moment, a line a part, with its mark; parts add up to the last line."""
    found = moments(setup)
    largest = peak(setup)
    unit, each = _unit(largest.total)
    headings = [_kind(moment) + (" (peak)" if moment == largest else "") for moment in found]
    table = empty_table(f"{NAMES[setup.strategy]}, {unit} alive", "", *headings)
    table.columns[1].justify = "left"
    # Five moments in 80 columns.
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    table.collapse_padding, table.pad_edge = True, False
    there = [part for part in PARTS if any(moment.parts.get(part) for moment in found)]
    for part in there:
        sizes = (moment.parts.get(part, 0) for moment in found)
        cells = (f"{size / each:,.2f}" if size else "–" for size in sizes)
        name = part.replace(" of ", " of\n")
        table.add_row(name, mark(part, setup), *cells, end_section=part == there[-1])
    table.add_row("total", "", *(f"{moment.total / each:,.2f}" for moment in found))
    return table


def beside_table(setup: Setup) -> Table:
    """What lies beside the peak, and where that range is from."""
    table = empty_table("beside the peak", "from", "to", "source")
    table.columns[3].justify = "left"
    for allowance in beside(peak(setup).total, setup.devices):
        sizes = map(decimal_bytes, (allowance.low, allowance.high))
        table.add_row(allowance.name, *sizes, allowance.source)
    return table


def moments_note(setup: Setup) -> str:
    """The peak, and what a monitor would show."""
    largest = peak(setup)
    found = beside(largest.total, setup.devices)
    low = largest.total + sum(allowance.low for allowance in found)
    high = largest.total + sum(allowance.high for allowance in found)
    return (
        f"The peak is {_both(largest.total)}: {largest.name}. With what lies beside it a monitor "
        f"would show {_both(low)} to {_both(high)}."
    )


def observed_note(found: Explanation) -> str:
    """What a monitor shows, taken apart."""
    lines = [
        f"Of the {_both(found.shown)} that a monitor shows, the peak's tensors are "
        f"{decimal_bytes(found.tensors)}."
    ]
    if found.remainder < 0:
        lines.append(
            f"That is {decimal_bytes(-found.remainder)} more than is shown: something is kept or "
            "computed otherwise than was said."
        )
        return " ".join(lines)
    lines.append(
        f"Of the {decimal_bytes(found.remainder)} that remain, context, communicators and "
        f"fragmentation can be {decimal_bytes(min(found.named, found.remainder))}; "
    )
    if found.unexplained > 0:
        lines[-1] += f"{decimal_bytes(found.unexplained)} are unexplained."
    elif found.unexplained < 0:
        lines[-1] += f"{decimal_bytes(-found.unexplained)} less than the least of them."
    else:
        lines[-1] += "nothing is unexplained."
    return " ".join(lines)


def activations_table(setup: Setup) -> Table:
    """What autograd keeps from forward for backward, line by line."""
    kept = (setup.shape, setup.batch, setup.keeping)
    layers = setup.shape.layers
    parts: list[tuple[str, int, Lines]] = [
        ("embedding", 1, embedding(*kept)),
        (f"{layers} block{'s' * (layers > 1)}", layers, block(*kept)),
        ("output", 1, output(*kept)),
    ]
    table = empty_table("kept for backward", "", "each", "all", "mark")
    table.columns[1].justify = table.columns[4].justify = "left"
    total = 0
    for where, times, lines in parts:
        for name, size in lines.items():
            first, last = name == next(iter(lines)), name == list(lines)[-1]
            table.add_row(
                where if first else "",
                name,
                decimal_bytes(size),
                decimal_bytes(times * size),
                mark("activations", setup),
                end_section=last,
            )
            total += times * size
    table.add_row("total", "", "", decimal_bytes(total), mark("activations", setup))
    return table


def traffic_table(sent: Mapping[str, SplitTraffic], micro_batches: int, link: Link | None) -> Table:
    """Bytes and messages that a rank sends in a step: a line a strategy, three with two groups.

    link: with how long they take alone on it.
    """

    def cells(traffic: Traffic) -> list[str]:
        found = [decimal_bytes(traffic.bytes), f"{traffic.messages:,}"]
        return found + ([duration(traffic.seconds(link))] if link else [])

    headings = ["gradient passes", "parameter passes", "bytes", "messages"]
    headings += [f"on {link.name}"] if link else []
    if not any(found.tensor.messages for found in sent.values()):
        table = empty_table("sent by a rank", *headings)
        for strategy, found in sent.items():
            passes = map(_passes, step_passes(strategy, micro_batches))
            table.add_row(NAMES[strategy], *passes, *cells(found.total))
        return table
    table = empty_table("sent by a rank", "to group", *headings)
    table.columns[1].justify = "left"
    for strategy, found in sent.items():
        passes = map(_passes, step_passes(strategy, micro_batches))
        table.add_row(NAMES[strategy], "data", *passes, *cells(found.data))
        table.add_row("", "tensor", "", "", *cells(found.tensor))
        table.add_row("", "in all", "", "", *cells(found.total), end_section=True)
    return table


def plan_heading(model: str, gpus: int, gpu: GPU, link: Link, machine_link: Link | None) -> str:
    """What is planned."""
    inside = f", {machine_link.name} inside a machine" if machine_link else ""
    return f"{model} on {gpus:,} × {gpu.name}, {_both(gpu.memory)} each; {link.name}{inside}"


def plan_table(plan: Plan, too_large: int = 4) -> Table:
    """The best of each kind, a line each: all that fit, by time; then the nearest that do not."""
    headings = ("batches", "recompute", "needs", "step", "data waits", "tensor waits")
    table = empty_table("strategy", "tensor parallel", *headings)
    table.collapse_padding = table.columns[0].no_wrap = True
    fitting = [candidate for candidate in plan.best_of_each if candidate.fits]
    lacking = [candidate for candidate in plan.best_of_each if not candidate.fits]
    for candidate in [*fitting, *lacking[:too_large]]:
        setup, time = candidate.setup, candidate.time
        table.add_row(
            NAMES[setup.strategy],
            str(setup.batch.tensor_parallel) if setup.batch.tensor_parallel > 1 else "–",
            f"{setup.micro_batches} × {setup.batch.size}",
            setup.keeping.recompute,
            decimal_bytes(candidate.needed),
            duration(time.total) if candidate.fits else "too big",
            f"{time.exposed / time.total:.0%}",
            f"{time.tensor_parallel / time.total:.0%}",
        )
    return table


def plan_notes(plan: Plan, link: Link) -> str:
    """The advice, the border between ZeRO-2 and ZeRO-3, and what the columns rest on."""
    notes = [plan.advice]
    if plan.border is not None:
        notes.append(
            f"ZeRO-2 is faster than ZeRO-3 below {plan.border / 1e9:,.2f} GB/s, in the set-up of "
            f"the first line; {link.name} has {link.bandwidth / 1e9:,.2f}."
        )
    elif plan.candidates[0].setup.ranks > 1:
        notes.append("ZeRO-2 and ZeRO-3: no bandwidth of the link would change their order.")
    notes.append(
        "All of it is predicted. needs: the peak and the upper end of what lies beside it; "
        "batches: micro-batches × sequences; waits: the shares of the step in which compute waits "
        "for data and for tensor parallelism."
    )
    return "\n".join(notes)


def _kind(moment: Moment) -> str:
    """Its name without the number of the block, which differs between strategies."""
    before, of_a_block, _ = moment.name.partition(" of block")
    return f"{before} of a block" if of_a_block else before


def _unit(size: int) -> tuple[str, float]:
    return ("GB", 1e9) if size >= 1e10 else ("MB", 1e6)


def _both(size: int) -> str:
    return f"{decimal_bytes(size)} ({gibibytes(size)})"


def _passes(count: int) -> str:
    return f"{count:,}" if count else "–"
