"""The laws of the accounting on 10,000 random set-ups, the same ones every time.

Other tests state each law for what it is about, with hypothesis; this one walks far and fast.
"""

from dataclasses import replace
from itertools import pairwise
from random import Random

from zerolab.accounting import PRECISIONS, SHARDING, STRATEGIES, padding, persistent_states
from zerolab.accounting.activations import Batch, Keeping, activations
from zerolab.accounting.memory import STEP_COUNTER
from zerolab.accounting.models import Shape
from zerolab.accounting.moments import Setup, moments
from zerolab.accounting.tensor_parallel import unit_sizes
from zerolab.accounting.traffic import setup_traffic

SETUPS = 10_000
STATES = ("parameters", "gradients", "optimizer")


def random_shape(random):
    head_size, kv_heads = random.choice((8, 64, 80, 128)), random.choice((1, 2, 4, 8))
    heads = kv_heads * random.choice((1, 2, 4, 8))
    return Shape(
        layers=random.randint(1, 128),
        hidden=heads * head_size,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        feed_forward=random.randint(1, 60_000),
        vocabulary=random.randint(1, 300_000),
        positions=random.choice((0, 0, 2048)),
        gated=random.random() < 0.5,
        norm=random.choice(("rms", "layer")),
        tied=random.random() < 0.5,
    )


def random_batch(random):
    return Batch(
        size=random.randint(1, 64),
        sequence=random.randint(1, 131_072),
        element=random.choice((2, 4)),
        tensor_parallel=random.choice((1, 2, 3, 4, 8, 16)),
        sequence_parallel=random.random() < 0.5,
    )


def random_keeping(random):
    return Keeping(
        attention=random.choice(("flash", "plain", "eager")),
        norm=random.choice(("fused", "eager")),
        activation=random.choice(("fused", "eager")),
        loss=random.choice(("eager", "fused", "chunked")),
        recompute=random.choice(("none", "selective", "full")),
        repeated_kv=random.random() < 0.5,
        dropout=random.random() < 0.5,
    )


def at_most(lines, others):
    return all(lines[name] <= others[name] for name in others)


def test_laws_of_states_on_random_set_ups():
    random = Random(1910_02054)
    for _ in range(SETUPS):
        sizes = random_shape(random).unit_sizes
        ranks, more = sorted(random.randint(1, 4096) for _ in range(2))
        policy = PRECISIONS[random.choice(sorted(PRECISIONS))]
        rows = {s: persistent_states(sizes, s, ranks, policy) for s in STRATEGIES}
        elements = sum(sizes) + padding(sizes, ranks)
        bytes_each = (policy.parameter, policy.gradient, policy.optimizer)
        for strategy, kept in rows.items():
            for state, keeping, each in zip(STATES, SHARDING[strategy], bytes_each, strict=True):
                held = getattr(kept, state) - (state == "optimizer") * STEP_COUNTER * len(sizes)
                copies = ranks if keeping == "whole" else 1
                assert held * ranks == copies * elements * each  # shards sum to the whole
        for lower, higher in pairwise(rows.values()):
            assert at_most(higher.as_dict(), lower.as_dict())  # a higher stage never costs more
        few, many = (persistent_states(sizes, "zero3", n, policy).as_dict() for n in (ranks, more))
        rounding = len(sizes) * policy.total  # one element of a unit, where it does not divide
        assert at_most(many, {state: size + rounding for state, size in few.items()})
        larger = [size + random.randint(0, 10**6) for size in sizes]
        grown = persistent_states(larger, "zero2", ranks, policy).as_dict()
        assert at_most(rows["zero2"].as_dict(), grown)


def test_laws_of_activations_on_random_set_ups():
    random = Random(2205_05198)
    for _ in range(SETUPS):
        shape, batch, keeping = random_shape(random), random_batch(random), random_keeping(random)
        base = activations(shape, batch, keeping)
        wider = replace(batch, tensor_parallel=2 * batch.tensor_parallel)
        assert at_most(activations(shape, wider, keeping), base)
        sequence_parallel = replace(batch, sequence_parallel=True)
        assert at_most(activations(shape, sequence_parallel, keeping), base)
        full = replace(keeping, recompute="full")
        assert at_most(activations(shape, batch, full), base)
        longer = replace(batch, sequence=batch.sequence + random.randint(1, 1000))
        assert at_most(base, activations(shape, longer, keeping))
        deeper = replace(shape, layers=shape.layers + 1)
        assert at_most(base, activations(deeper, batch, keeping))
        held = sum(unit_sizes(shape, wider.tensor_parallel))
        assert held <= sum(unit_sizes(shape, batch.tensor_parallel))


