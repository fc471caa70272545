"""The calculator for notebooks: does it fit, and what is the least that has to change?

    from zerolab.teaching.widgets import Calculator
    Calculator(model="llama-2-70b", strategy="zero3", ranks=64)

The same controls, figures and verdict as on the book's calculator page, from the same functions.
"""

from collections.abc import Iterable, Mapping
from html import escape

import ipywidgets

from zerolab.accounting import InputError, gibibytes, gigabytes
from zerolab.teaching.calculator import (
    PARTS,
    TIMES,
    both,
    caption,
    duration,
    memory_bars,
    memory_lines,
    moment_totals,
    monitor_sentence,
    overhead_lines,
    sentence,
    time_parts,
    traffic,
)
from zerolab.teaching.controls import (
    CONTROLS,
    OWN,
    Asked,
    Control,
    Controls,
    most_tokens,
    named_count,
)
from zerolab.teaching.plots import COLOURS, WIRE
from zerolab.teaching.tables import NAMES, STATES

CUT = 2.5  # bars longer than this many GPUs are cut, so that the GPU's line stays readable
FILLS = dict(
    zip(PARTS, (*(COLOURS[state] for state in STATES), "#009e73", "#cc79a7"), strict=True)
) | dict(zip(TIMES, ("#56b4e9", "#0072b2", "#d55e00", WIRE), strict=True))
VERDICTS = {"Fits": ("✓", "#28704f"), "Tight": ("!", "#8a5a00"), "Does": ("✗", "#b00020")}


class Calculator(ipywidgets.VBox):
    """Controls on top, the verdict below them, then bars, each with a table beside it.

    Its controls are in `controls`, so a cell can read and set them:
    `calculator.controls["ranks"].value = 16`. Arguments are those of `Controls`. Raises InputError
    for what a control does not offer.
    """

    def __init__(self, **setup: object) -> None:
        start = Controls(**setup)  # type: ignore[arg-type]
        name, count = named_count(start.model, start.params)
        start.asked()
        self.controls = {key: _widget(key, getattr(start, key)) for key in CONTROLS}
        self.controls["model"].value, self.controls["params"].value = name, f"{count:_}"
        self._shown: dict[str, object] = {}
        self.verdict = ipywidgets.HTML()
        self.result = ipywidgets.HTML()
        self.step, self.more = self._group("step"), self._group("more")
        self.details = ipywidgets.Accordion([self.more], titles=["Tensor parallelism, autograd"])
        super().__init__(
            [self._group("states"), self.step, self.details, self.verdict, self.result]
        )
        self.controls["model"].observe(self._take_model, "value")
        self.controls["params"].observe(self._name_count, "value")
        for control in self.controls.values():
            control.observe(self._show, "value")
        self._show()

    def _group(self, group: str) -> ipywidgets.Box:
        members = [self.controls[name] for name, one in CONTROLS.items() if one.group == group]
        return ipywidgets.Box(members, layout=ipywidgets.Layout(flex_flow="row wrap"))

    def _take_model(self, change) -> None:
        """A model brings its parameters, and shortens a sequence that it does not take."""
        if change.new != OWN:
            sequence = self.controls["sequence"]
            with sequence.hold_trait_notifications():  # nothing is shown before both are set
                sequence.value = min(sequence.value, most_tokens(change.new))
                self.controls["params"].value = f"{named_count(change.new, None)[1]:_}"

    def _name_count(self, change) -> None:
        """The menu shows the model that has exactly as many parameters, if one does."""
        try:
            self.controls["model"].value, _ = named_count(self.controls["model"].value, change.new)
        except InputError:
            self.controls["model"].value = OWN

    def _show(self, _=None) -> None:
        """Two assignments: the browser redraws each once, and nothing moves in between."""
        values = {name: control.value for name, control in self.controls.items()}
        if values == self._shown:
            return  # a model brings its parameters: several changes, one set-up
        self._shown = values
        try:
            asked = Controls(**values).asked()
        except InputError as error:
            label = CONTROLS[error.option].label
            self.verdict.value = _line(f"{label}: accepted is {error.accepted}.", "?", "gray")
            self.result.layout.visibility = "hidden"  # keeps its place, so that nothing jumps
            return
        for box in (self.step, self.details):  # a peak needs a batch, model states do not
            box.layout.display = "" if asked.setup else "none"
        said = sentence(asked)
        self.verdict.value = _line(said, *VERDICTS[said.split()[0].rstrip(":")])
        self.result.value = _memory(asked) + _monitor(asked, values["shown"]) + _time(asked)
        self.result.layout.visibility = "visible"


