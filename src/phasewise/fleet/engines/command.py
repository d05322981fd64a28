"""Builds the command of one engine from its pool, its placement and its environment. Pure."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from phasewise.core.errors import ConfigError
from phasewise.core.worker import Role
from phasewise.engines import llama_cpp, vllm
from phasewise.fleet.config import (
    KV_TRANSFER_FLAG,
    LLAMA_CPP,
    NIXL,
    KvTransferConfig,
    Levers,
    Pool,
    byte_size,
    find_flag,
)
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.fleet.engines.known_models import ServedModel
from phasewise.fleet.engines.llama_server import KEY_VARIABLE
from phasewise.fleet.local.placement import EnginePlace

# --- The default levers of a pool by its role. Pure.
#
# A prefill engine computes whole prompts in a step and few of them; a decode engine runs many streams with
# short steps. docs/reference/fleet-file.md lists these values.

PRESETS = {
    Role.MIXED: Levers(),
    Role.PREFILL: Levers(max_num_batched_tokens=8192, max_num_seqs=16),
    Role.DECODE: Levers(max_num_batched_tokens=512, max_num_seqs=256),
}
# As many slots as llama-server has by default. It is set, so that the gateway knows how many there are.
LLAMA_CPP_PRESET = Levers(max_num_seqs=4)


def levers_of(pool: Pool) -> Levers:
    """The pool's levers, with its role's defaults for missing ones."""
    preset, own = LLAMA_CPP_PRESET if pool.engine == LLAMA_CPP else PRESETS[pool.role], pool.levers
    chunk_tokens, running = preset.max_num_batched_tokens, preset.max_num_seqs
    # The engine rejects a step size below one token per running request.
    if chunk_tokens is not None and own.max_num_seqs is not None:
        chunk_tokens = max(chunk_tokens, own.max_num_seqs)
    if running is not None and own.max_num_batched_tokens is not None:
        running = min(running, own.max_num_batched_tokens)
    return own.model_copy(
        update={
            "max_num_batched_tokens": own.max_num_batched_tokens or chunk_tokens,
            "max_num_seqs": own.max_num_seqs or running,
        }
    )


LEVER_FLAGS = {name: vllm.FLAGS[name] for name in Levers.model_fields}


def lever_arguments(levers: Levers) -> list[str]:
    """The engine's arguments for every lever that is set."""
    arguments: list[str] = []
    for name, value in levers.model_dump(exclude_none=True).items():
        plain = byte_size(value) if name == "kv_cache_memory_bytes" else value
        arguments += vllm.flags(name, plain) or ()
    return arguments


# --- What makes an engine transfer KV: the connector's flag and the environment it reads. Pure.

KV_ROLES = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


def connector_arguments(pool: Pool, *, on_cpu: bool, lease_s: int) -> list[str]:
    """The connector for an engine of this pool; empty if it serves both phases or has its own."""
    if pool.role not in KV_ROLES or find_flag(pool.engine_flags, KV_TRANSFER_FLAG) is not None:
        return []
    settings: dict[str, object] = {
        "kv_connector": NIXL,
        "kv_role": KV_ROLES[pool.role],
        # The engine's default silently recomputes the prompt: slow, and not visible anywhere.
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"kv_lease_duration": lease_s},
    }
    if on_cpu:
        settings["kv_buffer_device"] = "cpu"
    return [KV_TRANSFER_FLAG, json.dumps(settings, separators=(",", ":"))]


def connector_environment(place: EnginePlace, host: str, *, on_cpu: bool) -> dict[str, str]:
    """Where the engine at `place` serves its KV, and over which transports bytes travel."""
    if place.side_port is None:
        return {}
    env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(place.side_port)}
    # Without a GPU the transport's search for faster hardware only costs time and warnings.
    return env | ({"UCX_TLS": "tcp,sm,self"} if on_cpu else {})


LOOPBACK = "127.0.0.1"
DEFAULT_CPU_KV_BYTES = 2**30
DEFAULT_LEASE_S = KvTransferConfig().lease_s
# An engine's placement determines its address and its name; the gateway relies on it.
RESERVED_FLAGS = frozenset(
    {"--host", "--port", "--uds", "--model", "--served-model-name", "--api-key", "--config"}
)
ENGINE_KEY_VARIABLE = "VLLM_API_KEY"
LLAMA_CPP_RESERVED_FLAGS = frozenset({"--host", "--port", "--alias", "-a"})
GUARDED_SINCE = (0, 3)
"""The version of the plugin from which it can guard an engine."""
QUIET_ENDPOINTS = "/health,/metrics,/load"


