from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import pytest

from phasewise.core.errors import ConfigError
from phasewise.experiments.lever_runs.handicap_proxy import Waves

LINGER_S = 0.02


class Visitors:
    """Requests that report when they are admitted, and leave on demand."""

    def __init__(self, waves: Waves) -> None:
        self._waves = waves
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._done: dict[str, asyncio.Event] = {}
        self.inside: set[str] = set()

    async def come(self, *names: str) -> None:
        for name in names:
            self._done[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._visit(name))
        await asyncio.sleep(0)

    async def end(self, *names: str) -> None:
        for name in names:
            self._done[name].set()
        await asyncio.gather(*(self._tasks[name] for name in names))
        await asyncio.sleep(0)

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        with suppress(asyncio.CancelledError):
            await self._tasks[name]
        await asyncio.sleep(0)

    async def _visit(self, name: str) -> None:
        async with self._waves.place():
            self.inside.add(name)
            try:
                await self._done[name].wait()
            finally:
                self.inside.remove(name)


async def test_a_full_wave_starts_at_once_and_lets_nobody_in_until_all_have_ended():
    visitors = Visitors(Waves(2, 60.0))
    await visitors.come("a")
    assert visitors.inside == set()
    await visitors.come("b", "c", "d", "e")
    await asyncio.sleep(0)
    assert visitors.inside == {"a", "b"}
    await visitors.end("a")
    assert visitors.inside == {"b"}
    await visitors.end("b")
    assert visitors.inside == {"c", "d"}
    await visitors.end("c", "d")
    # One is left, and it waits for a second.
    assert visitors.inside == set()
    await visitors.come("f")
    await asyncio.sleep(0)
    assert visitors.inside == {"e", "f"}
    await visitors.end("e", "f")


async def test_a_wave_that_is_not_full_starts_when_nobody_came_for_a_while():
    visitors = Visitors(Waves(4, LINGER_S))
    await visitors.come("a", "b")
    assert visitors.inside == set()
    await asyncio.sleep(3 * LINGER_S)
    assert visitors.inside == {"a", "b"}
    await visitors.end("a", "b")


async def test_those_who_come_back_after_a_wave_are_waited_for():
    visitors = Visitors(Waves(2, LINGER_S))
    await visitors.come("a", "b")
    await visitors.end("a")
    await visitors.come("a again")
    await asyncio.sleep(3 * LINGER_S)  # longer than anybody is waited for, but the wave is under way
    await visitors.end("b")
    assert visitors.inside == set()
    await visitors.come("b again")
    await asyncio.sleep(0)
    assert visitors.inside == {"a again", "b again"}
    await visitors.end("a again", "b again")


async def test_who_leaves_a_wave_is_not_replaced_and_does_not_end_it():
    visitors = Visitors(Waves(2, LINGER_S))
    await visitors.come("a", "b", "c")
    await visitors.give_up("a")
    await asyncio.sleep(3 * LINGER_S)
    assert visitors.inside == {"b"}
    await visitors.end("b")
    await asyncio.sleep(3 * LINGER_S)
    assert visitors.inside == {"c"}
    await visitors.end("c")


async def test_a_request_that_leaves_while_waiting_takes_no_slot():
    visitors = Visitors(Waves(2, 60.0))
    await visitors.come("a")
    await visitors.give_up("a")
    await visitors.come("b")
    assert visitors.inside == set()
    await visitors.come("c")
    await asyncio.sleep(0)
    assert visitors.inside == {"b", "c"}
    await visitors.end("b", "c")


async def test_who_is_let_in_and_leaves_in_the_same_moment_holds_nobody_up():
    visitors = Visitors(Waves(2, LINGER_S))
    await visitors.come("a")
    # The second one fills the wave, and the first is cancelled before it has noticed.
    coming = asyncio.create_task(visitors.come("b"))
    await asyncio.sleep(0)
    await visitors.give_up("a")
    await coming
    await visitors.end("b")
    await visitors.come("c", "d")
    await asyncio.sleep(0)
    assert visitors.inside == {"c", "d"}
    await visitors.end("c", "d")


async def test_however_they_come_and_go_everybody_is_served_and_waves_never_meet():
    rng = Random(7)  # noqa: S311 - a test to be repeated
    waves = Waves(3, 0.001)
    inside: set[int] = set()
    served: list[int] = []
    waiting_for_an_empty_house = True

    async def visit(number: int) -> None:
        nonlocal waiting_for_an_empty_house
        await asyncio.sleep(rng.random() * 0.05)
        async with waves.place():
            if not inside:
                waiting_for_an_empty_house = False
            assert not waiting_for_an_empty_house
            inside.add(number)
            assert len(inside) <= 3
            try:
                await asyncio.sleep(rng.random() * 0.005)
                served.append(number)
            finally:
                inside.remove(number)
                # Once somebody has left, nobody may come in before all have.
                waiting_for_an_empty_house = True

    tasks = [asyncio.create_task(visit(number)) for number in range(60)]
    leaving = rng.sample(range(60), 15)
    await asyncio.sleep(0.02)
    for number in leaving:
        tasks[number].cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [error for error in ended if isinstance(error, Exception)] == []
    assert set(served) >= set(range(60)) - set(leaving)
    assert inside == set()


@pytest.mark.parametrize(("size", "linger_s"), [(0, 0.1), (-1, 0.1), (2, -0.1)])
def test_sizes_that_are_none_are_rejected(size, linger_s):
    with pytest.raises(ConfigError, match="static batches"):
        Waves(size, linger_s)
