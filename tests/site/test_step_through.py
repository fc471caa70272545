"""The step-through: keyboard, scrubber, predictions, text equivalent, both themes, no scripts."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial

import pytest
from axe_playwright_python.sync_playwright import Axe
from sitemap import BOOK

from zerolab.accounting import decimal_bytes
from zerolab.teaching.frame_check import expect
from zerolab.teaching.frames import HELD, TITLES, TRANSFERS, frames
from zerolab.teaching.predictions import RANK, predictions

PAGE = "step-through.html"
RECORDING = BOOK / "assets" / "recorded-step.json"
MOST = 200_000  # bytes

# All that a frame shows, in one question to the browser: there are two hundred frames.
SHOWN = """(() => {
  const root = document.querySelector("zero-step").shadowRoot;
  const text = (selector) => root.querySelector(selector).textContent;
  const texts = (part, selector) =>
    [...part.querySelectorAll(selector)].map((one) => one.textContent);
  return {
    place: text(".place"), what: text(".what"), why: text(".why"), doing: texts(root, ".doing"),
    sizes: [...root.querySelectorAll(".rank")].map((card) => texts(card, ".size")),
  };
})()"""

FOCUSED = """(() => {
  const inside = document.querySelector("zero-step").shadowRoot.activeElement;
  const one = inside ?? document.activeElement;
  return one.dataset.action || one.type || one.localName;
})()"""


@pytest.fixture(scope="module")
def recording():
    return json.loads(RECORDING.read_text())


@pytest.fixture(scope="module")
def told(recording):
    return {strategy: frames(recording, strategy) for strategy in TITLES}


@pytest.fixture(scope="module")
def asked(recording, told):
    return {s: predictions(told[s], expect(recording, s)) for s in TITLES}


@pytest.fixture
def page(visit):
    with visit(PAGE) as visited:
        yield visited.page


@pytest.fixture(scope="module")
def opened(visit):
    """A page for several tests, each of which sets the frame that it looks at."""
    with visit(PAGE) as visited:
        yield visited.page


def place(page) -> str:
    return page.locator(".place").text_content()


def cards(page) -> list[list[str]]:
    """The sizes that each rank's card shows."""
    return page.evaluate(SHOWN)["sizes"]


def shown(frame) -> list[list[str]]:
    return [[decimal_bytes(held[name]) for name in HELD] for held in frame.live]


def show(page, strategy: str, at: int) -> None:
    """As the scrubber does."""
    page.evaluate(
        "([strategy, at]) => document.querySelector('zero-step').show(strategy, at)", [strategy, at]
    )


def test_plays_every_frame_of_the_recording(page, told):
    """To the end and back by the arrow keys: what each rank does and holds is the recording's."""
    page.get_by_label("Ask me to predict").uncheck()
    page.locator("[type=range]").focus()
    for strategy, steps in told.items():
        show(page, strategy, 0)
        for at, frame in enumerate(steps):
            seen = page.evaluate(SHOWN)
            assert seen["place"] == f"Frame {at + 1} of {len(steps)}, {frame.phase}"
            assert seen["what"] == f"{frame.kind} {frame.label}"
            assert seen["why"] == frame.cause
            assert seen["sizes"] == shown(frame)
            for rank, doing in enumerate(seen["doing"]):
                amount = frame.sent[rank] or frame.freed[rank]
                assert (f"{amount:,} B" in doing) == bool(amount)
                assert doing.startswith("sends") == (frame.kind in TRANSFERS)
            page.keyboard.press("ArrowRight")
        assert place(page).startswith(f"Frame {len(steps)} of")
        for _ in range(3):
            page.keyboard.press("ArrowLeft")
        assert place(page).startswith(f"Frame {len(steps) - 3} of")
        assert cards(page) == shown(steps[-4])


def test_never_plays_by_itself(page):
    before = place(page), page.locator(".told").inner_text()
    page.wait_for_timeout(1000)
    assert (place(page), page.locator(".told").inner_text()) == before


