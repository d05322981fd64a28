"""Service-level objectives: one bound per phase for what users accept as fast enough."""

from __future__ import annotations

import re
from dataclasses import dataclass

from phasewise.core.errors import UsageError

_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h)")


@dataclass(frozen=True, slots=True)
class Slo:
    """A bound on TTFT and one on TPOT."""

    ttft_s: float
    tpot_s: float


DEFAULT_SLO = Slo(ttft_s=1.0, tpot_s=0.1)
"""A second to the first token, then ten tokens a second: users begin to notice a longer wait, and text
arrives as fast as they read."""


def parse_duration_s(text: str) -> float:
    """`500ms`, `1.5s`, `2m` or `1h` as seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} is not a duration", hint="write a number and a unit, such as 500ms or 1.5s"
        )
    return float(match["number"]) * _UNITS_S[match["unit"]]


def parse_slo(text: str, default: Slo = DEFAULT_SLO) -> Slo:
    """`ttft=500ms,tpot=50ms`; a bound that is left out keeps its default."""
    bounds = {"ttft": default.ttft_s, "tpot": default.tpot_s}
    given: set[str] = set()
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.partition("=")
        if name not in bounds:
            raise UsageError(
                f"unknown objective {name!r} in SLO {text!r}", hint="accepted: ttft=...,tpot=..."
            )
        if name in given:
            raise UsageError(f"the objective {name} is given twice in SLO {text!r}", hint="leave one out")
        given.add(name)
        bounds[name] = parse_duration_s(value)
        if bounds[name] <= 0:
            raise UsageError(f"the objective {item!r} cannot be met", hint="write a time above zero")
    return Slo(ttft_s=bounds["ttft"], tpot_s=bounds["tpot"])
