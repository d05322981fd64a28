"""Starts what a case measures: a fleet file in a scratch folder, `phasewise up`, a handicap in front of it.

Engines are measured at their own address; the gateway that comes with a fleet stays idle.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from phasewise.core.errors import ConfigError, FleetError
from phasewise.costs.roofline.model_config import optional_count
from phasewise.engines.known import USUAL
from phasewise.experiments.compare.arms import FleetArm, run_phasewise
from phasewise.experiments.lever_runs.engines import RunningEngine, Say
from phasewise.experiments.lever_runs.handicap_proxy import recomputing, static_batches
from phasewise.experiments.levers.catalogue import EngineSpec, Recompute, StaticBatches
from phasewise.fleet.config import FleetConfig, GatewayConfig, Levers, Pool, byte_size
from phasewise.fleet.config.gateway import Frozen
from phasewise.fleet.engines.model_config_file import read_model_config
from phasewise.fleet.engines.quantized_model import is_quantized, quantized_folder
from phasewise.fleet.local.placement import STEPS_PORT_OFFSET, Machine
from phasewise.fleet.local.port_check import WantedPort, reject_taken_ports
from phasewise.fleet.local.run_files import RunPaths, is_supervised, read_state

# --- The resources of every engine of a run: cores or GPUs, the KV cache, a context. All have the same size.

LONGEST_UNASKED_TOKENS = 8192
"""All traffic here fits, and a request this long fits the 1 GiB KV cache of an engine on a CPU."""


class EngineSize(Frozen):
    """The same for every engine; None leaves it to the engine."""

    cores: int | None = None
    gpus: int | None = None
    kv_cache_memory_bytes: str | None = None
    context_tokens: int | None = None

    def given_to(self, levers: Levers) -> Levers:
        """An engine's levers with the memory and the context, unless it sets them itself."""
        sizes = {"kv_cache_memory_bytes": self.kv_cache_memory_bytes, "max_model_len": self.context_tokens}
        unset = {name: size for name, size in sizes.items() if getattr(levers, name) is None}
        return levers.model_copy(update=unset)


def size_here(asked: EngineSize, machine: Machine, own_context_tokens: int | None) -> EngineSize:
    """The requested size, if the machine has it; the smallest one for what was not requested."""
    on_cpu = machine.device == "cpu"
    if (asked.gpus if on_cpu else asked.cores) is not None:
        wrong, right = ("--gpus", "--cores") if on_cpu else ("--cores", "--gpus")
        raise ConfigError(
            f"{wrong} is given, but the engine is built for {machine.device}", hint=f"use {right} instead"
        )
    count, there = (asked.cores, machine.cores) if on_cpu else (asked.gpus, machine.gpus)
    if count is not None and count > len(there):
        what = "cores" if on_cpu else "GPUs"
        raise ConfigError(
            f"{count} {what} were requested, but this machine has {len(there)}", hint=f"request fewer {what}"
        )
    if asked.kv_cache_memory_bytes is not None:
        byte_size(asked.kv_cache_memory_bytes)
    capped = None if own_context_tokens is None else min(own_context_tokens, LONGEST_UNASKED_TOKENS)
    return asked.model_copy(
        update={
            "cores" if on_cpu else "gpus": count or 1,
            "context_tokens": asked.context_tokens or capped,
        }
    )


def own_context_tokens(model: str, home: Path, environ: Mapping[str, str]) -> int | None:
    """The longest context in a model's configuration; None if that is not on this machine."""
    try:
        config = read_model_config(model, home, environ)
        inner = config.get("text_config")
        return optional_count(inner if isinstance(inner, dict) else config, "max_position_embeddings")
    except ConfigError:
        return None


FIRST_ENGINE_PORT = 8330
FIRST_GATEWAY_PORT = 8360
PORTS_TRIED = 20
LOOPBACK = "127.0.0.1"

GPU_SHARE = "0.42"


def shared_gpu_flags(device: str) -> tuple[str, ...]:
    """The flags with which two engines fit one GPU: each would reserve nearly all of it."""
    return () if device == "cpu" else USUAL.flags("gpu_memory_share", GPU_SHARE) or ()


ModelOf = Callable[[EngineSpec], Awaitable[str]]
"""The model to write into the fleet file; a quantized one may have to be made first."""


@dataclass(slots=True)
class FleetLauncher:
    """Launches engines, each as its own fleet, named after the `command` that needs them.

    Ports are used in turn and never twice.
    """

    home: Path
    scratch: Path
    model_of: ModelOf
    engine_flags: tuple[str, ...] = ()
    size: EngineSize = field(default_factory=EngineSize)
    command: str = "levers"
    _taken: set[int] = field(default_factory=set)

    @asynccontextmanager
    async def launch(self, spec: EngineSpec) -> AsyncIterator[RunningEngine]:
        """Start an engine, and stop it afterwards."""
        paths = RunPaths(self.home, f"{self.command}-{spec.name}")
        if is_supervised(paths):
            raise FleetError(
                f"fleet {paths.name} is running already",
                hint=f"let the other run end, or run `phasewise down --name {paths.name}`",
            )
        file = self._write_fleet(spec, paths.name, await self.model_of(spec))
        async with FleetArm(file, paths.name).serving():
            state = read_state(paths)
            if state is None:
                raise FleetError(f"fleet {paths.name} was stopped from outside", hint="run the command again")
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
            engine_keys=False,
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
                reject_taken_ports(wanted)
            except FleetError:
                continue
            self._taken.add(port)
            return port
        raise FleetError(
            f"none of the ports {first} to {first + PORTS_TRIED - 1} is free", hint="stop the processes there"
        )


def model_or_quantized(model: str, home: Path, say: Say) -> ModelOf:
    """The model itself, or its quantized form, which is made if it is missing."""

    async def model_of(spec: EngineSpec) -> str:
        if spec.scheme is None:
            return model
        if not is_quantized(model, spec.scheme, home):
            say(f"quantizing {model} to {spec.scheme}")
            # As a separate command, which Ctrl-C can end.
            await run_phasewise("model", "quantize", model, "--scheme", spec.scheme)
        return str(quantized_folder(model, spec.scheme, home))

    return model_of


@asynccontextmanager
async def handicapped(spec: EngineSpec, url: str) -> AsyncIterator[str]:
    """The address at which the engine is measured: its own, or that of its handicap."""
    match spec.handicap:
        case Recompute():
            async with recomputing(url) as held_back:
                yield held_back
        case StaticBatches(size, linger_s):
            async with static_batches(url, size, linger_s) as held_back:
                yield held_back
        case None:
            yield url