def _widget(name: str, value: object) -> ipywidgets.DOMWidget:
    control: Control = CONTROLS[name]
    layout = {"description": control.label, "style": {"description_width": "10em"}}
    if control.choices is not None:
        options = [(label, choice) for choice, label in control.choices.items()]
        return ipywidgets.Dropdown(options=options, value=value, **layout)
    if control.most is not None:
        lowest = 0 if name == "shown" else 1
        return ipywidgets.BoundedIntText(value=value, min=lowest, max=control.most, **layout)
    return ipywidgets.Text(value=value, continuous_update=False, **layout)


def _memory(asked: Asked) -> str:
    """Bars of what is alive on a rank, and the chosen strategy's lines beside them."""
    capacity, device = asked.gpu.memory, asked.gpu.name
    bars = memory_bars(asked)
    totals = {strategy: sum(parts.values()) for strategy, parts in bars.items()}
    said = "; ".join(
        f"{NAMES[strategy]} {gigabytes(total)}, {'fits' if total <= capacity else 'does not fit'}"
        for strategy, total in totals.items()
    )
    chart = _chart(
        asked,
        bars,
        {name: f"{gigabytes(size)} · {gibibytes(size)}" for name, size in totals.items()},
        f"Bytes on a rank, against {both(capacity)} of {device}: {said}.",
        limit=(capacity, f"{device}: {both(capacity)}"),
    )
    lines = [
        (name, gigabytes(size), gibibytes(size), f"{size:,}")
        for name, size in memory_lines(asked).items()
    ]
    if asked.setup:
        for name, (low, high) in overhead_lines(asked.setup).items():
            lines.append((f"{name}, range", *_range(low, high), ""))
        for name, size in moment_totals(asked.setup).items():
            lines.append((f"at {name}", gigabytes(size), gibibytes(size), f"{size:,}"))
    return _beside(chart, _table(caption(asked), ("on a rank", "GB", "GiB", "bytes"), lines))


def _range(low: int, high: int) -> tuple[str, str]:
    return f"{gigabytes(low)}–{gigabytes(high)}", f"{gibibytes(low)}–{gibibytes(high)}"


def _monitor(asked: Asked, mebibytes: int) -> str:
    if not (asked.setup and mebibytes):
        return ""
    return f"<p>{escape(monitor_sentence(mebibytes * 2**20, asked.setup))}</p>"


def _time(asked: Asked) -> str:
    """Bars of a step's seconds, or of sending alone, and a table of them beside."""
    every = {strategy: asked.with_strategy(strategy) for strategy in NAMES}
    bars = {strategy: time_parts(one) for strategy, one in every.items()}
    totals = {strategy: sum(parts.values()) for strategy, parts in bars.items()}
    said = "; ".join(f"{NAMES[name]} {duration(total)}" for name, total in totals.items())
    what = "A step's time" if asked.setup else "Time to send a step's bytes"
    written = {name: duration(total) for name, total in totals.items()}
    chart = _chart(asked, bars, written, f"{what} on {asked.link.name}: {said}.")
    names = list(next(iter(bars.values())))
    lines = []
    for strategy, parts in bars.items():
        sent = traffic(every[strategy])
        times = [duration(parts[name]) for name in names]
        lines.append((NAMES[strategy], gigabytes(sent.bytes), f"{sent.messages:,}", *times))
    heads = ("strategy", "sent by a rank", "messages", *names)
    return _beside(chart, _table(f"{what} on {asked.link.name}", heads, lines))


