from __future__ import annotations

import asyncio
import subprocess
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from phasewise.benchmark.compare import arms
from phasewise.benchmark.compare.arms import FleetArm, UrlArm, arms_of, fleets_in_turn
from phasewise.core.errors import FleetError


async def test_an_address_is_measured_as_it_is():
    arm, same = arms_of("http://127.0.0.1:8000/v1/", "127.0.0.1:8000", print)
    assert arm == same == UrlArm("http://127.0.0.1:8000")
    async with arm.serving() as url:
        assert url == arm.name == "http://127.0.0.1:8000"


async def test_a_fleet_is_started_for_a_block_and_stopped_after_it(monkeypatch):
    asked: list[tuple[str, ...]] = []

    async def phasewise(*arguments: str) -> bytes:
        asked.append(arguments)
        return b'{"gateway": {"url": "http://127.0.0.1:8080"}}'

    monkeypatch.setattr(arms, "run_phasewise", phasewise)
    said: list[str] = []
    _, arm = arms_of("fleets/other.yaml", "fleets/small.yaml", said.append)
    assert arm == FleetArm(Path("fleets/small.yaml"), "compare-b")

    async def broken_block() -> None:
        async with arm.serving() as url:
            assert url == "http://127.0.0.1:8080"
            raise RuntimeError("in the middle of a block")

    with pytest.raises(RuntimeError, match="middle of a block"):
        await broken_block()
    assert said == ["starting small.yaml"]
    up, down = asked
    assert up == ("up", "fleets/small.yaml", "--detach", "--json", "--name", "compare-b")
    assert down == ("down", "compare-b")


async def test_a_fleet_that_does_not_start_says_why_and_how_to_try_it_alone(tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("pools: 7\n")
    with pytest.raises(FleetError, match="pools") as failure:
        async with FleetArm(broken, "compare-a").serving():
            pytest.fail("it cannot have started")
    assert f"phasewise up {broken}" in failure.value.hint


@pytest.mark.parametrize("loop_runs", [False, True])
async def test_a_command_of_ours_is_interrupted_when_it_is_no_longer_wanted(tmp_path, monkeypatch, loop_runs):
    """Also while it starts: without a look in between, asyncio has not yet connected its pipes."""
    started, interrupted, command = (tmp_path / name for name in ("started", "interrupted", "command"))
    command.write_text(
        f"#!/bin/sh\ntrap 'touch {interrupted}; exit 1' INT\ntouch {started}\nwhile :; do sleep 0.02; done\n"
    )
    command.chmod(0o755)
    monkeypatch.setattr(arms.sys, "executable", str(command))
    forked, real_popen = asyncio.Event(), subprocess.Popen

    def popen(*args, **kwargs):
        forked.set()
        return real_popen(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", popen)
    task = asyncio.create_task(arms.run_phasewise("model", "fetch"))
    await forked.wait()
    while not started.exists():
        await asyncio.sleep(0.01) if loop_runs else time.sleep(0.01)  # noqa: ASYNC251 - the loop stands still
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert interrupted.exists()


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
