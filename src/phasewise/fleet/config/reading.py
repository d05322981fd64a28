"""Reads configuration files and the environment.

A mistake fails at start; the error names its line, key, value and what is accepted.
"""

from __future__ import annotations

import logging
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from phasewise.core.errors import ConfigError, UsageError
from phasewise.fleet.config.fleet import FleetConfig
from phasewise.fleet.config.gateway import ACCEPTED_BY_PATTERN
from phasewise.fleet.config.gateway_file import GatewayFile
from phasewise.fleet.config.kv_transfer import kv_transfer_problems
from phasewise.fleet.config.source import ConfigSource, Loader, Place

_SECRET_PARTS = frozenset(
    {
        *("api_keys", "admin_key_sha256", "metrics_key_sha256", "api_key_file"),
        *("redis", "salt_secret_file", "tls"),
    }
)
"""Values under these keys are never shown: a user may have written a key itself instead of its hash or its
file, and a Redis address may hold a password."""
_SILENT_PROBLEMS = frozenset({"missing", "value_error", "extra_forbidden", "model_type"})
"""For these problems the input is not a single value, so it may contain a password."""

_PLAIN = {
    "missing": "this key is required",
    "tuple_type": "accepted: a list",
    "list_type": "accepted: a list",
    "dict_type": "accepted: keys with values",
    "model_type": "accepted: keys with values",
    "int_type": "accepted: a whole number",
    "int_parsing": "accepted: a whole number",
    "int_from_float": "accepted: a whole number",
    "float_type": "accepted: a number",
    "float_parsing": "accepted: a number",
    "bool_type": "accepted: true or false",
    "bool_parsing": "accepted: true or false",
    "string_type": "accepted: a text; put it in quotes if YAML reads it as something else",
}
"""What is accepted where a value has the wrong type, in words for people who have never seen our code."""

MIN_SECRET_BYTES = 32
SCHEMA = Path(__file__).with_name("fleet-file.schema.json")
"""The JSON Schema of fleet and gateway files, written by tools/fleet_schema.py."""

logger = logging.getLogger("phasewise.fleet.config")

_Model = TypeVar("_Model", bound=BaseModel)


def load_fleet(path: Path) -> FleetConfig:
    """Read a fleet file."""
    return _checked_fleet(*_read_yaml(path))


def fleet_from(data: object, where: str) -> FleetConfig:
    """A fleet from plain data, checked like a file's; `where` names it in errors."""
    return _checked_fleet(data, ConfigSource(where))


def fleet_with(
    fleet: FleetConfig,
    *,
    model: str | None = None,
    name: str | None = None,
    first_engine_port: int | None = None,
    gateway_port: int | None = None,
    engine_keys: bool | None = None,
) -> FleetConfig:
    """A fleet with values of the command line instead of its own, checked like those of a file."""
    given = {"model": model, "name": name, "first_engine_port": first_engine_port, "engine_keys": engine_keys}
    data = fleet.model_dump() | {key: value for key, value in given.items() if value is not None}
    if gateway_port is not None:
        data["gateway"]["port"] = gateway_port
    return _checked_fleet(data, ConfigSource("command line"))


def is_gateway_file(path: Path) -> bool:
    """Whether this is a gateway's file and not a fleet file: it says where its workers are."""
    try:
        read = _parsed(path.read_bytes())
    except (OSError, ValueError, yaml.YAMLError):
        return False  # reading it again reports the error
    return isinstance(read, dict) and not {"workers", "discover"}.isdisjoint(read)


def load_gateway_file(path: Path) -> GatewayFile:
    """Read the configuration of a gateway process."""
    return _validated(GatewayFile, *_read_yaml(path))


def load_secret(path: Path) -> bytes:
    """Read a secret of at least 32 bytes, without the line end after it."""
    try:
        secret = path.read_bytes().rstrip(b"\r\n")
        mode = path.stat().st_mode
    except OSError as error:
        # A relative path may be the secret itself.
        which = str(path) if path.is_absolute() else "named by gateway.salt_secret_file"
        hint = "give the full path of a file that the gateway's user can read"
        raise ConfigError(f"the secret {which} cannot be read ({error.strerror})", hint=hint) from None
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"the secret {path} has {len(secret)} bytes, fewer than {MIN_SECRET_BYTES}",
            hint=f"openssl rand -hex 32 > {path}",
        )
    if mode & stat.S_IROTH:
        logger.warning("every user of this machine can read the secret %s. hint: chmod 600 %s", path, path)
    return secret


def phasewise_home(environ: Mapping[str, str]) -> Path:
    """The data folder: PHASEWISE_HOME, else $XDG_DATA_HOME/phasewise, else ~/.local/share/phasewise."""
    if chosen := environ.get("PHASEWISE_HOME"):
        return Path(chosen).expanduser().absolute()
    if data_home := environ.get("XDG_DATA_HOME"):
        return Path(data_home).expanduser().absolute() / "phasewise"
    return Path.home() / ".local" / "share" / "phasewise"