def _chart(
    asked: Asked,
    bars: Mapping[str, Mapping[str, float]],
    written: Mapping[str, str],
    label: str,
    limit: tuple[int, str] | None = None,
) -> str:
    """A bar a strategy, its parts to scale; `limit` is a mark across all of them, and its name."""
    longest = max(sum(parts.values()) for parts in bars.values())
    # What is sent by one rank alone takes no time, and its bar has no length.
    end = longest or 1
    key = [f"<span>{_swatch(FILLS[part])} {part}</span>" for part in next(iter(bars.values()))]
    if limit:
        longest = max(longest, limit[0])
        end = min(longest, CUT * limit[0]) * 1.02
        key.append(f"<span><b>|</b> {limit[1]}</span>")
    drawn = "".join(
        _bar(strategy, parts, written[strategy], strategy == asked.chosen.strategy, limit, end)
        for strategy, parts in bars.items()
    )
    cut = f"<div>» marks bars that are cut: longer than {CUT} GPUs.</div>" if longest > end else ""
    return (
        f'<div role="img" aria-label="{escape(label)}" style="flex: 1 1 20em; max-width: 36em">'
        f"{' '.join(key)}{drawn}{cut}</div>"
    )


def _bar(
    strategy: str,
    parts: Mapping[str, float],
    written: str,
    chosen: bool,
    limit: tuple[int, str] | None,
    end: float,
) -> str:
    """One strategy's line: its name and total above a bar, across which stands the limit's mark."""
    drawn, before = [], 0.0
    for part, whole in parts.items():
        size = min(whole, end - before)
        before += size
        border = "1px solid currentColor" if size > 0 else "0"  # nothing is left of it by the cut
        drawn.append(
            f'<div style="flex: none; box-sizing: border-box; width: {100 * size / end:.3f}%; '
            f'background: {FILLS[part]}; border: {border}"></div>'
        )
    if limit:
        drawn.append(
            f'<div style="position: absolute; left: {100 * limit[0] / end:.3f}%; top: -.15em; '
            'bottom: -.15em; border-left: 3px solid currentColor"></div>'
        )
    more = " »" if sum(parts.values()) > end else ""
    return (
        '<div style="display: flex; justify-content: space-between; line-height: 1.4; '
        f'font-weight: {"bold" if chosen else "normal"}"><span>{NAMES[strategy]}</span>'
        f"<span>{written}{more}</span></div>"
        '<div style="position: relative; display: flex; height: 1.3em; margin-bottom: .5em">'
        f"{''.join(drawn)}</div>"
    )


def _table(title: str, heads: Iterable[str], lines: Iterable[tuple[str, ...]]) -> str:
    head = "".join(
        f'<th scope="col" style="text-align: {"right" if column else "left"}; '
        f'padding-left: {min(column, 1)}em">{name}</th>'
        for column, name in enumerate(heads)
    )
    rows = "".join(
        f'<tr><th scope="row" style="text-align: left; font-weight: normal">{name}</th>'
        + "".join(f'<td style="text-align: right; padding-left: 1em">{cell}</td>' for cell in cells)
        + "</tr>"
        for name, *cells in lines
    )
    return (
        '<table style="align-self: start; line-height: 1.6">'
        f'<caption style="text-align: left"><b>{title}</b></caption><tr>{head}</tr>{rows}</table>'
    )


def _beside(chart: str, table: str) -> str:
    return f'<div style="display: flex; flex-wrap: wrap; gap: 1em 2em">{chart}{table}</div>'


def _line(text: str, mark: str, colour: str) -> str:
    """`role="status"`: a screen reader says it when it has changed."""
    return (
        '<p role="status" style="line-height: 1.4; padding: .4em .8em; '
        f'border-left: .35em solid {colour}">{mark} {escape(text)}</p>'
    )


def _swatch(colour: str) -> str:
    return (
        '<span style="display: inline-block; width: .8em; height: .8em; '
        f'background: {colour}; border: 1px solid currentColor"></span>'
    )
