"""Steps that vary around their cost as on a real machine, by noise with a known distribution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, sqrt
from random import Random

from phasewise.core.errors import UsageError
from phasewise.costs.fit.step import StepSeconds, StepWork


@dataclass(frozen=True, slots=True)
class Jitter:
    """How much steps vary: log-normal factors with mean 1, so that they take their cost on average.

    `spread` is the standard deviation of the logarithm of each step's own factor, and `drift_spread` that of
    a factor shared with neighbouring steps: an AR(1) process whose correlation falls to 1/e after
    `drift_steps` steps. So blocks measured at different times differ.
    """

    spread: float = 0.0
    seed: int = 0
    drift_spread: float = 0.0
    drift_steps: float = 1000.0

    def __post_init__(self) -> None:
        if not (0 <= self.spread <= 2 and 0 <= self.drift_spread <= 2):
            raise UsageError(
                f"steps cannot vary by {self.spread:g} and drift by {self.drift_spread:g}",
                hint="use 0 to 2; 0.1 is about 10% of a step's length",
            )
        if not self.drift_steps > 0:
            raise UsageError(f"drift_steps is {self.drift_steps:g}", hint="use a number above 0")

    def of_engine(self, index: int) -> Jitter:
        """The same noise for one engine of a fleet, but drawn independently; the first engine keeps the seed.

        Fleets with neighbouring seeds are independent too.
        """
        if index == 0:
            return self
        return replace(self, seed=Random(f"{self.seed}/{index}").getrandbits(64))  # noqa: S311 - no secret


class JitteredCost:
    """A cost with noise. Every call draws the next step's factor, so each engine needs its own."""

    def __init__(self, cost: StepSeconds, jitter: Jitter, rng: Random) -> None:
        self._cost = cost
        self._jitter = jitter
        self._rng = rng
        self._memory = exp(-1.0 / jitter.drift_steps)
        self._fresh_drift = jitter.drift_spread * sqrt(1.0 - self._memory**2)
        self._drift = rng.gauss(0.0, jitter.drift_spread)
        # For normal x the mean of exp(x) is exp(variance / 2), which is subtracted.
        self._mean_log = -(jitter.spread**2 + jitter.drift_spread**2) / 2

    def __call__(self, work: StepWork) -> float:
        """Seconds of the next step."""
        self._drift = self._memory * self._drift + self._rng.gauss(0.0, self._fresh_drift)
        own = self._rng.gauss(0.0, self._jitter.spread)
        return self._cost(work) * exp(self._mean_log + self._drift + own)
