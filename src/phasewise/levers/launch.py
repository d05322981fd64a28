"""Puts up what a case measures: a fleet file in a scratch folder, `phasewise up`, a restraint before it.

Engines are measured at their own address; the gateway that comes with a fleet stays idle.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from phasewise.compare.arms import FleetArm, run_phasewise
from phasewise.config import FleetConfig, GatewayConfig, Pool
from phasewise.errors import FleetError
from phasewise.fleet.placement import STEPS_PORT_OFFSET
from phasewise.fleet.port_check import WantedPort, refuse_taken_ports
from phasewise.fleet.quantised_model import is_quantised, quantised_folder
from phasewise.fleet.run_file import is_supervised, read_state
from phasewise.fleet.run_paths import RunPaths
from phasewise.levers.catalogue import EngineSpec, Recompute, StaticBatches
from phasewise.levers.engine_size import EngineSize
from phasewise.levers.engines import RunningEngine, Say
from phasewise.levers.restraints import recomputing, static_batches

FIRST_ENGINE_PORT = 8330
FIRST_GATEWAY_PORT = 8360
PORTS_TRIED = 20
LOOPBACK = "127.0.0.1"

ModelOf = Callable[[EngineSpec], Awaitable[str]]
"""What to write into the fleet file as the model; a quantised one may have to be made first."""


@dataclass(slots=True)
class FleetLauncher:
    """Launches engines, each as a fleet of its own. Ports are taken in turn and never twice."""

    home: Path
    scratch: Path
    model_of: ModelOf
    engine_flags: tuple[str, ...] = ()
    size: EngineSize = field(default_factory=EngineSize)
    _taken: set[int] = field(default_factory=set)

    @asynccontextmanager
    async def launch(self, spec: EngineSpec) -> AsyncIterator[RunningEngine]:
        """Start an engine, and stop it afterwards."""
        paths = RunPaths(self.home, f"levers-{spec.name}")
        if is_supervised(paths):
            raise FleetError(
                f"fleet {paths.name} is running already",
                hint=f"let the other `phasewise levers` end, or run `phasewise down --name {paths.name}`",
            )
        file = self._write_fleet(spec, paths.name, await self.model_of(spec))
        async with FleetArm(file, paths.name).serving():
            state = read_state(paths)
            if state is None:
                raise FleetError(f"fleet {paths.name} was stopped by somebody else", hint="run it again")
            yield RunningEngine(spec, state.engines[0].url, state.engines[0].log)

    def _write_fleet(self, spec: EngineSpec, name: str, model: str) -> Path:
        pool = Pool(
            cores=self.size.cores,
            gpus=self.size.gpus,
            levers=self.size.given_to(spec.levers),
            engine_flags=self.engine_flags,
        )
        fleet = FleetConfig(
            name=name,
            model=model,
            first_engine_port=self._free_port(FIRST_ENGINE_PORT, STEPS_PORT_OFFSET),
            pools=(pool,),
            gateway=GatewayConfig(port=self._free_port(FIRST_GATEWAY_PORT)),
        )
        # JSON is YAML.
        file = self.scratch / f"{name}.yaml"
        file.write_text(fleet.model_dump_json(exclude_none=True, indent=1))
        return file

    def _free_port(self, first: int, *beside: int) -> int:
        for port in range(first, first + PORTS_TRIED):
            if port in self._taken:
                continue
            wanted = [WantedPort(port + offset, LOOPBACK, "an engine", "") for offset in (0, *beside)]
            try:
                refuse_taken_ports(wanted)
            except FleetError:
                continue
            self._taken.add(port)
            return port
        raise FleetError(
            f"none of the ports {first} to {first + PORTS_TRIED - 1} is free", hint="stop what holds them"
        )


def model_or_quantised(model: str, home: Path, say: Say) -> ModelOf:
    """The model as it is, or its quantised form, which is made if it is not there."""

    async def model_of(spec: EngineSpec) -> str:
        if spec.scheme is None:
            return model
        if not is_quantised(model, spec.scheme, home):
            say(f"quantising {model} to {spec.scheme}")
            # As a command of its own, which a Ctrl-C can end.
            await run_phasewise("model", "quantise", model, "--scheme", spec.scheme)
        return str(quantised_folder(model, spec.scheme, home))

    return model_of


@asynccontextmanager
async def restrained(spec: EngineSpec, url: str) -> AsyncIterator[str]:
    """The address at which the engine is measured: its own, or that of what holds it back."""
    match spec.restraint:
        case Recompute():
            async with recomputing(url) as held_back:
                yield held_back
        case StaticBatches(size, linger_s):
            async with static_batches(url, size, linger_s) as held_back:
                yield held_back
        case None:
            yield url
