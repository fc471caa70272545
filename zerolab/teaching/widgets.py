"""The calculator for notebooks: does it fit, and what is the least that has to change?

    from zerolab.teaching.widgets import Calculator
    Calculator(model="llama-2-70b", strategy="zero3", ranks=64)

The same figures and the same verdict as on the book's calculator page, from the same functions.
"""

from html import escape

import ipywidgets

from zerolab.accounting import (
    GPUS,
    MODELS,
    PRECISIONS,
    STRATEGIES,
    InputError,
    ModelStates,
    gibibytes,
    gigabytes,
    gpu,
    model,
    model_states,
    parse_count,
    wire_bytes,
)
from zerolab.accounting.quantities import MOST_RANKS
from zerolab.accounting.verdict import Choice, verdict
from zerolab.teaching.plots import COLOURS
from zerolab.teaching.tables import NAMES, STATES

OWN = "own number"
CUT = 2.5  # bars longer than this many GPUs are cut, so that the GPU's line stays readable


def verdict_sentence(parameters: int, chosen: Choice, capacity: int) -> str:
    """`verdict` in one sentence: fits or not, by how many bytes, and the cheapest change."""
    found = verdict(parameters, chosen, capacity)
    if found.fits:
        freed = _freed_by_next_stage(parameters, chosen)
        return f"Fits: {_both(found.spare)} remain for activations and buffers{freed}."
    start = f"Does not fit: {_both(-found.spare)} too many"
    if found.keeping_precision:
        change = _change(chosen, found.keeping_precision)
        other = (
            f"; without more ranks: {_change(chosen, found.keeping_ranks)}"
            if found.keeping_ranks
            else ""
        )
        return f"{start}; the cheapest change that fits: {change}{other}."
    nothing = f"nothing up to {MOST_RANKS:,} ranks fits"
    if found.keeping_ranks:
        change = _change(chosen, found.keeping_ranks)
        return f"{start}; in this precision {nothing}, but this does: {change}."
    return f"{start}; {nothing}, and no other precision on {_many(chosen.ranks)}."


class Calculator(ipywidgets.VBox):
    """Controls on top, the verdict below them, then bars and a table.

    Its controls are attributes, so a cell can read and set them: `calculator.ranks.value = 16`.
    Raises InputError for a model, precision, strategy or GPU that is not known.
    """

    def __init__(
        self,
        model: str = "llama-2-7b",
        precision: str = "mixed",
        strategy: str = "ddp",
        ranks: int = 8,
        gpu: str = "h100-80gb",
    ) -> None:
        _check(model, precision, strategy, ranks, gpu)
        self.model = _menu("Model", [OWN, *MODELS], model)
        self.parameters = _labelled(ipywidgets.Text, "Parameters", f"{_count_of(model):_}")
        self.precision = _menu("Precision", _precision_labels(), precision)
        self.strategy = _menu("Strategy", [(NAMES[name], name) for name in STRATEGIES], strategy)
        self.ranks = _labelled(ipywidgets.BoundedIntText, "Ranks", ranks, min=1, max=MOST_RANKS)
        self.gpu = _menu("GPU", [*GPUS], gpu)
        self.verdict = ipywidgets.HTML()
        self.result = ipywidgets.HTML()
        controls = (
            self.model,
            self.parameters,
            self.precision,
            self.strategy,
            self.ranks,
            self.gpu,
        )
        flow = ipywidgets.Layout(display="flex", flex_flow="row wrap")
        super().__init__([ipywidgets.Box(controls, layout=flow), self.verdict, self.result])
        self.model.observe(self._take_model, "value")
        self.parameters.observe(self._name_count, "value")
        for control in controls:
            control.observe(self._show, "value")
        self._show()

    def _take_model(self, change) -> None:
        if change.new != OWN:
            self.parameters.value = f"{_count_of(change.new):_}"

    def _name_count(self, _) -> None:
        """The menu shows the model that has exactly as many parameters, if one does."""
        try:
            count = parse_count(self.parameters.value)
        except InputError:
            count = None
        if self.model.value == OWN or _count_of(self.model.value) != count:
            named = (name for name in MODELS if _count_of(name) == count)
            self.model.value = next(named, OWN)

    def _show(self, _=None) -> None:
        """Two assignments: the browser redraws each once, and nothing moves in between."""
        try:
            parameters = parse_count(self.parameters.value)
        except InputError as error:
            self.verdict.value = _line(f"? Parameters: accepted is {error.accepted}.", "gray")
            self.result.layout.visibility = "hidden"  # keeps its place, so that nothing jumps
            return
        chosen = Choice(self.strategy.value, self.ranks.value, self.precision.value)
        capacity = GPUS[self.gpu.value].memory
        sentence = verdict_sentence(parameters, chosen, capacity)
        fits = sentence.startswith("Fits")
        self.verdict.value = _line(
            f"{'✓' if fits else '✗'} {sentence}", "#28704f" if fits else "#b00020"
        )
        self.result.value = (
            '<div style="display: flex; flex-wrap: wrap; gap: 1em 2em">'
            f"{_chart(parameters, chosen, self.gpu.value)}{_table(parameters, chosen)}</div>"
        )
        self.result.layout.visibility = "visible"


