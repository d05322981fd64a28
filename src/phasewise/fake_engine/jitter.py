"""Steps that vary around their cost, as a real machine's do, by noise whose distribution is known.

The noise multiplies a cost and so stays outside the virtual engine; what a step costs on average is
costs.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, sqrt
from random import Random

from phasewise.costs.step_work import StepSeconds, StepWork
from phasewise.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Jitter:
    """How much steps vary: log-normal factors with mean 1, so that on average they take what they cost.

    `spread` is the standard deviation of the logarithm of a factor each step draws for itself, and
    `drift_spread` that of one which it shares with its neighbours, the weather of a machine: an AR(1) process
    that after `drift_steps` steps remembers 1/e of itself. So blocks measured at different times differ.
    """

    spread: float = 0.0
    seed: int = 0
    drift_spread: float = 0.0
    drift_steps: float = 1000.0

    def __post_init__(self) -> None:
        if not (0 <= self.spread <= 2 and 0 <= self.drift_spread <= 2):
            raise ConfigError(
                f"steps cannot vary by {self.spread:g} and drift by {self.drift_spread:g}",
                hint="use 0 to 2; 0.1 is about 10% of a step's length",
            )
        if not self.drift_steps > 0:
            raise ConfigError(f"a drift over {self.drift_steps:g} steps is none", hint="use a number above 0")

    def of_engine(self, index: int) -> Jitter:
        """As much noise for one engine of a fleet, but noise of its own: only the first keeps the seed.

        Fleets with neighbouring seeds share none either.
        """
        if index == 0:
            return self
        return replace(self, seed=Random(f"{self.seed}/{index}").getrandbits(64))  # noqa: S311 - no secret


class JitteredCost:
    """A cost with noise. Every call draws the next step's factor, so two engines must not share one."""

    def __init__(self, cost: StepSeconds, jitter: Jitter, rng: Random) -> None:
        self._cost = cost
        self._jitter = jitter
        self._rng = rng
        self._memory = exp(-1.0 / jitter.drift_steps)
        self._fresh_drift = jitter.drift_spread * sqrt(1.0 - self._memory**2)
        self._drift = rng.gauss(0.0, jitter.drift_spread)
        # For normal x the mean of exp(x) is exp(variance / 2), which is taken off.
        self._mean_log = -(jitter.spread**2 + jitter.drift_spread**2) / 2

    def __call__(self, work: StepWork) -> float:
        """Seconds of the next step."""
        self._drift = self._memory * self._drift + self._rng.gauss(0.0, self._fresh_drift)
        own = self._rng.gauss(0.0, self._jitter.spread)
        return self._cost(work) * exp(self._mean_log + self._drift + own)