def byte_size(text: str) -> int:
    """`1GiB` as bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(KiB|MiB|GiB)", text)
    if match is None:
        raise UsageError(f"{text!r} is not a size", hint="write it as 512MiB or 1.5GiB")
    return int(float(match[1]) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[match[2]])


def _read_yaml(path: Path) -> tuple[object, ConfigSource]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})", hint="check the path") from error
    try:
        text = content.decode()
        return _parsed(text) or {}, ConfigSource(str(path), text)
    except (yaml.YAMLError, ValueError) as error:
        # Nor may the cause be shown: it quotes the file.
        hint = "write `key: value`, and indent what belongs to a key by two spaces"
        raise ConfigError(f"{path} is not YAML: {_why_not_yaml(error)}", hint=hint) from None


def _parsed(text: str | bytes) -> object:
    try:
        return yaml.load(text, Loader=Loader)  # noqa: S506 - it constructs what SafeLoader does
    except yaml.YAMLError:
        # Says what is wrong in more detail.
        return yaml.safe_load(text)


def _why_not_yaml(error: Exception) -> str:
    """What is wrong and where, without quoting the file: its next line may be a key."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return "it contains characters or a value that cannot be read"
    mark = error.problem_mark
    problem = error.problem or "it cannot be parsed"
    if not problem.startswith("expected"):  # those name tokens, or a single character
        problem = re.sub(r"(['\"])(?!<).{2,}\1", "...", problem)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def _checked_fleet(data: object, source: ConfigSource) -> FleetConfig:
    fleet = _validated(FleetConfig, data, source)
    problems = list(kv_transfer_problems(fleet, source.beside))
    if problems:
        said = [
            f"{source.at(problem.place)}: {'.'.join(map(str, problem.place))}: {problem.words}"
            for problem in problems
        ]
        raise ConfigError("\n".join(said), hint="engines that transfer KV to each other need equal settings")
    return fleet


def _validated(kind: type[_Model], data: object, source: ConfigSource) -> _Model:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        # Without its cause, which repeats every value.
        hint = "change the keys that are named here; each line says what its key accepts"
        raise ConfigError(_describe(error, kind, source), hint=hint) from None


def _describe(error: ValidationError, kind: type[BaseModel], source: ConfigSource) -> str:
    problems = error.errors(include_url=False, include_context=False)
    lines: list[tuple[int, str]] = []
    for problem in problems:
        place = problem["loc"]
        if any(len(other["loc"]) > len(place) and other["loc"][: len(place)] == place for other in problems):
            continue  # it only repeats that something inside it is wrong
        secret = not _SECRET_PARTS.isdisjoint(place)
        silent = secret or problem["type"] in _SILENT_PROBLEMS or isinstance(problem["input"], dict | list)
        value = "" if silent else f" is {problem['input']!r}"
        accepted = _accepted(problem["type"], problem["msg"], kind, place)
        words = f"{source.at(place)}: {_shown(place, secret, problem['type'])}{value}: {accepted}"
        lines.append((source.line_of(place) or 0, words))
    return "\n".join(words for _, words in sorted(lines, key=lambda line: line[0]))


def _shown(place: Place, secret: bool, problem: str) -> str:
    parts = [str(part) for part in place]
    if secret and problem == "extra_forbidden":
        parts[-1] = "(a key)"  # which may be the secret itself
    return ".".join(parts) or "the file"


def _accepted(problem: str, message: str, kind: type[BaseModel], place: Place) -> str:
    if problem in _PLAIN:
        return _PLAIN[problem]
    if problem == "extra_forbidden":
        keys = _keys_at(kind, place[:-1])
        # Never a guess from a secret that stands where a key should.
        guess = None if not _SECRET_PARTS.isdisjoint(place) else _did_you_mean(str(place[-1]), keys)
        return f"unknown key; {f'{guess} ' if guess else ''}accepted: {', '.join(keys)}"
    if problem == "string_pattern_mismatch":
        pattern = message.partition("'")[2].rstrip("'")
        return next((said for known, said in ACCEPTED_BY_PATTERN.items() if known == pattern), message)
    return message.removeprefix("Value error, ").replace("Input should be", "accepted:")


def _keys_at(kind: type[BaseModel], place: Place) -> list[str]:
    """The keys of the model at this position of the file."""
    for part in place:
        if isinstance(part, str) and part in kind.model_fields:
            kind = next(_models_in(kind.model_fields[part].annotation), kind)
    return list(kind.model_fields)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


LONGEST_GUESSED = 48
"""Nothing is guessed of longer words, because comparing takes time."""


def _did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A question with the closest known name; None if none is close."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.75) if len(word) <= LONGEST_GUESSED else []
    return f"did you mean {close[0]}?" if close else None
