"""A fit as plain JSON types and back, so that one command can use what another learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

from phasewise.core.errors import ConfigError
from phasewise.core.statistics import Interval
from phasewise.costs.fit.observation import Regime
from phasewise.costs.fit.solve import FittedCost
from phasewise.costs.fit.step import CostPart, StepCost, StepKind
from phasewise.costs.fit.step_fit import StepFit

FIT_RECORD = "phasewise step costs"
FIT_RECORD_VERSION = 1

_HINT = "write it again: phasewise engine calibrate URL --save FILE"


def fit_record(fit: StepFit) -> dict[str, Any]:
    return {
        "record": FIT_RECORD,
        "v": FIT_RECORD_VERSION,
        "observations": fit.observations,
        "cost": asdict(fit.cost),
        "front_end_s": fit.fitted.front_end_s,
        "intervals": {part.value: asdict(interval) for part, interval in fit.intervals.items()},
        "knee_tokens_interval": asdict(fit.knee_tokens),
        "front_end_s_interval": asdict(fit.front_end_s),
        "held_out_errors": {kind.value: list(errors) for kind, errors in fit.errors.items()},
        "regimes": [list(regime) for regime in sorted(fit.seen)],
        "weights_read_s": fit.weights_read_s,
        "draws": [asdict(draw) for draw in fit.draws],
    }


def fit_from_record(record: object) -> StepFit:
    """The fit from its record; raises ConfigError that names what is wrong."""
    if not isinstance(record, Mapping) or record.get("record") != FIT_RECORD:
        raise ConfigError("the file does not contain step costs", hint=_HINT)
    if record.get("v") != FIT_RECORD_VERSION:
        raise ConfigError(
            f"step costs of version {record.get('v')!r} cannot be read, only {FIT_RECORD_VERSION}", hint=_HINT
        )
    try:
        return StepFit(
            fitted=FittedCost(_cost(record["cost"]), _seconds(record["front_end_s"])),
            intervals={part: _interval(record["intervals"][part.value]) for part in CostPart},
            knee_tokens=_interval(record["knee_tokens_interval"]),
            front_end_s=_interval(record["front_end_s_interval"]),
            errors={
                StepKind(kind): tuple(sorted(map(_finite, errors)))
                for kind, errors in record["held_out_errors"].items()
            },
            seen=frozenset(map(_regime, record["regimes"])),
            observations=int(record["observations"]),
            weights_read_s=None if record["weights_read_s"] is None else _seconds(record["weights_read_s"]),
            draws=tuple(
                FittedCost(_cost(draw["step"]), _seconds(draw["front_end_s"]))
                for draw in record.get("draws", ())
            ),
        )
    except KeyError as error:
        raise ConfigError(f"the step costs lack {error}", hint=_HINT) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"the step costs cannot be read ({error})", hint=_HINT) from error


def _cost(record: Mapping[str, Any]) -> StepCost:
    knee_tokens = int(record["knee_tokens"])
    parts = {name: _seconds(value) for name, value in record.items() if name != "knee_tokens"}
    return StepCost(knee_tokens=knee_tokens, **parts)


def _interval(record: Mapping[str, Any]) -> Interval:
    low, high = _finite(record["low"]), _finite(record["high"])
    if low > high:
        raise ValueError(f"an interval from {low:g} to {high:g}")
    return Interval(low, high, _finite(record["confidence"]))


def _regime(record: list[Any]) -> Regime:
    prompts, decodes, reach = map(int, record)
    return prompts, decodes, reach


def _seconds(value: object) -> float:
    seconds = _finite(value)
    if seconds < 0:
        raise ValueError(f"{seconds:g} is not a duration")
    return seconds


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)
