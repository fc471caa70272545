"""The step-through's recording: its bytes add up, and one that is altered is refused."""

import copy
import json
import re
from pathlib import Path

import pytest

from zerolab.accounting import STRATEGIES, persistent_states
from zerolab.accounting.traffic import PASSES
from zerolab.teaching.causes import cause
from zerolab.teaching.frame_check import check, check_strategy, expect
from zerolab.teaching.frames import COMPUTING, DISCARDS, HELD, TITLES, TRANSFERS, frames
from zerolab.teaching.predictions import RANK, predictions

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "book" / "assets" / "recorded-step.json"
MOST = 200_000  # bytes of the committed file

strategies = pytest.mark.parametrize("strategy", TITLES)


@pytest.fixture(scope="module")
def recording():
    return json.loads(RECORDING.read_text())


@pytest.fixture
def altered(recording):
    """The same, to be changed."""
    return copy.deepcopy(recording)


def test_is_accepted_and_small(recording):
    check(recording)
    assert RECORDING.stat().st_size <= MOST


def test_names_the_command_that_made_it(recording):
    program, script = recording["otherData"]["command"].split()
    assert program == "python"
    assert (ROOT / script).is_file()


def test_every_strategy_is_in_it(recording):
    assert list(recording["otherData"]["strategies"]) == list(TITLES)
    assert set(STRATEGIES) < set(TITLES)


@strategies
def test_frames_sum_to_the_ledger_of_each_rank(recording, strategy):
    counted = recording["otherData"]["strategies"][strategy]["sent"]
    assert len(counted) == recording["otherData"]["ranks"] == 4
    for rank, sent in enumerate(counted):
        assert sum(frame.sent[rank] for frame in frames(recording, strategy)) == sent > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_frames_sum_to_the_textbook(recording, strategy):
    """2, 2, 2 and 3 passes of three quarters of all parameters, 4 bytes each."""
    sizes = [size for _, size in recording["otherData"]["strategies"][strategy]["units"]]
    assert all(size % 4 == 0 for size in sizes), "padding would have to be counted"
    expected = sum(PASSES[strategy]) * 4 * sum(sizes) * 3 // 4
    told = frames(recording, strategy)
    assert [sum(frame.sent[rank] for frame in told) for rank in range(4)] == [expected] * 4
    last_of_backward = [frame for frame in told if frame.phase == "backward"][-1]
    states = persistent_states(sizes, strategy, 4, "fp32")
    for held in last_of_backward.live:
        assert [held[name] for name in HELD[:3]] == [
            states.parameters,
            states.gradients,
            states.optimizer,
        ]


def test_tensor_parallelism_sums_to_its_formula(recording):
    """An all-reduce of 32 × 4 tokens of width 64 twice forward and twice backward in each of two
    blocks, and one of each for embedding and head; and two numbers a token for the loss."""
    all_reduces, tokens = 2 * 4 + 2, 4 * 32
    expected = all_reduces * 2 * 3 * (tokens * 64 * 4 // 4) + 3 * 2 * tokens * 4
    assert sum(frame.sent[RANK] for frame in frames(recording, "tp")) == expected


@strategies
def test_any_other_bytes_of_a_frame_are_refused(altered, strategy):
    """All but activations, which have no formula: a fresh recording is held against those."""
    process, tried = 4 * list(TITLES).index(strategy) + RANK, 0
    altered["traceEvents"] = [e for e in altered["traceEvents"] if e["pid"] // 4 == process // 4]
    for event in altered["traceEvents"]:
        arguments = event.get("args", {})
        if event["pid"] == process and "bytes" in arguments and event["name"] != "activations":
            arguments["bytes"] += 4
            with pytest.raises(ValueError, match=f"{strategy}, rank {RANK}"):
                check_strategy(altered, strategy)
            arguments["bytes"] -= 4
            tried += 1
    check_strategy(altered, strategy)
    assert tried > 15


@strategies
def test_a_frame_that_is_missing_doubled_or_out_of_place_is_refused(altered, strategy):
    events = altered["traceEvents"]
    process = 4 * list(TITLES).index(strategy) + RANK
    at = next(i for i, e in enumerate(events) if e["pid"] == process and e["ph"] == "X")
    transfer = events.pop(at)
    with pytest.raises(ValueError, match=strategy):
        check(altered)
    events[at:at] = [transfer, transfer]
    with pytest.raises(ValueError, match=strategy):
        check(altered)
    del events[at]
    check(altered)
    transfer["name"] = transfer["name"].replace("all-", "other-").replace("reduce-", "other-")
    with pytest.raises(ValueError, match=strategy):
        check(altered)


def test_a_ledger_that_counted_otherwise_is_refused(altered):
    altered["otherData"]["strategies"]["zero2"]["sent"][3] -= 4
    with pytest.raises(ValueError, match="zero2, rank 3, all frames: sent"):
        check(altered)


def test_a_step_that_keeps_its_gradients_is_refused(altered):
    last = max(i for i, e in enumerate(altered["traceEvents"]) if e["ph"] == "i")
    del altered["traceEvents"][last : last + 2]
    with pytest.raises(ValueError, match="tp"):
        check(altered)


@strategies
def test_every_frame_names_its_cause(recording, strategy):
    told = frames(recording, strategy)
    for frame in told:
        assert frame.kind in (*TRANSFERS, *DISCARDS, *COMPUTING)
        assert re.fullmatch(r"[A-Za-z].*\.", frame.cause)
        assert "{" not in frame.cause
        assert not re.search(r"\d{3}", frame.cause), "bytes are for the reader to predict"
    assert len({frame.cause for frame in told}) >= 10


def test_a_frame_without_a_cause_is_an_error():
    with pytest.raises(ValueError, match="no cause is written for ddp step broadcast x"):
        cause("ddp", "step", "broadcast", "x")


def test_zero3_gathers_computes_and_discards_in_turn(recording):
    told = [(f.kind, f.label) for f in frames(recording, "zero3") if f.phase == "forward"]
    for unit in ("token_embedding", "blocks.0", "blocks.1", "head"):
        first = told.index(("all-gather", unit))
        assert [kind for kind, _ in told[first : first + 3]] == ["all-gather", "forward", "discard"]


@strategies
def test_predictions_are_of_what_the_frame_shows(recording, strategy):
    told = frames(recording, strategy)
    asked = predictions(told, expect(recording, strategy))
    kinds = {(told[place].phase, told[place].kind) for place in asked}
    assert kinds >= {(f.phase, f.kind) for f in told if f.kind in TRANSFERS}
    for place, prediction in asked.items():
        frame = told[place]
        shown = frame.freed if frame.kind in DISCARDS else frame.sent
        assert prediction.answer == shown[RANK]
        sizes = [choice.bytes for choice in prediction.choices]
        assert sizes == sorted(set(sizes))
        assert prediction.answer in sizes
        assert len(sizes) >= 3
        meanings = {choice.meaning for choice in prediction.choices}
        assert len(meanings) == len(sizes)
        assert f"rank {RANK}" in prediction.question


@strategies
def test_perfetto_finds_pairs_and_times(recording, strategy):
    first = 4 * list(TITLES).index(strategy)
    for process in range(first, first + 4):
        events = [event for event in recording["traceEvents"] if event["pid"] == process]
        assert events[0]["args"]["name"] == f"{strategy} rank {process - first}"
        begun = []
        for event in events[1:]:
            assert event["ts"] >= 0
            if event["ph"] == "B":
                begun.append(event["name"])
            elif event["ph"] == "E":
                assert begun.pop() == event["name"]
        assert begun == []
