"""A traced step: its spans add up to the ledger, and show what overlap hides."""

import json

import pytest
import reference
import torch

from zerolab.runtime.trace import COMMUNICATION, COMPUTE, perfetto


def traced_step(rank: int, strategy: str, overlap: bool) -> tuple:
    """The spans of the third step, and what the ledger counted of it."""
    from zerolab.parallel import STRATEGIES, ShardedAdam
    from zerolab.runtime.ledger import ledger
    from zerolab.runtime.trace import recording

    torch.manual_seed(0)
    model = STRATEGIES[strategy](reference.GPT(reference.SHAPE), overlap=overlap)
    optimizer = ShardedAdam(model)
    for step in range(3):
        ledger.clear()
        with recording() as trace:
            model(*reference.batch(step, rank, 2)).backward()
            optimizer.step()
        optimizer.zero_grad()
    return trace.spans, ledger.bytes(), [unit.name for unit in model.units]


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
def test_spans_add_up_to_the_ledger(world_of, strategy):
    for spans, sent, units in world_of(2).run(traced_step, strategy, True):
        transfers = [span for span in spans if span.lane == COMMUNICATION]
        assert sum(span.bytes for span in transfers) == sent > 0
        computed = {(span.name, span.label) for span in spans if span.lane == COMPUTE}
        for unit in units:
            assert {("forward", unit), ("backward", unit), ("step", unit)} <= computed
        assert all(span.end >= span.start for span in spans)
        assert [span.start for span in spans] == sorted(span.start for span in spans)


def test_zero3_discards_what_it_has_gathered(world_of):
    for spans, *_ in world_of(2).run(traced_step, "zero3", True):
        gathered = [span.label for span in spans if span.name == "all-gather"]
        discarded = [span.label for span in spans if span.name == "discard"]
        assert sorted(gathered) == sorted(discarded)


def ahead(spans: list) -> int:
    """Gathers that began while another stage was computing."""
    gathers = [span for span in spans if span.name == "all-gather"]
    return sum(
        one.start <= gather.start < one.end
        for gather in gathers
        for one in spans
        if one.name in ("forward", "backward") and one.label != gather.label
    )


def test_overlap_gathers_the_next_stage_while_this_one_computes(world_of):
    for spans, *_ in world_of(2).run(traced_step, "zero3", True):
        assert ahead(spans) > 0
    for spans, *_ in world_of(2).run(traced_step, "zero3", False):
        assert ahead(spans) == 0


def test_perfetto_can_read_it(world_of):
    ranks = [spans for spans, *_ in world_of(2).run(traced_step, "zero2", True)]
    events = json.loads(json.dumps(perfetto(ranks)))["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == sum(map(len, ranks))
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in spans)
    sent = sum(span.bytes for spans in ranks for span in spans)
    assert sum(event["args"]["bytes"] for event in spans) == sent