def random_setup(random):
    return Setup(
        shape=random_shape(random),
        strategy=random.choice(STRATEGIES),
        ranks=random.randint(1, 4096),
        precision=random.choice(sorted(PRECISIONS)),
        batch=random_batch(random),
        keeping=random_keeping(random),
        micro_batches=random.choice((1, 1, 2, 5)),
        prefetch=random.randint(0, 3),
    )


def grown(setup, random):
    """The same run with one size larger."""
    size = random.choice(("layers", "hidden", "feed_forward", "vocabulary", "size", "sequence"))
    more = 1 if size == "layers" else random.randint(1, 1000)
    if hasattr(setup.shape, size):
        return replace(
            setup, shape=replace(setup.shape, **{size: getattr(setup.shape, size) + more})
        )
    return replace(setup, batch=replace(setup.batch, **{size: getattr(setup.batch, size) + more}))


BLOCK = "backward of block"
ROUNDING = 64  # bytes: what is recomputed is a difference of sums that are rounded up line by line


def account(setup):
    """Moment -> part -> bytes, checked to add up; of the worst block, which may be another one in
    another set-up, only the total."""
    found = {}
    for moment in moments(setup):
        assert moment.total == sum(moment.parts.values())
        assert all(isinstance(size, int) and size >= 0 for size in moment.parts.values())
        inside = moment.name.startswith(BLOCK)
        found[BLOCK if inside else moment.name] = (
            {"total": moment.total} if inside else moment.parts
        )
    return found


def never_raised(after, before, but=(), rounding=0):
    return all(
        size <= before[moment].get(part, 0) + rounding
        for moment, parts in after.items()
        for part, size in parts.items()
        if part not in but
    )


def test_laws_of_moments_on_random_set_ups():
    random = Random(1909_08053)
    for _ in range(SETUPS):
        setup = random_setup(random)
        batch, keeping = setup.batch, setup.keeping
        base = account(setup)
        largest = max(moments(setup), key=lambda moment: moment.total)
        assert largest.total == max(sum(parts.values()) for parts in base.values())

        # A higher stage gathers and reduces, and raises nothing else; the worst block may have more
        # of these two than it saves.
        stages = STRATEGIES[STRATEGIES.index(setup.strategy) :]
        higher = account(replace(setup, strategy=random.choice(stages)))
        del higher[BLOCK]
        assert never_raised(higher, base, but=("gathered", "prefetched", "communication buffers"))

        wider = replace(batch, tensor_parallel=2 * batch.tensor_parallel)
        shared = replace(batch, sequence_parallel=True)
        for other in (wider, shared):
            assert never_raised(account(replace(setup, batch=other)), base, rounding=ROUNDING)

        full = account(replace(setup, keeping=replace(keeping, recompute="full")))
        assert never_raised(full, base)

        assert never_raised(base, account(grown(setup, random)), rounding=ROUNDING)


def test_laws_of_traffic_on_random_set_ups():
    random = Random(2104_04473)
    for _ in range(SETUPS):
        setup = random_setup(random)
        sent = setup_traffic(setup)
        whole = sum(unit_sizes(setup.shape, setup.batch.tensor_parallel))
        policy = PRECISIONS[setup.precision]
        # Every strategy sends at least each gradient once, and all but DDP each parameter; padding
        # only adds.
        least = whole * (setup.ranks - 1) // setup.ranks * min(policy.gradient, policy.parameter)
        assert sent.data.bytes >= 2 * least
        assert sent.data.bytes <= 3 * setup.micro_batches * 4 * (whole + padded(setup))
        wider = replace(
            setup, batch=replace(setup.batch, tensor_parallel=2 * setup.batch.tensor_parallel)
        )
        after = setup_traffic(wider)
        assert after.data.bytes <= sent.data.bytes
        assert after.data.messages == sent.data.messages
        assert after.tensor.bytes >= sent.tensor.bytes
        assert setup_traffic(replace(setup, ranks=1)).data.bytes == 0
        once = setup_traffic(replace(setup, micro_batches=1))
        assert once.data.bytes <= sent.data.bytes
        assert sent.tensor.messages == setup.micro_batches * once.tensor.messages
        more = setup_traffic(grown(setup, random))
        assert more.data.bytes >= sent.data.bytes
        assert more.tensor.bytes >= sent.tensor.bytes


def padded(setup):
    return padding(unit_sizes(setup.shape, setup.batch.tensor_parallel), setup.ranks)
