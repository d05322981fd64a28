from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from phasewise.core.errors import EngineStartFailed, FleetError
from phasewise.experiments.lever_runs.engines import RunningEngine, running_engines
from phasewise.experiments.levers.catalogue import EngineSpec, Recompute

BASE, ONE, TWO, THREE = (EngineSpec(name, f"engine {name}") for name in ("base", "one", "two", "three"))


class Launches:
    """Stands in for starting engines, and remembers what was up when."""

    def __init__(self, broken=(), slow=(), stuck=()):
        self.up, self.events, self.broken, self.slow, self.stuck = [], [], broken, slow, stuck

    @asynccontextmanager
    async def launch(self, spec):
        self.events.append(f"+{spec.name}")
        await asyncio.sleep(0.02 if spec.name in self.slow else 0)
        if spec.name in self.broken:
            raise EngineStartFailed("the model does not fit", hint="take a smaller one")
        self.up.append(spec.name)
        try:
            yield RunningEngine(spec, f"http://{spec.name}")
        finally:
            await asyncio.sleep(0)
            self.up.remove(spec.name)
            self.events.append(f"-{spec.name}")
            if spec.name in self.stuck:
                raise FleetError(f"{spec.name} was stopped by force", hint="look into its log")


def engines(launches, most=3, **options):
    return running_engines(launches.launch, most, lambda words: None, **options)


async def test_an_engine_is_started_once_and_those_needed_next_start_beside_it():
    launches = Launches()
    async with engines(launches) as running:
        await running.need((BASE, ONE), next_specs=(BASE, TWO, BASE, THREE))
        assert launches.up == ["base", "one", "two"]
        await running.need((BASE, TWO))
        assert running.engine(TWO).url == "http://two"
        assert launches.events == ["+base", "+one", "+two"]
    assert launches.up == []


async def test_no_more_run_at_once_than_allowed_and_the_first_one_stays():
    launches = Launches()
    async with engines(launches, most=2) as running:
        for spec in (ONE, TWO, THREE):
            await running.need((BASE, spec), next_specs=(THREE,))
            assert len(launches.up) <= 2
            assert {"base", spec.name} <= {*launches.up}
    assert launches.events.count("+base") == 1


async def test_the_shared_engine_stays_though_another_is_ready_before_it():
    launches = Launches(slow=("base",))
    async with engines(launches, most=2) as running:
        await running.need((BASE,), next_specs=(BASE, ONE, TWO))
        assert launches.up == ["one", "base"]
        await running.need((TWO, BASE), next_specs=(ONE,))
        assert {*launches.up} == {"base", "two"}
        assert running.engine(BASE).url == "http://base"
    assert launches.events.count("+base") == 1


async def test_an_engine_that_is_wanted_now_is_not_stopped_for_another():
    launches = Launches()
    async with engines(launches) as running:
        await running.need((BASE, ONE, TWO))
        await running.need((TWO, THREE), next_specs=(ONE,))
        assert {*launches.up} == {"base", "two", "three"}


async def test_engines_that_share_a_gpu_start_one_after_the_other():
    launches = Launches(slow=("base",))
    async with engines(launches, one_by_one=True) as running:
        await running.need((BASE, ONE))
        assert launches.up == ["base", "one"]
    side_by_side = Launches(slow=("base",))
    async with engines(side_by_side) as running:
        await running.need((BASE, ONE))
        assert side_by_side.up == ["one", "base"]


async def test_an_engine_that_starts_at_the_second_attempt_is_there():
    launches = Launches(broken=("one",))
    async with engines(launches) as running:
        await running.need((BASE,), next_specs=(ONE,))
        launches.broken = ()
        await running.need((BASE, ONE))
        assert running.engine(ONE).url == "http://one"


async def test_an_engine_that_does_not_stop_leaves_no_other_behind():
    launches = Launches(stuck=("one", "two"))
    with pytest.raises(FleetError, match="two was stopped by force"):
        async with engines(launches) as running:
            await running.need((BASE, ONE, TWO))
    assert launches.up == []
    assert launches.events[-3:] == ["-two", "-one", "-base"]


async def test_a_cancel_while_engines_stop_waits_until_all_are_stopped():
    launches, stopping = Launches(stuck=("one",)), asyncio.Event()

    @asynccontextmanager
    async def launch(spec):
        async with launches.launch(spec) as engine:
            try:
                yield engine
            finally:
                stopping.set()
                await asyncio.sleep(0.01 if spec.name == "two" else 0)

    async def run():
        async with running_engines(launch, 3, lambda words: None) as running:
            await running.need((BASE, ONE, TWO))

    task = asyncio.create_task(run())
    await stopping.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert launches.up == []


async def test_an_engine_that_does_not_start_fails_only_where_it_is_needed():
    launches = Launches(broken=("one",))
    async with engines(launches) as running:
        with pytest.raises(EngineStartFailed, match="does not fit"):
            await running.need((BASE, ONE))
        await running.need((BASE, TWO))
        assert {*launches.up} == {"base", "two"}


async def test_a_handicap_needs_no_engine_of_its_own():
    launches = Launches()
    async with engines(launches) as running:
        await running.need((EngineSpec("base", "engine base", handicap=Recompute()), BASE))
    assert launches.events == ["+base", "-base"]


async def test_all_engines_are_stopped_when_the_run_is_cancelled():
    launches, both_up = Launches(), asyncio.Event()

    async def run():
        async with engines(launches) as running:
            await running.need((BASE, ONE))
            both_up.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(run())
    await both_up.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert launches.up == []
