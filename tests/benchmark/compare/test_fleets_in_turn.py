"""Fleets take turns: one at a time, kept while nobody asks for the other, and stopped in the end."""

from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from phasewise.benchmark.compare.fleets_in_turn import fleets_in_turn
from phasewise.core.errors import FleetError

A, B = Path("a.yaml"), Path("b.yaml")


@dataclass
class Machine:
    """Notes what happens on it, in order."""

    events: list
    broken: Path | None = None

    def make(self, path, name):
        return Arm(self, path, name)

    async def warm_up(self, url):
        self.events.append(f"warm {url}")


@dataclass
class Arm:
    machine: Machine
    path: Path
    name: str

    @asynccontextmanager
    async def serving(self):
        if self.path == self.machine.broken:
            raise FleetError("it does not start")
        self.machine.events.append(f"up {self.path}")
        try:
            yield f"http://{self.path}"
        finally:
            self.machine.events.append(f"down {self.path}")


async def play(machine, *paths, breaks=False):
    async with fleets_in_turn(machine.make, machine.warm_up) as fleets:
        for path in paths:
            async with fleets.arm(path, path.stem).serving() as url:
                if breaks:
                    raise ZeroDivisionError
                machine.events.append(f"use {url}")


async def test_a_fleet_is_kept_until_the_other_is_asked_for_and_warmed_once():
    machine = Machine([])
    await play(machine, A, A, B, B, A)
    ups = [event for event in machine.events if event.startswith(("up", "down"))]
    assert ups == ["up a.yaml", "down a.yaml", "up b.yaml", "down b.yaml", "up a.yaml", "down a.yaml"]
    assert machine.events[:4] == ["up a.yaml", "warm http://a.yaml", "use http://a.yaml", "use http://a.yaml"]
    assert sum(event.startswith("warm") for event in machine.events) == 3


async def test_one_that_does_not_start_leaves_nothing_running():
    machine = Machine([], broken=B)
    with pytest.raises(FleetError):
        await play(machine, A, B)
    assert machine.events[-1] == "down a.yaml"


async def test_whatever_breaks_a_block_the_fleet_is_stopped():
    machine = Machine([])
    with pytest.raises(ZeroDivisionError):
        await play(machine, A, A, breaks=True)
    assert machine.events == ["up a.yaml", "warm http://a.yaml", "down a.yaml"]
