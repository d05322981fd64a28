"""Puts together the command of one engine from its pool, its place and its environment. Pure.

What each lever sets stands in levers.py; starting the command is process.py's.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.config import HandOverConfig, Pool
from phasewise.errors import ConfigError
from phasewise.fleet.engine_env import EngineEnvironment
from phasewise.fleet.kv_connector import connector_arguments, connector_environment
from phasewise.fleet.levers import lever_arguments
from phasewise.fleet.placement import Place
from phasewise.fleet.role_presets import levers_of

LOOPBACK = "127.0.0.1"
DEFAULT_CPU_KV_BYTES = 2**30
DEFAULT_LEASE_S = HandOverConfig().lease_s
# Where an engine listens and what it is called is fixed by its place; the gateway relies on it.
RESERVED_FLAGS = frozenset(
    {"--host", "--port", "--uds", "--model", "--served-model-name", "--api-key", "--config"}
)
QUIET_ENDPOINTS = "/health,/metrics,/load"


@dataclass(frozen=True)
class ServedModel:
    """The name clients use and what the engine loads for it: a folder or a Hugging Face id."""

    name: str
    source: str
    is_folder: bool


@dataclass(frozen=True)
class EngineCommand:
    """What to run for one engine: `env` is added to our own, `affinity` empty means any core."""

    argv: tuple[str, ...]
    env: dict[str, str]
    affinity: tuple[int, ...]


def engine_command(
    place: Place, engine: EngineEnvironment, model: ServedModel, lease_s: int = DEFAULT_LEASE_S
) -> EngineCommand:
    """The command for the engine at `place`; `lease_s` is how long it keeps KV that nobody has fetched."""
    _refuse_reserved_flags(place.pool)
    on_cpu = engine.device == "cpu"
    recorder = engine.plugin_version is not None
    argv = [
        str(engine.python),
        *("-m", "vllm.entrypoints.cli.main", "serve", model.source),
        *("--served-model-name", model.name),
        *(_cpu_arguments(place.pool) if on_cpu else _gpu_arguments(place)),
        *lever_arguments(levers_of(place.pool)),
        *connector_arguments(place.pool, on_cpu=on_cpu, lease_s=lease_s),
        *("--enable-per-request-metrics", "--enable-prompt-tokens-details"),
        *(("--enable-logging-iteration-details",) if recorder else ()),
        *("--disable-access-log-for-endpoints", QUIET_ENDPOINTS),
        *place.pool.engine_flags,
        # Last, so that nothing before them can move an engine off the loopback interface.
        *("--host", LOOPBACK, "--port", str(place.port)),
    ]
    env = {"VLLM_NO_USAGE_STATS": "1"}
    if model.is_folder:
        env["HF_HUB_OFFLINE"] = "1"
    if recorder:
        env["PHASEWISE_STEPS_ADDR"] = f"{LOOPBACK}:{place.steps_port}"
    env |= connector_environment(place, LOOPBACK, on_cpu=on_cpu)
    env |= _cpu_environment(place) if on_cpu else _gpu_environment(place)
    return EngineCommand(tuple(argv), env, _affinity(place) if on_cpu else ())


def _cpu_arguments(pool: Pool) -> list[str]:
    # Compiling takes minutes on a small machine and wins a third of decode: `--no-enforce-eager` in
    # engine_flags has it back.
    arguments = ["--enforce-eager"]
    if pool.levers.kv_memory is None:
        # The engine's own default is a share of all memory, which two engines cannot both have.
        arguments += ["--kv-cache-memory-bytes", str(DEFAULT_CPU_KV_BYTES)]
    return arguments


def _cpu_environment(place: Place) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(len(place.cores)),
        # N-gram drafts are looked up by numba, which counts the cores it may use when the engine starts. A
        # second thread of it, left on the engine's only core, waits by spinning: thirty times slower.
        "NUMBA_NUM_THREADS": str(len(place.cores)),
        # The worker then lives inside the engine's core process: one process less on few cores.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


def _affinity(place: Place) -> tuple[int, ...]:
    """The cores an engine may start on: its own, and those that no engine owns.

    An engine is two processes: the front end (HTTP, templates, tokens to text) and the core (the model). On
    one core they take turns, and turning a stream's tokens into text delays the next step. So they are parted
    once the engine is ready, if there is a core to spare (docs/reference/fleet-file.md has the measurement).
    """
    return tuple(sorted({*place.cores, *place.spare_cores}))


def _gpu_arguments(place: Place) -> list[str]:
    return ["--tensor-parallel-size", str(len(place.gpus))] if len(place.gpus) > 1 else []


def _gpu_environment(place: Place) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, place.gpus))}


def _refuse_reserved_flags(pool: Pool) -> None:
    for flag in pool.engine_flags:
        name = flag.partition("=")[0]
        if name in RESERVED_FLAGS:
            raise ConfigError(
                f"pools.{pool.name}.engine_flags holds {name}, which phasewise sets itself",
                hint="use first_engine_port or model in the fleet file instead",
            )
