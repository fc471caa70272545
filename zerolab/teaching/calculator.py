"""What the calculators say and show, in a notebook as on the book's page.

With a shape and a batch they are about the peak of a step and its time, without them about model
states and what is sent. Everything here is text and numbers: `widgets` draws them in a notebook,
and the book's scripts do the same again in a browser, held to this by its tests.
"""

from collections.abc import Callable

from zerolab.accounting import (
    STRATEGIES,
    Moment,
    Setup,
    Traffic,
    gibibytes,
    gigabytes,
    model_states,
    peak,
    step_traffic,
)
from zerolab.accounting.beside import Explanation, beside, explain
from zerolab.accounting.fit import Fit, fit
from zerolab.accounting.moments import moments
from zerolab.accounting.quantities import MOST_RANKS
from zerolab.accounting.step_time import step_time
from zerolab.accounting.traffic import setup_traffic
from zerolab.accounting.verdict import Choice, verdict
from zerolab.teaching.controls import Asked
from zerolab.teaching.tables import NAMES, STATES

PARTS = (*STATES, "activations", "buffers")
TIMES = ("compute", "tensor parallel", "waiting", "sending")


def sentence(question: Asked) -> str:
    """The verdict in one sentence: fits or not, by how many bytes, and the cheapest change."""
    if question.setup:
        return peak_sentence(question.setup, question.gpu.memory)
    return states_sentence(question.parameters, question.chosen, question.gpu.memory)


def states_sentence(parameters: int, chosen: Choice, capacity: int) -> str:
    """`verdict`, which is about model states."""
    found = verdict(parameters, chosen, capacity)
    if found.fits:
        freed = _freed_by_next_stage(parameters, chosen)
        return f"Fits: {both(found.spare)} remain for activations and buffers{freed}."
    start = f"Does not fit: {both(-found.spare)} too many"
    if found.keeping_precision:
        change = _choice_change(chosen, found.keeping_precision)
        other = (
            f"; without more ranks: {_choice_change(chosen, found.keeping_ranks)}"
            if found.keeping_ranks
            else ""
        )
        return f"{start}; the cheapest change that fits: {change}{other}."
    nothing = f"nothing up to {MOST_RANKS:,} ranks fits"
    if found.keeping_ranks:
        change = _choice_change(chosen, found.keeping_ranks)
        return f"{start}; in this precision {nothing}, but this does: {change}."
    return f"{start}; {nothing}, and no other precision on {many(chosen.ranks)}."


def peak_sentence(setup: Setup, capacity: int) -> str:
    """`fit`, which is about the peak of a step and the overhead beside it."""
    found = fit(setup, capacity)
    where = f"at the peak ({found.peak.name})"
    overhead = f"up to {gigabytes(found.needed - found.peak.total)} of overhead"
    if found.fits:
        return f"Fits: {both(found.spare)} remain {where}, after {overhead}."
    change = _setup_change(setup, found)
    if found.tight:
        spare = both(capacity - found.peak.total)
        return f"Tight: {spare} remain {where}, and there may be {overhead}; {change}."
    return f"Does not fit: {both(-found.spare)} too many {where}, with {overhead}; {change}."


def monitor_sentence(shown: int, setup: Setup) -> str:
    """What a monitor shows taken apart: the peak, what may lie beside it, and what is left over."""
    found: Explanation = explain(shown, peak(setup).total, setup.devices)
    low = sum(allowance.low for allowance in found.allowances)
    high = sum(allowance.high for allowance in found.allowances)
    return (
        f"Of {both(shown)} the peak's tensors are {gigabytes(found.tensors)}, and "
        f"{gigabytes(found.remainder)} remain; overhead is {gigabytes(low)} to {gigabytes(high)}, "
        f"so {gigabytes(found.unexplained)} are unexplained."
    )


def memory_bars(question: Asked) -> dict[str, dict[str, int]]:
    """Strategy -> bytes by part: of the model states, or of the peak."""
    return {strategy: _parts(question.with_strategy(strategy)) for strategy in STRATEGIES}


