"""The least change that fits, against trying everything."""

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from zerolab.accounting import GPUS, MODELS, STRATEGIES, Batch, InputError, Keeping, Setup, peak
from zerolab.accounting.beside import beside
from zerolab.accounting.fit import MOST_DOUBLINGS, changes, fit
from zerolab.accounting.quantities import MOST_RANKS

pytestmark = pytest.mark.quick
SMALL = ("gpt2", "gpt2-xl", "llama-3.2-1b", "phi-2", "mixtral-8x7b")


def random_setup(random: Random) -> Setup:
    return Setup(
        shape=MODELS[random.choice(SMALL)],
        strategy=random.choice(STRATEGIES),
        ranks=random.choice((1, 2, 3, 7, 8, 64)),
        precision=random.choice(("fp32", "mixed", "no_master")),
        batch=Batch(
            size=random.choice((1, 2, 3, 8, 32)),
            sequence=random.choice((128, 1000, 4096, 32_768)),
            tensor_parallel=random.choice((1, 1, 2)),
        ),
        keeping=Keeping(
            recompute=random.choice(("none", "selective", "full")),
            loss=random.choice(("eager", "fused", "chunked")),
        ),
        micro_batches=random.choice((1, 1, 4)),
    )


def needed(setup: Setup) -> int:
    tensors = peak(setup).total
    return tensors + sum(allowance.high for allowance in beside(tensors, setup.devices))


def brute_force(setup: Setup, memory: int) -> Setup | None:
    """Fewest ranks, then recomputation as it is, then the larger micro-batch, then the stage."""
    lowest = STRATEGIES.index(setup.strategy)
    fitting = {}
    for stage, size, recompute in product(
        range(lowest, len(STRATEGIES)),
        {1, setup.batch.size},
        {"full", setup.keeping.recompute},
    ):
        for doublings in range(MOST_DOUBLINGS + 1):
            ranks = setup.ranks * 2**doublings
            tried = replace(
                setup,
                strategy=STRATEGIES[stage],
                ranks=ranks,
                batch=replace(setup.batch, size=size),
                keeping=replace(setup.keeping, recompute=recompute),
                micro_batches=setup.micro_batches * setup.batch.size // size,
            )
            if ranks <= MOST_RANKS and needed(tried) <= memory:
                changed = recompute != setup.keeping.recompute
                fitting[ranks, changed, -size, stage] = tried
                break
    return fitting[min(fitting)] if fitting else None


def test_the_change_equals_brute_force():
    random = Random(5)
    kinds = {"fits": 0, "changed": 0, "hopeless": 0}
    for _ in range(1000):
        setup, gpu = random_setup(random), GPUS[random.choice(("t4-16gb", "a100-40gb"))]
        memory = gpu.memory
        if random.random() < 0.2:  # at the byte where fitting begins, and one below
            memory = needed(setup) - random.randint(0, 1)
        found = fit(setup, memory)
        assert found.needed == needed(setup)
        assert found.fits == (found.needed <= memory)
        assert found.tight == (found.peak.total <= memory < found.needed)
        if found.fits:
            kinds["fits"] += 1
            assert found.change is None
            continue
        assert found.change == brute_force(setup, memory)
        kinds["changed" if found.change else "hopeless"] += 1
    assert min(kinds.values()) >= 50, kinds  # each kind of answer has to occur


def test_changes_begin_with_the_set_up_and_name_none_twice():
    setup = random_setup(Random(1))
    every = list(changes(setup))
    assert every[0] == setup
    assert len({(s.strategy, s.ranks, s.batch, s.keeping) for s in every}) == len(every)
    assert len(list(changes(replace(setup, ranks=MOST_RANKS)))) < len(every)


def test_more_sequences_than_a_step_can_have_are_refused():
    setup = replace(random_setup(Random(1)), micro_batches=10**6)
    setup = replace(setup, batch=replace(setup.batch, size=2))
    with pytest.raises(InputError, match="micro-batches"):
        list(changes(setup))
