"""A fleet that is ready to start: every process with its command, its address and its log.

It can be serialized, so that a background supervisor starts exactly what was planned.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import Field

from phasewise.clients.embedding_folder import resolve_embedding_model
from phasewise.core.errors import ConfigError
from phasewise.core.worker import DEFAULT_SLOTS, Role
from phasewise.fleet.config import (
    LLAMA_CPP,
    FleetConfig,
    GatewayConfig,
    GatewayFile,
    OnnxEmbedderConfig,
    Pool,
    WorkerConfig,
)
from phasewise.fleet.config.fleet import find_flag
from phasewise.fleet.config.gateway import Frozen
from phasewise.fleet.engines.command import LOOPBACK, engine_command, levers_of, llama_cpp_command
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.fleet.engines.known_models import ServedModel
from phasewise.fleet.local.placement import EnginePlace, Machine, place_engines
from phasewise.fleet.local.run_files import RunPaths, logs_folder

_ANY_ADDRESS = {"0.0.0.0": LOOPBACK, "::": "[::1]", "::1": "[::1]"}  # noqa: S104 - read, not bound


class ProcessPlan(Frozen):
    """A command, what is added to its environment, the cores it may use (none: all) and its log.

    `secrets` are variables whose values are in files, so that neither arguments nor plans show them.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, str] = Field(default_factory=dict)
    affinity: tuple[int, ...] = ()
    log: str


class MemberPlan(Frozen):
    """An engine, the gateway or the traffic before it is started.

    `cores` are its own; an engine's front end moves to `front_cores` once it is ready (none: it stays).
    """

    name: str
    process: ProcessPlan
    host: str = LOOPBACK
    port: int
    url: str
    role: Role | None = None
    steps_port: int | None = None
    side_port: int | None = None
    cores: tuple[int, ...] = ()
    front_cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()

    @property
    def steps_url(self) -> str | None:
        """The address of the engine's step recorder."""
        return None if self.steps_port is None else f"http://{LOOPBACK}:{self.steps_port}"


class FleetPlan(Frozen):
    """A whole fleet before it is started; `dtype` is the one its engines are started with, if any.

    `traffic` plays requests of its own to the gateway, whose address is its `url`.
    """

    name: str
    model: str
    dtype: str | None = None
    home: str
    engines: tuple[MemberPlan, ...]
    gateway: MemberPlan
    gateway_file: GatewayFile
    traffic: MemberPlan | None = None

    @property
    def members(self) -> tuple[MemberPlan, ...]:
        """Every process except the supervisor."""
        return (*self.engines, self.gateway, *(() if self.traffic is None else (self.traffic,)))

    @property
    def keys_needed(self) -> bool:
        """Whether the gateway accepts only clients with a key."""
        return bool(self.gateway_file.gateway.api_keys)

    @property
    def drain_s(self) -> float:
        """How long running requests may continue when the fleet is stopped."""
        return self.gateway_file.gateway.drain_s

    @property
    def makes_admin_key(self) -> bool:
        """Whether phasewise creates the admin key because the file has none."""
        return self.gateway_file.gateway.admin_key_sha256 is None

    @property
    def paths(self) -> RunPaths:
        """Where this fleet's files are."""
        return RunPaths(Path(self.home), self.name)


def plan_fleet(
    fleet: FleetConfig, engine: EngineEnvironment | None, model: ServedModel, machine: Machine, home: Path
) -> FleetPlan:
    """Plan every process of a fleet on this machine; `engine` is None if no pool has vLLM."""
    _reject_tls(fleet)
    _reject_disaggregation_without_nixl(fleet, engine)
    _reject_semantic_cache_without_a_model(fleet, home)
    places = place_engines(fleet, machine)
    dtype = dtype_for(fleet, model, machine)
    engines = tuple(_plan_engine(place, engine, model, fleet, home, dtype) for place in places)
    return FleetPlan(
        name=fleet.name,
        model=model.name,
        dtype=dtype,
        home=str(home),
        engines=engines,
        gateway=_plan_gateway(fleet, places[0].spare_cores, home),
        gateway_file=_gateway_file(fleet.gateway, engines, places, model.name),
    )


def dtype_for(fleet: FleetConfig, model: ServedModel, machine: Machine) -> str | None:
    """The --dtype of all engines: float32 on a CPU without native bfloat16 (None: the engine's default).

    One pool that chooses decides for all: KV moves only between engines of the same dtype.
    """
    if machine.native_bf16 is not False or not model.in_bf16:
        return None
    chosen = any(
        pool.levers.weight_quantization or find_flag(pool.engine_flags, "--dtype", "--quantization", "-q")
        for pool in fleet.pools
    )
    return None if chosen else "float32"


