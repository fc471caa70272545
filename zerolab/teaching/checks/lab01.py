"""The tasks of lab 1, memory accounting: `labs/01-memory-accounting.ipynb`.

The truth is `zerolab.accounting`; no answer is written down here. A mistake is the formula that a
reader with that misunderstanding would write: most are the right formula with one piece changed,
and the functions that begin with an underscore make them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from zerolab.accounting import (
    PRECISIONS,
    SHARDING,
    STRATEGIES,
    ModelStates,
    Precision,
    Sharding,
    model_states,
    padding,
    persistent_states,
)
from zerolab.accounting.memory import STEP_COUNTER
from zerolab.teaching.checks.answers import names, number, states
from zerolab.teaching.checks.checking import Mistake, Task

Formula = Callable[..., object]

MIXED, NO_MASTER = PRECISIONS["mixed"], PRECISIONS["no_master"]
# A policy that stands in no table: whoever does not read its fields gets it wrong.
NARROW = Precision("narrow", parameter=1, gradient=3, master=5, moments=6)
POLICIES = (*PRECISIONS.values(), NARROW)
COUNTS = (7_000_000_000, 1, 10, 12_345, 124_439_808, 1_300_000_000, 70_000_000_000)

MASTER_MISSING = "the fp32 master copy is missing; the optimizer keeps it beside the two moments"
FP32_GRADIENTS = "the gradients are counted in fp32; take precision.gradient bytes for each"
ALL_DIVIDED = "that divides everything by N under every strategy; only ZeRO-3 shards everything"


def without_master(precision: Precision) -> Precision:
    return replace(precision, master=0)


def with_fp32_gradients(precision: Precision) -> Precision:
    return replace(precision, gradient=4)


def total(parameters: int, strategy: str, ranks: int, precision: Precision) -> int:
    return model_states(parameters, strategy, ranks, precision).total


# 1.1 The bytes of one whole model


def _times(bytes_each: Callable[[Precision], float]) -> Formula:
    return lambda parameters, precision: parameters * bytes_each(precision)


STATE_BYTES = Task(
    name="1.1",
    function="state_bytes",
    kind=number,
    truth=lambda parameters, precision: total(parameters, "ddp", 1, precision),
    cases=[(7_000_000_000, MIXED), *((count, policy) for count in COUNTS for policy in POLICIES)],
    mistakes=[
        Mistake(MASTER_MISSING, _times(lambda each: each.total - each.master)),
        Mistake(
            "the master copy is counted twice; precision.optimizer already holds it",
            _times(lambda each: each.total + each.master),
        ),
        Mistake(
            "these are the parameters alone; training keeps gradients and optimizer states too",
            _times(lambda each: each.parameter),
        ),
        Mistake(
            "the gradients are missing",
            _times(lambda each: each.total - each.gradient),
        ),
        Mistake(
            "the optimizer's states are missing: master copy and moments",
            _times(lambda each: each.parameter + each.gradient),
        ),
        Mistake(
            "the parameters themselves are missing; the master copy does not replace them",
            _times(lambda each: each.total - each.parameter),
        ),
        Mistake(
            "precision.moments already counts both of Adam's moments; do not double it",
            _times(lambda each: each.total + each.moments),
        ),
        Mistake(
            "Adam keeps two moments and precision.moments counts both; do not halve it",
            _times(lambda each: each.total - each.moments / 2),
        ),
        Mistake(FP32_GRADIENTS, _times(lambda each: with_fp32_gradients(each).total)),
        Mistake(
            "that is 16 bytes a parameter whatever the policy; read the policy's fields",
            _times(lambda each: 16),
        ),
        Mistake(
            "these are the bytes of one parameter; multiply by how many there are",
            lambda parameters, precision: precision.total,
        ),
    ],
)


# 1.2 Which policies come to a published figure


def _policies(
    comes_to: Callable[[int, int], bool] = lambda size, figure: round(size / 1e9) == figure,
    counted: Callable[[Precision], Precision] = lambda precision: precision,
) -> Callable[..., list[str]]:
    return lambda parameters, gigabytes: [
        name
        for name, policy in PRECISIONS.items()
        if comes_to(total(parameters, "ddp", 1, counted(policy)), gigabytes)
    ]


def figures() -> Iterator[tuple[int, int]]:
    """Figures that a policy comes to, in GB and, wrongly, in GiB, and some that none does."""
    yield 7_000_000_000, 112
    for count in (7_000_000_000, 6_738_415_616, 1_234_567_890, 12_852_024_320, 70_000_000_000):
        sizes = [total(count, "ddp", 1, policy) for policy in PRECISIONS.values()]
        for size in sizes:
            yield count, round(size / 1e9)
            yield count, round(size / 2**30)
        yield count, round(max(sizes) / 1e9) + 1


POLICIES_OF = Task(
    name="1.2",
    function="policies",
    kind=names,
    truth=_policies(),
    cases=list(figures()),
    mistakes=[
        Mistake(
            "that divides by 2**30, which gives GiB; a GB is 10**9 bytes",
            _policies(lambda size, figure: round(size / 2**30) == figure),
        ),
        Mistake(
            "more than one policy can come to the same figure; return them all",
            lambda *case: _policies()(*case)[:1],
        ),
        Mistake(
            "that demands equality to the byte; a figure is rounded to whole GB",
            _policies(lambda size, figure: size == figure * 10**9),
        ),
        Mistake(
            "that cuts the decimals off; round to the nearest GB",
            _policies(lambda size, figure: size // 10**9 == figure),
        ),
        Mistake(
            "that takes every policy up to the figure; take those that come to it",
            _policies(lambda size, figure: round(size / 1e9) <= figure),
        ),
        Mistake(MASTER_MISSING, _policies(counted=without_master)),
    ],
)


# 1.3 What data parallelism wastes


def _copies(
    copies: Callable[[int], float],
    bytes_each: Callable[[Precision], int] = lambda precision: precision.total,
) -> Formula:
    return lambda parameters, ranks, precision: copies(ranks) * parameters * bytes_each(precision)


WASTE = Task(
    name="1.3",
    function="waste",
    kind=number,
    truth=lambda parameters, ranks, precision: (
        (ranks - 1) * total(parameters, "ddp", ranks, precision)
    ),
    cases=[
        (7_000_000_000, 100, NO_MASTER),
        *((count, ranks, policy) for count in COUNTS for ranks in (2, 1, 7) for policy in POLICIES),
    ],
    mistakes=[
        Mistake(
            "that is all that the ranks store; one copy is needed, the others are the waste",
            _copies(lambda ranks: ranks),
        ),
        Mistake(
            "that is what one rank stores; the waste is what the other ranks repeat",
            _copies(lambda ranks: 1),
        ),
        Mistake(
            "that counts the parameters alone; gradients and optimizer states are repeated too",
            _copies(lambda ranks: ranks - 1, lambda each: each.parameter),
        ),
        Mistake(
            MASTER_MISSING,
            _copies(lambda ranks: ranks - 1, lambda each: without_master(each).total),
        ),
        Mistake(
            "that is the average over the ranks; wanted is their sum",
            lambda parameters, ranks, precision: (
                (ranks - 1) * total(parameters, "ddp", ranks, precision) / ranks
            ),
        ),
    ],
)


# 1.4 The states of one rank under each strategy

WHOLE, SHARDED = Sharding("whole", "whole", "whole"), Sharding("shard", "shard", "shard")


def _states(
    shard: Callable[[int, int], float] = lambda elements, ranks: -(-elements // ranks),
    table: dict[str, Sharding] = SHARDING,
    counted: Callable[[Precision], Precision] = lambda precision: precision,
) -> Callable[..., dict[str, float]]:
    def formula(
        parameters: int, strategy: str, ranks: int, precision: Precision
    ) -> dict[str, float]:
        elements = {"whole": parameters, "shard": shard(parameters, ranks)}
        kept, each = table[strategy], counted(precision)
        return {
            "parameters": each.parameter * elements[kept.parameters],
            "gradients": each.gradient * elements[kept.gradients],
            "optimizer": each.optimizer * elements[kept.optimizer],
        }

    return formula


def sharded_bytes(
    parameters: int, strategy: str, ranks: int, precision: Precision
) -> dict[str, int]:
    """Wrong: the bytes of a state are cut, not its elements."""
    whole = model_states(parameters, "ddp", 1, precision).as_dict()
    return {
        state: -(-whole[state] // ranks) if kept == "shard" else whole[state]
        for state, kept in SHARDING[strategy]._asdict().items()
    }


def summed_over_ranks(
    parameters: int, strategy: str, ranks: int, precision: Precision
) -> dict[str, int]:
    one = model_states(parameters, strategy, ranks, precision).as_dict()
    return {state: ranks * size for state, size in one.items()}


STATES_OF = Task(
    name="1.4",
    function="states",
    kind=states,
    truth=lambda *case: model_states(*case).as_dict(),
    cases=[
        (7_500_000_000, "zero1", 64, MIXED),
        *(
            (count, strategy, ranks, policy)
            for policy in (MIXED, NARROW, *PRECISIONS.values())
            for count in (10, 11, 7_500_000_000, 124_439_809)
            for strategy in STRATEGIES
            for ranks in (1, 4, 64, 3)
        ),
    ],
    mistakes=[
        Mistake(
            "no rank can hold part of a parameter; a shard is a whole number of them, rounded up",
            _states(shard=lambda elements, ranks: elements / ranks),
        ),
        Mistake(
            "the shard is rounded down, so the last parameters have no rank; round up",
            _states(shard=lambda elements, ranks: elements // ranks),
        ),
        Mistake(
            "the shard is rounded to the nearest, so the last parameters may have no rank; "
            "round up",
            _states(shard=lambda elements, ranks: round(elements / ranks)),
        ),
        Mistake(
            "that divides bytes; cut the parameters into shards first, then count their bytes",
            sharded_bytes,
        ),
        Mistake(ALL_DIVIDED, _states(table=dict.fromkeys(STRATEGIES, SHARDED))),
        Mistake(
            ALL_DIVIDED,
            _states(table={**dict.fromkeys(STRATEGIES, SHARDED), "ddp": WHOLE}),
        ),
        Mistake(
            "nothing is sharded; that is DDP under every name",
            _states(table=dict.fromkeys(STRATEGIES, WHOLE)),
        ),
        Mistake(
            "the strategies are one step off: ZeRO-1 shards the optimizer's states, ZeRO-2 the "
            "gradients too, ZeRO-3 the parameters too",
            _states(
                table={
                    "ddp": WHOLE,
                    "zero1": WHOLE,
                    "zero2": SHARDING["zero1"],
                    "zero3": SHARDING["zero2"],
                }
            ),
        ),
        Mistake(
            "each strategy shards one state only; ZeRO-2 shards what ZeRO-1 does and the "
            "gradients, ZeRO-3 all three",
            _states(
                table={
                    **SHARDING,
                    "zero2": WHOLE._replace(gradients="shard"),
                    "zero3": WHOLE._replace(parameters="shard"),
                }
            ),
        ),
        Mistake(
            "the order is turned round: ZeRO-1 shards the optimizer's states, not the parameters",
            _states(
                table={
                    **SHARDING,
                    "zero1": WHOLE._replace(parameters="shard"),
                    "zero2": SHARDED._replace(optimizer="whole"),
                }
            ),
        ),
        Mistake(MASTER_MISSING, _states(counted=without_master)),
        Mistake(FP32_GRADIENTS, _states(counted=with_fp32_gradients)),
        Mistake(
            "these are numbers of parameters; multiply by the bytes that each takes",
            _states(counted=lambda precision: Precision("", 1, 1, 0, 1)),
        ),
        Mistake(
            "that is the sum over all ranks; wanted is one rank",
            summed_over_ranks,
        ),
    ],
)


# 1.5 Padding


def unit_lists() -> list[list[int]]:
    random = Random(15)
    drawn = [[random.randint(1, 5_000) for _ in range(random.randint(1, 6))] for _ in range(12)]
    return [[10, 7, 4], [8, 12], [1], [], [5, 5, 5, 5], *drawn]


PADDING = Task(
    name="1.5",
    function="padding",
    kind=number,
    truth=padding,
    cases=[(sizes, ranks) for sizes in unit_lists() for ranks in (4, 1, 3, 64)],
    mistakes=[
        Mistake(
            "that pads the sum; every unit is sharded by itself, so each is padded by itself",
            lambda sizes, ranks: -sum(sizes) % ranks,
        ),
        Mistake(
            "a unit that divides needs no padding, and `ranks - size % ranks` gives it `ranks`",
            lambda sizes, ranks: sum(ranks - size % ranks for size in sizes),
        ),
        Mistake(
            "that is what is left over; wanted is what is missing to the next multiple",
            lambda sizes, ranks: sum(size % ranks for size in sizes),
        ),
        Mistake(
            "that is the padded size; wanted are the elements that padding adds",
            lambda sizes, ranks: sum(sizes) + padding(sizes, ranks),
        ),
        Mistake(
            "that counts the units that need padding; wanted are the elements it adds",
            lambda sizes, ranks: sum(size % ranks != 0 for size in sizes),
        ),
        Mistake(
            "that is the padding of the last unit alone",
            lambda sizes, ranks: padding(sizes[-1:], ranks),
        ),
        Mistake(
            "that is the padding of the first unit alone; does your `return` stand in the loop?",
            lambda sizes, ranks: padding(sizes[:1], ranks),
        ),
        Mistake(
            "the sign is turned round: padding adds elements",
            lambda sizes, ranks: -padding(sizes, ranks),
        ),
        Mistake(
            "that is in bytes; wanted are elements",
            lambda sizes, ranks: 4 * padding(sizes, ranks),
        ),
    ],
)


# 1.6 What fits


def _fits(needed: Callable[..., float] = total) -> Callable[..., list[str]]:
    return lambda parameters, ranks, precision, usable: [
        strategy
        for strategy in STRATEGIES
        if needed(parameters, strategy, ranks, precision) <= usable
    ]


def cards() -> Iterator[tuple[int, int, Precision, int]]:
    """Common cards, and, at the edge, exactly what each strategy needs, in GB and in GiB."""
    yield 7_000_000_000, 8, MIXED, 40 * 10**9
    for count in (7_000_000_000, 1_300_000_000, 70_000_000_001):
        for ranks in (1, 8, 64):
            for policy in (MIXED, NO_MASTER, NARROW):
                yield count, ranks, policy, 24 * 10**9
                yield count, ranks, policy, 75 * 10**9
                for strategy in STRATEGIES:
                    needed = total(count, strategy, ranks, policy)
                    yield count, ranks, policy, needed
                    yield count, ranks, policy, needed - 1
                    yield count, ranks, policy, needed * 10**9 // 2**30


FITS = Task(
    name="1.6",
    function="fits",
    kind=names,
    truth=_fits(),
    cases=list(cards()),
    mistakes=[
        Mistake(
            "states that take exactly the usable bytes fit; compare with <=",
            _fits(lambda *case: total(*case) + 1),
        ),
        Mistake(
            "that holds GiB against GB; compare bytes with bytes",
            _fits(lambda *case: total(*case) / 2**30 * 1e9),
        ),
        Mistake(
            "that lets everything fit whose parameters do; gradients and optimizer states count",
            _fits(lambda *case: model_states(*case).parameters),
        ),
        Mistake(
            "the gradients are left out",
            _fits(lambda *case: total(*case) - model_states(*case).gradients),
        ),
        Mistake(
            ALL_DIVIDED,
            _fits(lambda count, strategy, *case: total(count, "zero3", *case)),
        ),
        Mistake(
            "that holds the whole model against the card and never shards it",
            _fits(lambda count, strategy, *case: total(count, "ddp", *case)),
        ),
        Mistake(
            "that sums over all ranks; the usable bytes are those of one card",
            _fits(lambda count, strategy, ranks, each: ranks * total(count, strategy, ranks, each)),
        ),
        Mistake(
            "that stops at the first strategy that fits; return all that do",
            lambda *case: _fits()(*case)[:1],
        ),
        Mistake(
            "that returns only the strategy that shards most; return all that fit",
            lambda *case: _fits()(*case)[-1:],
        ),
        Mistake(
            "those are the strategies that do not fit",
            lambda *case: [s for s in STRATEGIES if s not in _fits()(*case)],
        ),
        Mistake(
            MASTER_MISSING,
            lambda count, ranks, each, usable: _fits()(count, ranks, without_master(each), usable),
        ),
    ],
)


# 1.7 To the byte


def _predict(
    held: Callable = persistent_states,
    counters: Callable[[int, int], float] = lambda units, ranks: 0,
    counted: Callable[[Precision], Precision] = lambda precision: precision,
) -> Callable[..., dict[str, float]]:
    """What the engine holds. counters: bytes that a mistake adds for the step counters."""

    def formula(
        sizes: list[int], strategy: str, ranks: int, precision: Precision
    ) -> dict[str, float]:
        states = held(sizes, strategy, ranks, counted(precision)).as_dict()
        return {**states, "optimizer": states["optimizer"] + counters(len(sizes), ranks)}

    return formula


def unpadded(sizes: list[int], strategy: str, ranks: int, precision: Precision) -> ModelStates:
    return model_states(sum(sizes), strategy, ranks, precision)


def padded_where_sharded(
    sizes: list[int], strategy: str, ranks: int, precision: Precision
) -> dict[str, float]:
    """Wrong: a unit that is kept whole keeps no padding."""
    case = (sizes, strategy, ranks, precision)
    bare = _predict(unpadded, lambda units, ranks: STEP_COUNTER * units)(*case)
    kept = SHARDING[strategy]._asdict()
    return {s: (_predict()(*case) if kept[s] == "shard" else bare)[s] for s in kept}


PREDICT = Task(
    name="1.7",
    function="predict",
    kind=states,
    truth=_predict(),
    cases=[
        (sizes, strategy, ranks, policy)
        for sizes in ([10, 7, 4], [1], [8, 12], [101, 57, 57, 3])
        for policy in (PRECISIONS["fp32"], MIXED, NARROW)
        for ranks in (4, 1, 3)
        for strategy in ("zero3", "ddp", "zero1", "zero2")
    ],
    mistakes=[
        Mistake(
            "the step counters are missing: the optimizer keeps 4 bytes for each unit",
            _predict(counters=lambda units, ranks: -STEP_COUNTER * units),
        ),
        Mistake(
            "that counts one step counter; the optimizer keeps one for each unit",
            _predict(counters=lambda units, ranks: -STEP_COUNTER * (units - 1)),
        ),
        Mistake(
            "a step counter is one fp32 number: 4 bytes, not 8",
            _predict(counters=lambda units, ranks: STEP_COUNTER * units),
        ),
        Mistake(
            "a step counter is one fp32 number: 4 bytes, not 1",
            _predict(counters=lambda units, ranks: -(STEP_COUNTER - 1) * units),
        ),
        Mistake(
            "the step counters are not sharded; every rank keeps one for each unit",
            _predict(counters=lambda units, ranks: STEP_COUNTER * units * (1 / ranks - 1)),
        ),
        Mistake(
            "the padding is missing: each unit is padded by itself to a multiple of ranks",
            _predict(unpadded, lambda units, ranks: STEP_COUNTER * units),
        ),
        Mistake(
            "a unit that is kept whole keeps its padding too",
            padded_where_sharded,
        ),
        Mistake(
            "that is the textbook's count; add each unit's padding and the step counters",
            _predict(unpadded),
        ),
        Mistake(MASTER_MISSING, _predict(counted=without_master)),
        Mistake(FP32_GRADIENTS, _predict(counted=with_fp32_gradients)),
        Mistake(
            ALL_DIVIDED,
            lambda sizes, strategy, *case: _predict()(sizes, "zero3", *case),
        ),
    ],
)

TASKS = (STATE_BYTES, POLICIES_OF, WASTE, STATES_OF, PADDING, FITS, PREDICT)
