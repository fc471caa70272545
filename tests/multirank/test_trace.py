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
    assert all(event["ts"] >= 0 and event.get("dur", 0) >= 0 for event in events if "ts" in event)
    open_now: dict[int, list[str]] = {0: [], 1: []}
    for event in events:  # what begins ends, and the last to begin first
        if event["ph"] == "B":
            open_now[event["pid"]].append(event["name"])
        elif event["ph"] == "E":
            assert open_now[event["pid"]].pop() == event["name"]
    assert open_now == {0: [], 1: []}
    whole = [event for event in events if event["ph"] in "BXi"]
    assert len(whole) == sum(map(len, ranks))
    sent = sum(span.bytes for spans in ranks for span in spans)
    assert sum(event.get("args", {}).get("bytes", 0) for event in whole) == sent


def metered_step(rank: int) -> tuple:
    """The spans of a second step of ZeRO-2, metered, and the bytes of its largest unit."""
    from zerolab.parallel import ShardedAdam, Zero2
    from zerolab.runtime.memory import MemoryMeter
    from zerolab.runtime.trace import recording

    torch.manual_seed(0)
    with MemoryMeter() as meter:
        model = Zero2(reference.GPT(reference.SHAPE), overlap=False)
        optimizer = ShardedAdam(model)
        for step in range(2):
            with recording(meter) as trace:
                model(*reference.batch(step, rank, 2)).backward()
                optimizer.step()
            optimizer.zero_grad()
    return trace.spans, {unit.name: 4 * unit.size for unit in model.units}


def test_a_meter_says_what_was_alive(world_of):
    """ZeRO-2 releases all of a unit's reduced gradient but its shard, and the spans show it."""
    for spans, units in world_of(2).run(metered_step):
        before = dict.fromkeys(units, 0)
        for span in spans:
            if span.name == "reduce-scatter":
                before[span.label] = span.live["gradients"]
            elif span.name == "release":
                assert span.bytes == units[span.label]
                assert before[span.label] - span.live["gradients"] == span.bytes // 2


def test_moments_are_the_main_threads(world_of):
    """Times of the two lanes race; which came first on the main thread does not."""
    runs = [world_of(2).run(traced_step, "zero1", False)[0][0] for _ in range(2)]
    one, other = (
        [(s.name, s.label) for s in sorted(spans, key=lambda span: span.first)] for spans in runs
    )
    assert one == other
    assert one.index(("all-gather", "blocks.0")) == one.index(("step", "blocks.0")) + 1