def _reject_tls(fleet: FleetConfig) -> None:
    # The fleet's own health checks use loopback, for which no certificate is valid.
    if fleet.gateway.tls is not None:
        raise ConfigError(
            "gateway.tls is not taken by `phasewise up`",
            hint="leave it out, or start the gateway by itself: `phasewise gateway FILE`",
        )


def _reject_disaggregation_without_nixl(fleet: FleetConfig, engine: EngineEnvironment | None) -> None:
    for pool in fleet.pools:
        if pool.role is not Role.MIXED and engine is not None and not engine.nixl:
            raise ConfigError(
                f"pools.{pool.name}.role is '{pool.role}', but {engine.python} has no NIXL to move KV",
                hint=f"run `phasewise engine install`, or `{engine.python} -m pip install nixl`",
            )


def _reject_semantic_cache_without_a_model(fleet: FleetConfig, home: Path) -> None:
    # The gateway would detect this too, but only after its engines are ready.
    cache = fleet.gateway.cache
    if (
        cache is not None
        and cache.semantic is not None
        and isinstance(cache.semantic.embedder, OnnxEmbedderConfig)
    ):
        resolve_embedding_model(cache.semantic.embedder.model, home)


def _plan_engine(
    place: EnginePlace,
    engine: EngineEnvironment | None,
    model: ServedModel,
    fleet: FleetConfig,
    home: Path,
    dtype: str | None,
) -> MemberPlan:
    env: dict[str, str] = {}
    if engine is None or place.pool.engine == LLAMA_CPP:
        command = llama_cpp_command(place, model)
    else:
        command = engine_command(place, engine, model, fleet.gateway.kv_transfer.lease_s, dtype)
        # Temporary files are removed with the fleet; compiler caches are kept.
        env = {"TORCHINDUCTOR_CACHE_DIR": str(home / "cache" / "torchinductor")}
    log = logs_folder(home) / f"{fleet.name}-{place.name}.log"
    key_file = str(RunPaths(home, fleet.name).engine_key(place.name)) if fleet.engine_keys else None
    secrets = {} if key_file is None else {command.key_variable: key_file}
    return MemberPlan(
        name=place.name,
        process=ProcessPlan(
            argv=command.argv,
            env=command.env | env,
            secrets=secrets,
            affinity=command.affinity,
            log=str(log),
        ),
        port=place.port,
        url=f"http://{LOOPBACK}:{place.port}",
        role=place.pool.role,
        steps_port=place.steps_port if command.records_steps else None,
        side_port=place.side_port,
        cores=place.cores,
        front_cores=tuple(core for core in command.affinity if core not in place.cores),
        gpus=place.gpus,
    )


def _plan_gateway(fleet: FleetConfig, spare_cores: tuple[int, ...], home: Path) -> MemberPlan:
    paths = RunPaths(home, fleet.name)
    host = fleet.gateway.host
    return MemberPlan(
        name="gateway",
        process=ProcessPlan(
            argv=(sys.executable, "-m", "phasewise.cli", "gateway", str(paths.gateway_file)),
            affinity=spare_cores,
            log=str(logs_folder(home) / f"{fleet.name}-gateway.log"),
        ),
        host=host,
        port=fleet.gateway.port,
        url=f"http://{_ANY_ADDRESS.get(host, host)}:{fleet.gateway.port}",
        cores=spare_cores,
    )


def _gateway_file(
    config: GatewayConfig, engines: tuple[MemberPlan, ...], places: list[EnginePlace], model: str
) -> GatewayFile:
    return GatewayFile(
        gateway=config,
        workers=tuple(
            WorkerConfig(
                name=engine.name,
                url=engine.url,
                model=model,
                role=place.pool.role,
                pool=place.pool.name,
                steps_url=engine.steps_url,
                api_key_file=next(iter(engine.process.secrets.values()), None),
                slots=place.pool.slots or levers_of(place.pool).max_num_seqs or DEFAULT_SLOTS,
                weights=_weights(place.pool),
            )
            for engine, place in zip(engines, places, strict=True)
        ),
    )


def _weights(pool: Pool) -> str:
    """What makes its engines write other answers than those of other pools; empty if nothing does."""
    dtype = find_flag(pool.engine_flags, "--dtype")
    kind = LLAMA_CPP if pool.engine == LLAMA_CPP else None
    return " ".join(filter(None, (kind, pool.levers.weight_quantization, dtype and dtype.value)))