def _chart(parameters: int, chosen: Choice, device: str) -> str:
    capacity = GPUS[device].memory
    rows = {
        strategy: model_states(parameters, strategy, chosen.ranks, chosen.precision)
        for strategy in STRATEGIES
    }
    largest = max(capacity, *(states.total for states in rows.values()))
    end = min(largest, CUT * capacity) * 1.02
    said = "; ".join(
        f"{NAMES[strategy]} {gigabytes(states.total)}, "
        f"{'fits' if states.total <= capacity else 'does not fit'}"
        for strategy, states in rows.items()
    )
    key = " ".join(f"<span>{_swatch(state)} {state}</span>" for state in STATES)
    cut = f"<div>» marks bars that are cut: longer than {CUT} GPUs.</div>" if largest > end else ""
    bars = "".join(
        _bar(strategy, states, strategy == chosen.strategy, capacity, end)
        for strategy, states in rows.items()
    )
    label = f"Bytes that a rank keeps, against {_both(capacity)} of {device}: {said}."
    return (
        f'<div role="img" aria-label="{escape(label)}" style="flex: 1 1 20em; max-width: 36em">'
        f"{key}<div><b>|</b> {device}: {_both(capacity)}</div>{bars}{cut}</div>"
    )


def _bar(strategy: str, states: ModelStates, chosen: bool, capacity: int, end: float) -> str:
    """One strategy's line: its name and total above a bar, across which stands the GPU's mark."""
    parts, before = [], 0.0
    for state in STATES:
        size = min(getattr(states, state), end - before)
        before += size
        border = "1px solid currentColor" if size > 0 else "0"  # nothing is left of it by the cut
        parts.append(
            f'<div style="flex: none; box-sizing: border-box; width: {100 * size / end:.3f}%; '
            f'background: {COLOURS[state]}; border: {border}"></div>'
        )
    more = " »" if states.total > end else ""
    return (
        '<div style="display: flex; justify-content: space-between; line-height: 1.4; '
        f'font-weight: {"bold" if chosen else "normal"}"><span>{NAMES[strategy]}</span>'
        f"<span>{gigabytes(states.total)} · {gibibytes(states.total)}{more}</span></div>"
        '<div style="position: relative; display: flex; height: 1.3em; margin-bottom: .5em">'
        f"{''.join(parts)}"
        f'<div style="position: absolute; left: {100 * capacity / end:.3f}%; top: -.15em; '
        'bottom: -.15em; border-left: 3px solid currentColor"></div></div>'
    )


def _table(parameters: int, chosen: Choice) -> str:
    states = model_states(parameters, chosen.strategy, chosen.ranks, chosen.precision)
    sent = wire_bytes(parameters, chosen.strategy, chosen.ranks, chosen.precision)
    lines = "".join(
        f'<tr><th scope="row" style="text-align: left; font-weight: normal">{name}</th>'
        + "".join(
            f'<td style="text-align: right; padding-left: 1em">{cell}</td>'
            for cell in (f"{size:,}", gigabytes(size), gibibytes(size))
        )
        + "</tr>"
        for name, size in (states.as_dict() | {"sent a step": sent}).items()
    )
    caption = f"{NAMES[chosen.strategy]} on {_many(chosen.ranks)}, {chosen.precision}: bytes"
    return (
        '<table style="align-self: start; line-height: 1.6">'
        f'<caption style="text-align: left"><b>{caption}</b></caption>{lines}</table>'
    )


def _freed_by_next_stage(parameters: int, chosen: Choice) -> str:
    stages = STRATEGIES[STRATEGIES.index(chosen.strategy) :][:2]
    first, *rest = (
        model_states(parameters, stage, chosen.ranks, chosen.precision).total for stage in stages
    )
    freed = first - rest[0] if rest else 0
    return f"; {NAMES[stages[1]]} would free {gigabytes(freed)} more" if freed else ""


def _change(chosen: Choice, to: Choice) -> str:
    """What differs: "ZeRO-3, 16 ranks"."""
    parts = (
        (to.strategy != chosen.strategy, NAMES[to.strategy]),
        (to.ranks != chosen.ranks, _many(to.ranks)),
        (to.precision != chosen.precision, f"precision {to.precision}"),
    )
    return ", ".join(text for differs, text in parts if differs)


def _check(model_name: str, precision: str, strategy: str, ranks: int, device: str) -> None:
    """Names are refused here, by the accounting, which knows the nearest."""
    model_states(model(model_name).parameters, strategy, ranks, precision)
    gpu(device)


def _count_of(name: str) -> int:
    return MODELS[name].parameters


def _precision_labels() -> list[tuple[str, str]]:
    return [
        (f"{name}: {policy.parameter} + {policy.gradient} + {policy.optimizer}", name)
        for name, policy in PRECISIONS.items()
    ]


def _menu(label: str, options: list, value: str) -> ipywidgets.Dropdown:
    return _labelled(ipywidgets.Dropdown, label, value, options=options)


def _labelled(kind: type, label: str, value: object, **more) -> ipywidgets.DOMWidget:
    return kind(description=label, value=value, style={"description_width": "6em"}, **more)


def _line(text: str, colour: str) -> str:
    """`role="status"`: a screen reader says it when it has changed."""
    return (
        '<p role="status" style="line-height: 1.4; padding: .4em .8em; '
        f'border-left: .35em solid {colour}">{escape(text)}</p>'
    )


def _swatch(state: str) -> str:
    return (
        '<span style="display: inline-block; width: .8em; height: .8em; '
        f'background: {COLOURS[state]}; border: 1px solid currentColor"></span>'
    )


def _both(size: int) -> str:
    return f"{gigabytes(size)} ({gibibytes(size)})"


def _many(ranks: int) -> str:
    return f"{ranks:,} rank{'' if ranks == 1 else 's'}"
