"""A fleet made ready to start: every process with its command, its address and its log.

It can be written down and read back, so that a supervisor in the background starts what its user saw planned.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from phasewise.adapters.embedding_folder import resolve_embedding_model
from phasewise.config import FleetConfig, GatewayConfig, GatewayFile, OnnxEmbedder, WorkerConfig
from phasewise.errors import ConfigError
from phasewise.fleet.engine_command import LOOPBACK, ServedModel, engine_command
from phasewise.fleet.engine_env import EngineEnvironment
from phasewise.fleet.paths import logs_folder
from phasewise.fleet.placement import Machine, Place, place_engines
from phasewise.fleet.role_presets import levers_of
from phasewise.fleet.run_paths import RunPaths
from phasewise.model.worker import DEFAULT_SLOTS, Role

_ANY_ADDRESS = {"0.0.0.0": LOOPBACK, "::": "[::1]", "::1": "[::1]"}  # noqa: S104 - read, not bound


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProcessPlan(_Frozen):
    """A command, what is added to its environment, the cores it may use (none: all) and its log."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    affinity: tuple[int, ...] = ()
    log: str


class MemberPlan(_Frozen):
    """An engine or the gateway before it is started.

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
        """Where the engine's steps are read."""
        return None if self.steps_port is None else f"http://{LOOPBACK}:{self.steps_port}"


class FleetPlan(_Frozen):
    """A whole fleet before it is started."""

    name: str
    model: str
    home: str
    engines: tuple[MemberPlan, ...]
    gateway: MemberPlan
    gateway_file: GatewayFile

    @property
    def members(self) -> tuple[MemberPlan, ...]:
        """Every process but the supervisor."""
        return (*self.engines, self.gateway)

    @property
    def keys_needed(self) -> bool:
        """Whether the gateway lets in only clients with a key."""
        return bool(self.gateway_file.gateway.api_keys)

    @property
    def drain_s(self) -> float:
        """How long running requests may go on when the fleet is stopped."""
        return self.gateway_file.gateway.drain_s

    @property
    def makes_admin_key(self) -> bool:
        """Whether the file leaves the admin key to us."""
        return self.gateway_file.gateway.admin_key_sha256 is None

    @property
    def paths(self) -> RunPaths:
        """Where this fleet's files are."""
        return RunPaths(Path(self.home), self.name)


def plan_fleet(
    fleet: FleetConfig, engine: EngineEnvironment, model: ServedModel, machine: Machine, home: Path
) -> FleetPlan:
    """Plan every process of a fleet on this machine."""
    _refuse_tls(fleet)
    _refuse_parting_without_nixl(fleet, engine)
    _refuse_meaning_without_a_model(fleet, home)
    places = place_engines(fleet, machine)
    engines = tuple(_plan_engine(place, engine, model, fleet, home) for place in places)
    return FleetPlan(
        name=fleet.name,
        model=model.name,
        home=str(home),
        engines=engines,
        gateway=_plan_gateway(fleet, places[0].spare_cores, home),
        gateway_file=_gateway_file(fleet.gateway, engines, places, model.name),
    )


def _refuse_tls(fleet: FleetConfig) -> None:
    # Whoever watches the fleet asks the gateway at loopback, for which no certificate is good.
    if fleet.gateway.tls is not None:
        raise ConfigError(
            "gateway.tls is not taken by `phasewise up`",
            hint="leave it out, or start the gateway by itself: python -m phasewise.gateway FILE",
        )


def _refuse_parting_without_nixl(fleet: FleetConfig, engine: EngineEnvironment) -> None:
    for pool in fleet.pools:
        if pool.role is not Role.MIXED and not engine.nixl:
            raise ConfigError(
                f"pools.{pool.name}.role is '{pool.role}', but {engine.python} has no NIXL to move KV",
                hint=f"run `phasewise engine install`, or `{engine.python} -m pip install nixl`",
            )


def _refuse_meaning_without_a_model(fleet: FleetConfig, home: Path) -> None:
    # The gateway would find out as well, but only after its engines have been waited for.
    cache = fleet.gateway.cache
    if cache is not None and cache.semantic is not None and isinstance(cache.semantic.embedder, OnnxEmbedder):
        resolve_embedding_model(cache.semantic.embedder.model, home)


def _plan_engine(
    place: Place, engine: EngineEnvironment, model: ServedModel, fleet: FleetConfig, home: Path
) -> MemberPlan:
    command = engine_command(place, engine, model, fleet.gateway.hand_over.lease_s)
    # Temporary files go with the fleet; what a compiler has made should be found again.
    env = command.env | {"TORCHINDUCTOR_CACHE_DIR": str(home / "cache" / "torchinductor")}
    log = logs_folder(home) / f"{fleet.name}-{place.name}.log"
    return MemberPlan(
        name=place.name,
        process=ProcessPlan(argv=command.argv, env=env, affinity=command.affinity, log=str(log)),
        port=place.port,
        url=f"http://{LOOPBACK}:{place.port}",
        role=place.pool.role,
        steps_port=place.steps_port if engine.plugin_version is not None else None,
        side_port=place.side_port,
        cores=place.cores,
        front_cores=place.spare_cores,
        gpus=place.gpus,
    )


def _plan_gateway(fleet: FleetConfig, spare_cores: tuple[int, ...], home: Path) -> MemberPlan:
    paths = RunPaths(home, fleet.name)
    host = fleet.gateway.host
    return MemberPlan(
        name="gateway",
        process=ProcessPlan(
            argv=(sys.executable, "-m", "phasewise.gateway", str(paths.gateway_file)),
            affinity=spare_cores,
            log=str(logs_folder(home) / f"{fleet.name}-gateway.log"),
        ),
        host=host,
        port=fleet.gateway.port,
        url=f"http://{_ANY_ADDRESS.get(host, host)}:{fleet.gateway.port}",
        cores=spare_cores,
    )


def _gateway_file(
    config: GatewayConfig, engines: tuple[MemberPlan, ...], places: list[Place], model: str
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
                slots=place.pool.slots or levers_of(place.pool).max_running or DEFAULT_SLOTS,
            )
            for engine, place in zip(engines, places, strict=True)
        ),
    )
