"""Frozen configuration, and the only reader of configuration files and of the environment.

A mistake fails at start and names the key, the value and what is accepted. What a lever does to an engine
stands in fleet/levers.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from phasewise.errors import ConfigError
from phasewise.model.worker import Role

DEMO_MODEL = "smollm2-135m"
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})

_SHA256, _NAME, _BYTE_SIZE = r"^[0-9a-f]{64}$", r"^[a-z0-9][a-z0-9-]{0,40}$", r"^\d+(\.\d+)?(MiB|GiB)$"
_PATTERNS = {
    _SHA256: "accepted: 64 hexadecimal digits, as sha256sum prints them",
    _NAME: "accepted: up to 41 small letters, digits and hyphens, not a hyphen first",
    _BYTE_SIZE: "accepted: a number and a unit, such as 512MiB or 1.5GiB",
}
_HASH_KEYS_END = "sha256"
"""Somebody may have put the key itself where its hash belongs: values of such keys are not repeated."""
Sha256 = Annotated[str, Field(pattern=_SHA256)]
Name = Annotated[str, Field(pattern=_NAME)]
ByteSize = Annotated[str, Field(pattern=_BYTE_SIZE)]
Port = Annotated[int, Field(ge=1, le=65535)]

_Model = TypeVar("_Model", bound=BaseModel)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Speculation(_Frozen):
    """Guess tokens ahead and verify them in one step."""

    method: Literal["ngram"] = "ngram"
    tokens: Annotated[int, Field(ge=1, le=32)] = 5
    lookup_max: Annotated[int, Field(ge=1, le=32)] = 4


class Levers(_Frozen):
    """The engine's levers under names of their own; one left out keeps the engine's default."""

    # prefill
    prefix_cache: bool | None = None
    prefill_chunk_tokens: Annotated[int, Field(ge=16)] | None = None
    # decode
    max_running: Annotated[int, Field(ge=1)] | None = None
    speculation: Speculation | None = None
    # the KV cache between them
    kv_memory: ByteSize | None = None
    kv_dtype: Literal["auto", "bfloat16", "fp8"] | None = None
    max_context_tokens: Annotated[int, Field(ge=16)] | None = None
    # both phases
    weight_quantisation: str | None = None
    attention_backend: str | None = None


class Pool(_Frozen):
    """Engines that are alike."""

    name: Name = "main"
    role: Role = Role.MIXED
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    cores: Annotated[int, Field(ge=1)] | None = None
    gpus: Annotated[int, Field(ge=1)] | None = None
    levers: Levers = Levers()
    engine_flags: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_kind_of_device(self) -> Pool:
        if self.cores is not None and self.gpus is not None:
            raise ValueError("a pool runs on cores or on gpus, not on both")
        return self


class ApiKey(_Frozen):
    """A client's key, known only by its hash."""

    sha256: Sha256
    tenant: Name = "default"
    priority: int = 0
    slo_class: Name = "default"


class GatewayConfig(_Frozen):
    """Where the gateway listens and whom it lets in."""

    host: str = "127.0.0.1"
    port: Port = 8080
    policy: str = "least_outstanding"
    api_keys: tuple[ApiKey, ...] = ()
    admin_key_sha256: Sha256 | None = None
    keep_timelines: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000

    @model_validator(mode="after")
    def _no_open_door(self) -> GatewayConfig:
        if self.host not in LOOPBACK_HOSTS and not self.api_keys:
            raise ValueError("host is reachable from the network, so api_keys must hold at least one key")
        return self


class FleetConfig(_Frozen):
    """A fleet file."""

    version: Literal[1] = 1
    name: Name = "local"
    model: str = DEMO_MODEL
    first_engine_port: Port = 8100
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)] = (Pool(),)
    gateway: GatewayConfig = GatewayConfig()

    @model_validator(mode="after")
    def _distinct_pools(self) -> FleetConfig:
        names = [pool.name for pool in self.pools]
        if len(set(names)) != len(names):
            raise ValueError("each pool needs a name of its own")
        return self


