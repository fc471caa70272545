"""What every test may use."""

import signal
from collections.abc import Callable, Iterator

import pytest

from zerolab import World

# A shell starts background jobs, and so all their children, with interrupts ignored: tests that
# interrupt somebody would wait for good.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def world_of() -> Iterator[Callable[[int], World]]:
    """`world_of(n)`: a warm World of n ranks with one thread each, the same one all session."""
    worlds: dict[int, World] = {}

    def make(ranks: int) -> World:
        if ranks not in worlds:
            worlds[ranks] = World(ranks, device="cpu", threads=1)
        return worlds[ranks]

    yield make
    for world in worlds.values():
        world.close()
