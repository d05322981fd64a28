"""What steps cost here, learned from the window's own step records.

A window is not a calibration: it holds what the traffic happened to do. Too few kinds of steps give no fit.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

import numpy as np

from phasewise.costs.observation import Observation
from phasewise.costs.regimes import RegimeStore
from phasewise.costs.step_fit import StepFit, fit_steps
from phasewise.costs.step_history import observed_steps
from phasewise.diagnosis.attribution import Logs
from phasewise.errors import MeasurementError
from phasewise.model.steps import EngineStep

FIT_STEPS = 10_000
"""More steps than a recorder holds tell nothing new and take seconds to work through."""
KEPT_PER_REGIME = 24
DRAWS = 24
"""Half of what a calibration does, and less: a verdict is waited for."""


def fit_window(
    logs: Logs, rng: np.random.Generator, setups: Mapping[str, Hashable] | None = None
) -> StepFit | None:
    """The cost of a step of the engines that stepped most; None where too little can be told.

    Engines of another set-up than the busiest, as `setups` names them, have costs of their own and stay out.
    """
    counts = {name: sum(map(len, ranks)) for name, ranks in logs.items()}
    if not counts:
        return None
    busiest = max(counts, key=lambda name: counts[name])
    setups = setups or {}
    alike = [name for name in logs if setups.get(name) == setups.get(busiest)]
    observations: list[Observation] = []
    left = FIT_STEPS
    for name in sorted(alike, key=lambda each: -counts[each]):
        steps = _latest_steps(logs, name, left)
        observations += observed_steps(steps).observations
        left -= len(steps)
        if left <= 0:
            break
    try:
        found = fit_steps(list(RegimeStore(observations, kept=KEPT_PER_REGIME)), rng, draws=DRAWS)
    except MeasurementError:
        return None
    return replace(found, engines=frozenset(alike))


def _latest_steps(logs: Logs, name: str, most: int) -> list[EngineStep]:
    steps = [timed.step for log in logs[name] for timed in log.steps]
    return sorted(steps, key=lambda step: step.seq)[-most:]
