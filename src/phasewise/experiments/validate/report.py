"""The validation report: one JSON document with figures and claims, and no names of hosts or users."""

from __future__ import annotations

import getpass
import re
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, StringConstraints, ValidationError

from phasewise.core.errors import ConfigError
from phasewise.fleet.config.gateway import Frozen

LARGEST_REPORT_BYTES = 256 * 1024
Line = Annotated[str, StringConstraints(max_length=600, pattern=r"^[^\x00-\x1f\x7f\u2028\u2029]*$")]
"""A text on one line: reports are merged from strangers, and their texts end in tables."""
Key = Annotated[str, StringConstraints(max_length=40, pattern=r"^[a-z0-9_]+$")]
Facts = dict[Key, float | int | Line | None]
_ADDRESSES = re.compile(
    r"\b[a-z][a-z0-9+.-]{0,30}://[^\s'\"<>)]+|[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){0,8}"
    r"|(?<![\w./~])~?(?:/[\w.@+~-]{1,255}){1,40}/?|(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)(?::\d{1,5})?"
    r"|(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])"
    r"|\b[a-z][\w-]{0,62}(?:\.[\w-]{1,63}){0,8}:\d{2,5}\b",
    re.IGNORECASE,
)
"""Addresses and paths. Every repetition is bounded, so that no text takes long."""


class Outcome(StrEnum):
    """What was found of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    INCONCLUSIVE = "inconclusive"
    NOT_TRIED = "not tried"


class StepResult(Frozen):
    """A step with its figures; `why` says why it was not done."""

    step: Key
    why: Line = ""
    took_s: float = 0.0
    figures: Facts = Field(default_factory=dict)


class ClaimResult(Frozen):
    """A published claim and what was found of it here."""

    claim: Key
    sentence: Line
    published: Line
    outcome: Outcome
    found: Line


class ValidationReport(Frozen):
    """A whole report."""

    format: Literal["phasewise-validation"] = "phasewise-validation"
    v: Literal[2] = 2
    day: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\d$")]
    took_minutes: float
    interrupted: bool
    machine: Facts
    versions: Facts
    settings: Facts
    steps: tuple[StepResult, ...]
    claims: Annotated[tuple[ClaimResult, ...], Field(min_length=1)]

    def count(self, outcome: Outcome) -> int:
        """How many claims have this outcome."""
        return sum(claim.outcome is outcome for claim in self.claims)


def report_json(report: ValidationReport) -> bytes:
    """The document. Whatever its texts hold, no address and no path is written."""
    return orjson.dumps(_cleaned(report.model_dump(mode="json")), option=orjson.OPT_INDENT_2) + b"\n"


def read_report(data: bytes, name: str) -> ValidationReport:
    """The report in a document from anywhere; ConfigError says what is wrong with it."""
    try:
        if len(data) > LARGEST_REPORT_BYTES:
            raise ConfigError(f"{name} has {len(data):,} bytes: no validation report is this large")
        document = orjson.loads(data)
        if _cleaned(document) != document:
            raise ConfigError(
                f"{name} holds an address or a path", hint="publish the report as it was written"
            )
        return ValidationReport.model_validate_json(data, strict=True)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{name} is not JSON ({error})", hint="give the report's .json file") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(
            f"{name} is no report of this version: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            hint="publish the report as `phasewise engine validate` wrote it",
        ) from error


def without_names(text: str) -> str:
    """A text on one line without addresses, paths, and the names of this machine and its user."""
    host = socket.gethostname()
    names = {host, host.partition(".")[0], getpass.getuser(), Path.home().name}
    text = _ADDRESSES.sub("(removed)", " ".join(text.split()))
    # Shorter names are parts of ordinary words.
    for name in sorted((name for name in names if len(name) > 2), key=len, reverse=True):
        text = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", "(removed)", text, flags=re.IGNORECASE)
    return text[:600]


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, str):
        return _ADDRESSES.sub("(removed)", value)
    if isinstance(value, dict):
        return {key: _cleaned(inner) for key, inner in value.items()}
    return [_cleaned(inner) for inner in value] if isinstance(value, list) else value