def test_keys_go_to_phases_and_ends(page, told):
    steps = told["ddp"]
    page.get_by_label("Ask me to predict").uncheck()
    page.locator(".main").focus()
    firsts = {
        phase: next(i for i, f in enumerate(steps) if f.phase == phase)
        for phase in ("backward", "step")
    }
    for key, at in [
        ("PageDown", firsts["backward"]),
        ("PageDown", firsts["step"]),
        ("PageUp", firsts["backward"]),
        ("End", len(steps) - 1),
        ("Home", 0),
        ("ArrowLeft", 0),
    ]:
        page.keyboard.press(key)
        assert place(page).startswith(f"Frame {at + 1} of {len(steps)}"), key


def test_buttons_and_scrubber_move_it(page, told):
    page.get_by_label("Ask me to predict").uncheck()
    page.locator(".main").click()
    assert place(page).startswith("Frame 2 of")
    page.get_by_role("button", name="Back", exact=True).click()
    assert place(page).startswith("Frame 1 of")
    assert (
        page.get_by_role("button", name="Back", exact=True).get_attribute("aria-disabled") == "true"
    )
    page.get_by_role("button", name="Back", exact=True).click(force=True)  # does nothing
    assert place(page).startswith("Frame 1 of")
    page.get_by_role("button", name="Next phase").click()
    assert place(page).endswith("backward")
    scrubber = page.get_by_label("Frame", exact=True)
    scrubber.fill("5")
    assert place(page).startswith("Frame 5 of")
    assert scrubber.get_attribute("aria-valuetext").endswith(
        f"{told['ddp'][4].kind} {told['ddp'][4].label}"
    )


def test_works_by_keyboard_alone(page):
    page.locator("[value=ddp]").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("[value=zero1]").is_checked()
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
    order = ["forward", "later", "range", "checkbox", "summary", "a"]
    assert [one for one in reached if one in order][: len(order)] == order
    page.locator(".main").focus()
    outline = page.locator(".main").evaluate("one => getComputedStyle(one).outlineWidth")
    assert outline == "3px"


@pytest.mark.parametrize("strategy", TITLES)
def test_asks_before_it_shows(opened, told, asked, strategy):
    page = opened
    for at, prediction in asked[strategy].items():
        show(page, strategy, at)
        answer = f"{prediction.answer:,}"
        assert page.locator(".question").text_content() == prediction.question
        assert page.locator(".given").text_content() == prediction.given
        choices = page.locator(".choices button")
        assert choices.all_text_contents() == [
            f"{choice.bytes:,} bytes" for choice in prediction.choices
        ]
        # What was before stays to be seen, and nothing says what comes.
        assert page.evaluate(SHOWN)["sizes"] == shown(told[strategy][at - 1])
        assert set(page.evaluate(SHOWN)["doing"]) == {"?"}
        assert not page.locator(".wire").is_visible()
        wrong = next(c for c in prediction.choices if c.bytes != prediction.answer)
        choices.filter(has_text=re.compile(f"^{wrong.bytes:,} bytes")).click()
        verdict = page.locator(".verdict").text_content()
        assert verdict.startswith(f"{wrong.bytes:,} bytes? {wrong.meaning}")
        assert f"It is {answer} bytes" in verdict
        assert page.evaluate(SHOWN)["sizes"] == shown(told[strategy][at])
        assert f"{answer} B" in page.evaluate(SHOWN)["doing"][RANK]
        assert page.locator(".prediction").is_hidden()


def test_a_right_answer_is_said_to_be_one(visit, asked):
    at, prediction = next(iter(asked["zero3"].items()))
    with visit(f"{PAGE}#step=zero3-{at + 1}") as visited:
        page = visited.page
        page.get_by_role("button", name=f"{prediction.answer:,} bytes", exact=True).focus()
        page.keyboard.press("Enter")
        verdict = page.locator(".verdict.right")
        assert verdict.text_content().startswith(f"{prediction.answer:,} bytes it is.")
        assert page.locator(".main").evaluate("one => one.matches(':focus')")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")  # and it is not asked again
        assert verdict.is_visible()


def test_the_question_may_be_passed_over(visit, asked):
    at = next(iter(asked["zero3"]))
    with visit(f"{PAGE}#step=zero3-{at + 1}") as visited:
        page = visited.page
        page.locator(".main").click()
        assert place(page).startswith(f"Frame {at + 1} of")
        assert page.locator(".verdict").is_hidden()
        assert page.locator(".prediction").is_hidden()
        page.locator(".main").click()
        assert place(page).startswith(f"Frame {at + 2} of")


