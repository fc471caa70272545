"""The step-through's recording is what the engine does today."""

import json
from pathlib import Path

import pytest

from zerolab.accounting import InputError
from zerolab.teaching.frame_check import check
from zerolab.teaching.frames import TITLES, frames
from zerolab.training.record import record

COMMITTED = Path(__file__).parents[2] / "book" / "assets" / "recorded-step.json"


@pytest.fixture(scope="module")
def fresh(world_of):
    return record(world_of(4))


def test_ranks_that_cannot_share_the_sequences_are_refused(world_of):
    with pytest.raises(InputError, match="ranks: got 3; accepted is one of 1, 2, 4"):
        record(world_of(3))


def test_a_fresh_recording_adds_up(fresh):
    check(fresh)


@pytest.mark.parametrize("strategy", TITLES)
def test_the_committed_one_is_the_same_in_order_and_bytes(fresh, strategy):
    committed = json.loads(COMMITTED.read_text())
    assert frames(committed, strategy) == frames(fresh, strategy)


def test_the_same_set_up(fresh):
    committed = json.loads(json.dumps(fresh["otherData"]))
    assert json.loads(COMMITTED.read_text())["otherData"].items() >= committed.items()