def memory_lines(question: Asked) -> dict[str, int]:
    """Bytes by line, with their total: model states and what is sent, or all parts of the peak."""
    chosen = question.chosen
    if question.setup is None:
        states = model_states(
            question.parameters, chosen.strategy, chosen.ranks, chosen.precision
        ).as_dict()
        return states | {"sent a step": traffic(question).bytes}
    tightest = peak(question.setup)
    return {name: size for name, size in tightest.parts.items() if size} | {"total": tightest.total}


def caption(question: Asked) -> str:
    """What `memory_lines` are about."""
    chosen, setup = question.chosen, question.setup
    start = f"{NAMES[chosen.strategy]} on {many(chosen.ranks)}, {chosen.precision}"
    return f"{start}, at {peak(setup).name}" if setup else start


def overhead_lines(setup: Setup) -> dict[str, tuple[int, int]]:
    """What may lie beside the peak, in bytes from and to."""
    return {a.name: (a.low, a.high) for a in beside(peak(setup).total, setup.devices)}


def moment_totals(setup: Setup) -> dict[str, int]:
    return {moment.name: moment.total for moment in moments(setup)}


def traffic(question: Asked) -> Traffic:
    """What one rank sends in one step: without a shape as one flat tensor."""
    if question.setup:
        return setup_traffic(question.setup).total
    chosen = question.chosen
    return step_traffic([question.parameters], chosen.strategy, chosen.ranks, chosen.precision)


def time_parts(question: Asked) -> dict[str, float]:
    """Seconds of a step by part; without a shape only what is sent, alone on the link."""
    if question.setup is None:
        sent = traffic(question)
        return {"sending": question.link.seconds(sent.bytes, sent.messages)}
    found = step_time(question.setup, question.gpu, question.link, question.tensor_link)
    between = question.setup.batch.tensor_parallel > 1
    return {
        "compute": found.compute,
        **({"tensor parallel": found.tensor_parallel} if between else {}),
        "waiting": max(0.0, found.exposed),
    }


def both(size: int) -> str:
    return f"{gigabytes(size)} ({gibibytes(size)})"


def many(ranks: int) -> str:
    return f"{ranks:,} rank{'' if ranks == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds, or milliseconds below one."""
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1000 * seconds:,.2f} ms"


def _parts(question: Asked) -> dict[str, int]:
    chosen = question.chosen
    if question.setup is None:
        found = model_states(
            question.parameters, chosen.strategy, chosen.ranks, chosen.precision
        ).as_dict()
        return {state: found[state] for state in STATES}
    return parts(peak(question.setup))


def parts(moment: Moment) -> dict[str, int]:
    """A moment's bytes in few parts, for a chart; a recomputed activation is one."""
    found = {state: moment.parts[state] for state in STATES}
    found["activations"] = moment.parts.get("activations", 0) + moment.parts.get("recomputed", 0)
    return found | {"buffers": moment.total - sum(found.values())}


def _freed_by_next_stage(parameters: int, chosen: Choice) -> str:
    stages = STRATEGIES[STRATEGIES.index(chosen.strategy) :][:2]
    first, *rest = (
        model_states(parameters, stage, chosen.ranks, chosen.precision).total for stage in stages
    )
    freed = first - rest[0] if rest else 0
    return f"; {NAMES[stages[1]]} would free {gigabytes(freed)} more" if freed else ""


def _choice_change(chosen: Choice, to: Choice) -> str:
    """What differs: "ZeRO-3, 16 ranks"."""
    return _differences(
        (chosen.strategy, to.strategy, NAMES.__getitem__),
        (chosen.ranks, to.ranks, many),
        (chosen.precision, to.precision, "precision {}".format),
    )


def _setup_change(setup: Setup, found: Fit) -> str:
    to = found.change
    if to is None:
        return "no other stage, micro-batch, recomputation or number of ranks fits"
    differences = _differences(
        (setup.strategy, to.strategy, NAMES.__getitem__),
        (setup.batch.size, to.batch.size, "micro-batch {}".format),
        (setup.keeping.recompute, to.keeping.recompute, "{} recomputation".format),
        (setup.ranks, to.ranks, many),
    )
    return f"the cheapest change that {'surely ' if found.tight else ''}fits: {differences}"


def _differences(*dials: tuple[object, object, Callable]) -> str:
    """`dials` are before, after, and how to write it."""
    return ", ".join(written(after) for before, after, written in dials if after != before)