def test_says_each_frame_to_those_who_do_not_see_it(visit, told, asked):
    at = next(iter(asked["zero2"]))
    frame = told["zero2"][at]
    with visit(f"{PAGE}#step=zero2-{at + 1}") as visited:
        page = visited.page
        status = page.get_by_role("status").filter(has_text=frame.cause)
        assert "How many bytes" in status.text_content()
        assert f"{frame.sent[RANK]:,} bytes." not in status.text_content()
        page.locator(".main").click()
        said = status.text_content()
        assert f"Frame {at + 1} of {len(told['zero2'])}, {frame.phase}." in said
        assert f"Each rank sends {frame.sent[RANK]:,} bytes." in said
        for name in HELD:
            assert f"{name} {frame.live[RANK][name]:,}" in said


@pytest.mark.parametrize("strategy", TITLES)
def test_the_table_tells_the_whole_step(opened, told, strategy):
    show(opened, strategy, 0)
    opened.get_by_text(f"{TITLES[strategy]}: the whole step as a table").click()
    rows = opened.locator(f".step-table[data-strategy={strategy}] tbody tr")
    for text, frame in zip(rows.all_text_contents(), told[strategy], strict=True):
        sizes = [frame.sent[0], frame.freed[0], *(frame.live[0][name] for name in HELD)]
        cells = f"{frame.kind} {frame.label}{frame.cause}" + "".join(f"{n:,}" for n in sizes)
        assert text.endswith(cells)
    tables = opened.locator(".step-table").all()
    assert [table.is_visible() for table in tables] == [one == strategy for one in TITLES]


@pytest.mark.parametrize(("strategy", "at"), [("ddp", 2), ("zero3", 9)])
def test_bars_are_to_one_scale(opened, told, strategy, at):
    """For every strategy, the largest of all bars is a full one."""
    largest = max(max(held.values()) for steps in told.values() for f in steps for held in f.live)
    show(opened, strategy, at)
    tracks = opened.locator(".rank").nth(RANK).locator(".track")
    for track, name in zip(tracks.all(), HELD, strict=True):
        bar, full = track.evaluate(
            "one => [one.firstElementChild.getBoundingClientRect().width, one.clientWidth]"
        )
        assert bar == pytest.approx(full * told[strategy][at].live[RANK][name] / largest, abs=1)


def test_the_hash_holds_the_frame(visit):
    with visit(f"{PAGE}#step=zero1-9") as visited:
        page = visited.page
        assert page.locator("[value=zero1]").is_checked()
        assert place(page).startswith("Frame 9 of")
        page.get_by_text("Tensor parallelism", exact=True).click()
        page.locator(".main").click()
        page.wait_for_function("location.hash == '#step=tp-2'")
        page.evaluate("location.hash = 'step=zero3-4'")
        page.wait_for_function(
            "document.querySelector('zero-step').shadowRoot.querySelector('[value=zero3]').checked"
        )
        assert place(page).startswith("Frame 4 of")


@pytest.mark.parametrize("hash", ["what-you-see", "step=none-3"])
def test_an_anchor_and_nonsense_start_at_the_beginning(visit, hash):
    with visit(f"{PAGE}#{hash}") as visited:
        assert place(visited.page).startswith("Frame 1 of")
        for frame, seen in (("0", 1), ("x", 1), ("-2", 1), ("2.5", 2), ("1e9", 1), ("999", 26)):
            visited.page.evaluate(f"location.hash = 'step=ddp-{frame}'")
            visited.page.wait_for_function(f"document.querySelector('zero-step').at === {seen - 1}")
        assert visited.errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_is_accessible_and_fits_the_window(visit, theme, width):
    with visit(f"{PAGE}#step=zero3-7", theme=theme, width=width) as visited:
        page = visited.page
        for answered in (False, True):  # the question, and what it asks for
            if answered:
                page.locator(".main").click()
                page.get_by_text("the whole step as a table").locator("visible=true").click()
            found = Axe().run(page, context="zero-step").response
            assert found["violations"] == []
            assert len(found["passes"]) > 10, "axe looked at nothing"
            assert page.evaluate("document.documentElement.scrollWidth") == width
        # Ranks are side by side, and one above the other on a phone.
        boxes = [card.bounding_box() for card in page.locator(".rank").all()]
        columns, rows = ({round(box[side]) for box in boxes} for side in "xy")
        assert (len(columns), len(rows)) == ((4, 1) if width == 1280 else (1, 4))


