from __future__ import annotations

import json
import socket
from contextlib import asynccontextmanager, suppress

import pytest

from phasewise.core.errors import FleetError
from phasewise.experiments.lever_runs import launch
from phasewise.experiments.lever_runs.launch import (
    FIRST_ENGINE_PORT,
    EngineSize,
    FleetLauncher,
    handicapped,
    model_or_quantized,
)
from phasewise.experiments.levers.catalogue import EngineSpec, Recompute, StaticBatches
from phasewise.fleet.config import Levers, load_fleet
from phasewise.fleet.engines.quantized_model import quantized_folder
from phasewise.fleet.local.run_files import RunPaths, only_supervisor

SPEC = EngineSpec("cache", "cache on", Levers(prefix_cache=True, max_num_batched_tokens=512))


async def model_of(spec):
    return "smollm2-135m"


class StandIn:
    """A fleet that is said to run as soon as it is asked for."""

    def __init__(self, home):
        self.home, self.files = home, []

    def __call__(self, path, name):
        self.path, self.name = path, name
        return self

    @asynccontextmanager
    async def serving(self):
        fleet = load_fleet(self.path)
        self.files.append(fleet)
        member = {"name": "main-0", "url": f"http://127.0.0.1:{fleet.first_engine_port}", "log": "/tmp/e.log"}
        state = {
            "name": fleet.name, "model": fleet.model, "boot_id": "b", "scratch": "/tmp",
            "supervisor": {"pid": 1, "start_ticks": 1}, "started_unix_s": 0.0,
            "engines": [member], "gateway": {**member, "name": "gateway", "url": "http://127.0.0.1:1"},
        }  # fmt: skip
        paths = RunPaths(self.home, self.name)
        paths.state.parent.mkdir(parents=True, exist_ok=True)
        paths.state.write_text(json.dumps(state))
        yield "http://127.0.0.1:1"


@pytest.fixture
def fleets(tmp_path, monkeypatch):
    stand_in = StandIn(tmp_path)
    monkeypatch.setattr(launch, "FleetArm", stand_in)
    return stand_in


async def test_the_fleet_file_holds_the_levers_and_the_engine_is_measured_at_its_own_address(
    fleets, tmp_path
):
    launcher = FleetLauncher(tmp_path, tmp_path, model_of, ("--flag",))
    async with launcher.launch(SPEC) as engine:
        (fleet,) = fleets.files
        assert engine.url == f"http://127.0.0.1:{fleet.first_engine_port}"
    assert fleet.name == "levers-cache"
    assert fleet.pools[0].levers == SPEC.levers
    assert fleet.pools[0].engine_flags == ("--flag",)


async def test_every_engine_has_the_size_of_the_run(fleets, tmp_path):
    size = EngineSize(cores=2, kv_cache_memory_bytes="2GiB", context_tokens=4096)
    async with FleetLauncher(tmp_path, tmp_path, model_of, size=size).launch(SPEC):
        (pool,) = fleets.files[0].pools
    assert pool.cores == 2
    assert pool.levers == SPEC.levers.model_copy(
        update={"kv_cache_memory_bytes": "2GiB", "max_model_len": 4096}
    )


async def test_a_quantized_form_is_made_once_and_by_a_command_that_can_be_ended(tmp_path, monkeypatch):
    asked, said, made = [], [], []

    async def run_phasewise(*arguments):
        asked.append(arguments)
        made.append("w8a8")

    monkeypatch.setattr(launch, "run_phasewise", run_phasewise)
    monkeypatch.setattr(launch, "is_quantized", lambda model, scheme, home: scheme in made)
    model_of = model_or_quantized("smollm2-135m", tmp_path, said.append)
    assert await model_of(SPEC) == "smollm2-135m"
    for _ in range(2):
        folder = await model_of(EngineSpec("w8a8", "8 bits", scheme="w8a8"))
    assert folder == str(quantized_folder("smollm2-135m", "w8a8", tmp_path))
    assert asked == [("model", "quantize", "smollm2-135m", "--scheme", "w8a8")]
    assert said == ["quantizing smollm2-135m to w8a8"]


async def test_two_engines_have_ports_of_their_own_and_taken_ones_are_passed_over(fleets, tmp_path):
    launcher = FleetLauncher(tmp_path, tmp_path, model_of)
    with socket.socket() as taken:
        # A port that somebody left a moment ago can be taken only so.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # then somebody else has it, which is as good
            taken.bind(("127.0.0.1", FIRST_ENGINE_PORT))
            taken.listen()
        async with launcher.launch(SPEC), launcher.launch(EngineSpec("other", "other")):
            ports = [fleet.first_engine_port for fleet in fleets.files]
    assert FIRST_ENGINE_PORT not in ports
    assert len({*ports, *(fleet.gateway.port for fleet in fleets.files)}) == 4


async def test_a_fleet_of_another_run_is_left_alone(fleets, tmp_path):
    other_run = only_supervisor(RunPaths(tmp_path, "levers-cache"))
    with other_run, pytest.raises(FleetError, match="running already") as rejected:
        async with FleetLauncher(tmp_path, tmp_path, model_of).launch(SPEC):
            pytest.fail("it must not start")
    assert "phasewise down --name levers-cache" in rejected.value.hint
    assert fleets.files == []


async def test_a_handicap_is_in_front_of_the_engine(monkeypatch):
    asked = []

    def stand_in(name):
        @asynccontextmanager
        async def serve(url, *settings):
            asked.append((name, url, *settings))
            yield f"http://{name}"

        return serve

    monkeypatch.setattr(launch, "recomputing", stand_in("recomputing"))
    monkeypatch.setattr(launch, "static_batches", stand_in("static"))
    for handicap in (None, Recompute(), StaticBatches(8, 0.1)):
        async with handicapped(EngineSpec("base", "base", handicap=handicap), "http://e") as url:
            asked.append(url)
    assert asked == [
        "http://e",
        ("recomputing", "http://e"), "http://recomputing",
        ("static", "http://e", 8, 0.1), "http://static",
    ]  # fmt: skip
