"""The ledger: what it counts, and that a long training does not fill the memory with it."""

import pytest

from zerolab.runtime import ledger as module
from zerolab.runtime.ledger import Ledger


def record(ledger: Ledger, operation: str, count: int) -> None:
    for step in range(count):
        with ledger.entry(operation, f"unit {step}", bytes=10, messages=3):
            pass


def test_what_is_dropped_is_still_counted(monkeypatch):
    monkeypatch.setattr(module, "MOST_EVENTS", 6)
    ledger = Ledger()
    record(ledger, "all-gather", 7)
    record(ledger, "reduce-scatter", 4)
    assert len(ledger.events) <= 6
    assert [event.label for event in ledger.events[-4:]] == [f"unit {step}" for step in range(4)]
    assert (ledger.bytes(), ledger.bytes("all-gather"), ledger.messages()) == (110, 70, 33)
    assert ledger.bytes("broadcast") == 0


def test_clear_counts_from_zero():
    ledger = Ledger()
    record(ledger, "all-gather", 2)
    assert ledger.seconds() > 0
    ledger.clear()
    assert (ledger.events, ledger.bytes(), ledger.messages(), ledger.seconds()) == ([], 0, 0, 0)


def test_a_collective_that_fails_leaves_its_position():
    ledger = Ledger()
    with pytest.raises(ConnectionError), ledger.entry("all-gather", "blocks.3", 10, 1):
        raise ConnectionError
    assert ledger.position == "all-gather of blocks.3"
    assert ledger.seconds() == 0