def test_moves_only_for_those_who_want_it(page):
    bar = page.locator(".track i").first
    moving = "bar => getComputedStyle(bar).transitionDuration"
    assert bar.evaluate(moving) == "0s"
    page.emulate_media(reduced_motion="no-preference")
    assert bar.evaluate(moving) == "0.2s"


@pytest.mark.parametrize("origin", ["http", "file"])
def test_the_recording_can_be_saved(visit, origin):
    """As it is, for Perfetto; from the disk too, where browsers would open it instead."""
    with visit(PAGE, origin=origin) as visited:
        with visited.page.expect_download() as downloading:
            visited.page.get_by_role("link", name="download the recording").click()
        assert downloading.value.suggested_filename == "zerolab-recorded-step.json"
        assert downloading.value.path().read_text() == RECORDING.read_text()
        assert visited.foreign_requests() == []
        assert visited.page.locator("zero-step").is_visible()  # the page has stayed


def test_a_figure_and_a_table_stand_in_where_scripts_are_off(browser, origins, told):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(f"{origins['file']}/{PAGE}")
    for strategy, steps in told.items():
        figure = page.locator(f".step-figure[data-strategy={strategy}]")
        assert figure.get_by_role("img").is_visible()
        most = max(sum(frame.live[RANK].values()) for frame in steps)
        sent = sum(frame.sent[RANK] for frame in steps)
        caption = figure.locator("figcaption").text_content()
        assert decimal_bytes(most) in caption
        assert decimal_bytes(sent) in caption
        assert figure.locator("path").first.bounding_box()["width"] > 300
        page.get_by_text(f"{TITLES[strategy]}: the whole step as a table").click()
        assert page.locator(f".step-table[data-strategy={strategy}] tbody tr").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    context.close()


def test_is_small_and_only_where_it_is_used(site):
    static = site / "_static"
    parts = ("step-through-data.js", "step-through.js", "step-through.css")
    assert sum((static / part).stat().st_size for part in parts) <= MOST / 2
    assert (static / RECORDING.name).stat().st_size <= MOST
    using = {path.name for path in site.glob("*.html") if "step-through.js" in path.read_text()}
    assert PAGE in using
    assert "index.html" not in using


@pytest.fixture
def built(small_book):
    """`built(options)`: the HTML and the warnings of a small book with one step-through."""
    return partial(small_book, "step_through", "step-through")


def test_a_chapter_places_one_strategy(built):
    page, warnings = built(":strategy: zero2")
    assert "ERROR" not in warnings
    [element] = page.find_all("zero-step")
    assert element["strategy"] == "zero2"
    assert [one["data-strategy"] for one in element.select("figure")] == ["zero2"]
    assert "<path" in str(element.svg)


def test_a_chapter_with_a_wrong_strategy_does_not_build(built):
    page, warnings = built(":strategy: zero4")
    assert "ERROR" in warnings
    assert "zero3" in warnings
    assert page.find("zero-step") is None


def test_a_recording_that_does_not_add_up_does_not_build(recording, tmp_path):
    """Extensions are read from a copy of the book's folder, with one number changed."""
    shutil.copytree(BOOK / "extensions", tmp_path / "copy" / "extensions")
    transfer = next(e for e in recording["traceEvents"] if e["ph"] == "X")
    altered = RECORDING.read_text().replace(
        json.dumps(transfer, separators=(",", ":")),
        json.dumps(transfer | {"args": {"bytes": 1}}, separators=(",", ":")),
    )
    (tmp_path / "copy" / "assets").mkdir()
    (tmp_path / "copy" / "assets" / RECORDING.name).write_text(altered)
    conf = (
        f"import sys\nsys.path.insert(0, {str(tmp_path / 'copy' / 'extensions')!r})\n"
        "extensions = ['myst_parser', 'step_through']\n"
    )
    (tmp_path / "conf.py").write_text(conf)
    (tmp_path / "index.md").write_text("# A chapter\n\n```{step-through}\n```\n")
    command = [sys.executable, "-m", "sphinx", "-q", str(tmp_path), str(tmp_path / "out")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "ddp, rank 0, all frames: sent" in ended.stderr