@dataclass(frozen=True)
class EngineCommand:
    """What to run for one engine: `env` is added to our own; an empty `affinity` means any core.

    `key_variable` is where it looks for the key that it asks for.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    affinity: tuple[int, ...]
    key_variable: str = ENGINE_KEY_VARIABLE
    records_steps: bool = False


def engine_command(
    place: EnginePlace,
    engine: EngineEnvironment,
    model: ServedModel,
    lease_s: int = DEFAULT_LEASE_S,
    dtype: str | None = None,
) -> EngineCommand:
    """The command for the engine at `place`, which keeps KV that was not fetched for `lease_s`.

    Without a `dtype` the engine chooses its own.
    """
    _reject_reserved_flags(place.pool, RESERVED_FLAGS)
    on_cpu = engine.device == "cpu"
    recorder = engine.plugin_version is not None
    argv = [
        str(engine.python),
        *("-m", "vllm.entrypoints.cli.main", "serve", model.source),
        *("--served-model-name", model.name),
        *(_cpu_arguments(place.pool) if on_cpu else ()),
        *(("--tensor-parallel-size", str(len(place.gpus))) if len(place.gpus) > 1 else ()),
        *(() if dtype is None else ("--dtype", dtype)),
        *lever_arguments(levers_of(place.pool)),
        *connector_arguments(place.pool, on_cpu=on_cpu, lease_s=lease_s),
        *("--enable-per-request-metrics", "--enable-prompt-tokens-details"),
        *(("--enable-logging-iteration-details",) if recorder else ()),
        *("--disable-access-log-for-endpoints", QUIET_ENDPOINTS),
        *(("--middleware", "phasewise_engine_plugin.guard.KeyGuard") if _can_guard(engine) else ()),
        *place.pool.engine_flags,
        # Last, so that no earlier argument can move an engine off the loopback interface.
        *("--host", LOOPBACK, "--port", str(place.port)),
    ]
    env = {"VLLM_NO_USAGE_STATS": "1"}
    if model.is_folder:
        env["HF_HUB_OFFLINE"] = "1"
    if recorder:
        env |= {"PHASEWISE_FIXES": "on"} if on_cpu else {}
        env["PHASEWISE_STEPS_ADDR"] = f"{LOOPBACK}:{place.steps_port}"
    env |= connector_environment(place, LOOPBACK, on_cpu=on_cpu)
    env |= _cpu_environment(place) if on_cpu else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, place.gpus))}
    return EngineCommand(tuple(argv), env, _affinity(place) if on_cpu else (), records_steps=recorder)


def llama_cpp_command(place: EnginePlace, model: ServedModel) -> EngineCommand:
    """The command for a llama.cpp server at `place`, in the Python that runs phasewise."""
    _reject_reserved_flags(place.pool, LLAMA_CPP_RESERVED_FLAGS)
    levers = levers_of(place.pool)
    slots = levers.max_num_seqs or 1
    settings = {
        "threads": len(place.cores),
        "max_num_seqs": slots,
        "max_num_batched_tokens": levers.max_num_batched_tokens,
        "prefix_cache": levers.prefix_cache,
        # llama.cpp divides its context among the slots.
        "max_model_len": levers.max_model_len and levers.max_model_len * slots,
    }
    given = (llama_cpp.flags(name, value) or () for name, value in settings.items() if value is not None)
    argv = [
        *(sys.executable, "-m", "phasewise.fleet.engines.llama_server", model.gguf, "--metrics", "--slots"),
        *(word for words in given for word in words),
        *place.pool.engine_flags,
        # Last, so that no earlier argument can move an engine off the loopback interface.
        *("--alias", model.name, "--host", LOOPBACK, "--port", str(place.port)),
    ]
    return EngineCommand(tuple(argv), {}, place.cores, KEY_VARIABLE)


def _cpu_arguments(pool: Pool) -> list[str]:
    # Compiling takes minutes on a small machine and saves a third of decode time: `--no-enforce-eager` in
    # engine_flags turns it on.
    arguments = ["--enforce-eager"]
    if pool.levers.kv_cache_memory_bytes is None:
        # The engine's own default is a share of all memory, which two engines cannot both have.
        arguments += ["--kv-cache-memory-bytes", str(DEFAULT_CPU_KV_BYTES)]
    return arguments


def _cpu_environment(place: EnginePlace) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(len(place.cores)),
        # numba looks up n-gram drafts, and counts the cores it may use when the engine starts. On the
        # engine's only core, its second thread would wait by spinning: thirty times slower.
        "NUMBA_NUM_THREADS": str(len(place.cores)),
        # The worker then runs inside the engine's core process: one process less on few cores.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


def _affinity(place: EnginePlace) -> tuple[int, ...]:
    """The cores an engine may start on: its own, and those that no engine owns.

    An engine is two processes: the front end (HTTP, templates, detokenization) and the core (the model). On
    one core they take turns, and detokenizing delays the next step. So each gets its own cores once the
    engine is ready, if a core is free (docs/reference/fleet-file.md has the measurement).
    """
    return tuple(sorted({*place.cores, *place.spare_cores}))


def _reject_reserved_flags(pool: Pool, reserved: frozenset[str]) -> None:
    for flag in pool.engine_flags:
        name = flag.partition("=")[0]
        if name in reserved:
            raise ConfigError(
                f"pools.{pool.name}.engine_flags has {name}, which phasewise sets itself",
                hint="use first_engine_port or model in the fleet file instead",
            )


def _can_guard(engine: EngineEnvironment) -> bool:
    version = engine.plugin_version
    return version is not None and tuple(map(int, version.split(".")[:2])) >= GUARDED_SINCE