class WorkerConfig(_Frozen):
    """An engine as the gateway is told of it."""

    name: str
    url: str
    model: str
    role: Role = Role.MIXED
    pool: str = "default"
    steps_url: str | None = None


class GatewayFile(_Frozen):
    """What a gateway process is started with."""

    version: Literal[1] = 1
    gateway: GatewayConfig
    workers: Annotated[tuple[WorkerConfig, ...], Field(min_length=1)]


def load_fleet(path: Path) -> FleetConfig:
    """Read a fleet file."""
    return _validated(FleetConfig, _read_yaml(path), str(path))


def fleet_from(data: object, where: str) -> FleetConfig:
    """A fleet from plain data, checked like a file's; `where` names it in errors."""
    return _validated(FleetConfig, data, where)


def fleet_with(
    fleet: FleetConfig,
    *,
    model: str | None = None,
    name: str | None = None,
    first_engine_port: int | None = None,
    gateway_port: int | None = None,
) -> FleetConfig:
    """A fleet with values of the command line in the place of its own, checked like those of a file."""
    data = fleet.model_dump()
    data |= {
        key: value
        for key, value in (("model", model), ("name", name), ("first_engine_port", first_engine_port))
        if value is not None
    }
    if gateway_port is not None:
        data["gateway"]["port"] = gateway_port
    return _validated(FleetConfig, data, "command line")


def load_gateway_file(path: Path) -> GatewayFile:
    """Read what a gateway process is started with."""
    return _validated(GatewayFile, _read_yaml(path), str(path))


def phasewise_home(environ: Mapping[str, str]) -> Path:
    """The data folder: PHASEWISE_HOME, else $XDG_DATA_HOME/phasewise, else ~/.local/share/phasewise."""
    if chosen := environ.get("PHASEWISE_HOME"):
        return Path(chosen).expanduser().absolute()
    if data_home := environ.get("XDG_DATA_HOME"):
        return Path(data_home).expanduser().absolute() / "phasewise"
    return Path.home() / ".local" / "share" / "phasewise"


def byte_size(text: str) -> int:
    """`1GiB` as bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(MiB|GiB)", text)
    if match is None:
        raise ConfigError(f"{text!r} is not a size", hint="write it as 512MiB or 1.5GiB")
    return int(float(match[1]) * {"MiB": 2**20, "GiB": 2**30}[match[2]])


def _read_yaml(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})", hint="check the path") from error
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}", hint="see docs/reference/fleet-file.md") from error


def _validated(kind: type[_Model], data: object, where: str) -> _Model:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_describe(error, kind, where), hint="see docs/reference/fleet-file.md") from error


def _describe(error: ValidationError, kind: type[BaseModel], where: str) -> str:
    problems = error.errors(include_url=False, include_context=False)
    lines = []
    for problem in problems:
        place = problem["loc"]
        if any(len(other["loc"]) > len(place) and other["loc"][: len(place)] == place for other in problems):
            continue  # only says again that something inside it is wrong
        key = ".".join(str(part) for part in place) or "the file"
        silent = problem["type"] in {"missing", "value_error"} or key.endswith(_HASH_KEYS_END)
        value = "" if silent else f" is {problem['input']!r}"
        lines.append(f"{where}: {key}{value}: {_accepted(problem['type'], problem['msg'], kind, place)}")
    return "\n".join(lines)


def _accepted(problem: str, message: str, kind: type[BaseModel], place: tuple[int | str, ...]) -> str:
    if problem == "extra_forbidden":
        return f"there is no such key; accepted: {', '.join(_keys_at(kind, place[:-1]))}"
    if problem == "string_pattern_mismatch":
        pattern = message.partition("'")[2].rstrip("'")
        return next((said for known, said in _PATTERNS.items() if known == pattern), message)
    return message.removeprefix("Value error, ").replace("Input should be", "accepted:")


def _keys_at(kind: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The keys of the model that stands at this place of the file."""
    for part in place:
        if isinstance(part, str) and part in kind.model_fields:
            kind = next(_models_in(kind.model_fields[part].annotation), kind)
    return list(kind.model_fields)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
