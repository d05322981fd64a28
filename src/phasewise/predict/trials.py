"""Replays of a window as it was, each with other costs and other requests, and of the same after a change.

What was is replayed once, however many changes are tried on it. What the replays say is effects.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from phasewise.costs.step_work import StepKind, StepWork
from phasewise.predict.drafting import Drafting, drafting_of
from phasewise.predict.drawn_costs import DrawnForm
from phasewise.predict.figures import Figures
from phasewise.predict.known_costs import KnownCosts
from phasewise.predict.replay import replay
from phasewise.predict.setup import Setup
from phasewise.predict.stretches import drawn_stretch
from phasewise.predict.traffic import Traffic

DRAWS = 30


@dataclass(frozen=True, slots=True)
class Draw:
    """A pair of replays, alike but for the change."""

    before: Figures
    after: Figures


@dataclass(frozen=True, slots=True)
class Strangeness:
    """The share of its time that a replay spends in steps unlike any that were seen, most of it in `kind`."""

    share: float
    kind: StepKind | None


@dataclass(frozen=True, slots=True)
class _Trial:
    traffic: Traffic
    form: DrawnForm
    beyond_marks: float
    before: Figures


class Trials:
    """A window that changes are tried on, so many times each."""

    def __init__(
        self,
        traffic: Traffic,
        costs: KnownCosts,
        setup: Setup,
        rng: np.random.Generator,
        count: int = DRAWS,
    ) -> None:
        self._traffic = traffic
        self._count = count
        self._costs = costs
        self._setup = setup
        self._rng = rng
        self._trials: tuple[_Trial, ...] = ()

    def draws(self, after: Setup) -> tuple[Draw, ...]:
        """Every trial with the change."""
        self._trials = self._trials or tuple(self._trial() for _ in range(self._count))
        return tuple(
            Draw(trial.before, self._replay(trial.traffic, after, trial.form, trial.beyond_marks))
            for trial in self._trials
        )

    def strangeness(self, setup: Setup) -> Strangeness:
        """How much of a setup's time lies where nobody has been."""
        visited = _Visited(self._costs)
        # The same stretch every time: what is asked is which steps there are, not how they vary.
        some = drawn_stretch(self._traffic, np.random.default_rng(0))
        replay(some, setup, visited, drafting=drafting_of(setup.drafts), beyond_marks=0.5)
        return visited.strangeness

    def _trial(self) -> _Trial:
        some, form = drawn_stretch(self._traffic, self._rng), DrawnForm(self._costs, self._rng)
        beyond_marks = float(self._rng.random())
        return _Trial(some, form, beyond_marks, self._replay(some, self._setup, form, beyond_marks))

    def _replay(self, some: Traffic, setup: Setup, form: DrawnForm, beyond_marks: float) -> Figures:
        drafting = self._drawn_drafting(setup)
        return replay(some, setup, form.run_cost(), drafting=drafting, beyond_marks=beyond_marks)

    def _drawn_drafting(self, setup: Setup) -> Drafting:
        """Readings drawn anew: a few answers do not tell exactly what others yield."""
        readings = setup.drafts
        chosen = self._rng.integers(len(readings), size=len(readings)) if readings else ()
        return drafting_of([readings[at] for at in chosen])


@dataclass(slots=True)
class _Visited:
    """The fitted cost of steps, which remembers how long it spoke of steps that nobody has seen."""

    costs: KnownCosts
    total_s: float = 0.0
    unknown_s: dict[StepKind, float] = field(default_factory=dict)

    def __call__(self, work: StepWork) -> float:
        known = self.costs.of(work)
        seconds = known.cost(work)
        self.total_s += seconds
        if not known.seen:
            self.unknown_s[work.kind] = self.unknown_s.get(work.kind, 0.0) + seconds
        return seconds

    @property
    def strangeness(self) -> Strangeness:
        """What was remembered."""
        kind = max(self.unknown_s, key=lambda each: self.unknown_s[each], default=None)
        return Strangeness(sum(self.unknown_s.values()) / max(self.total_s, 1e-12), kind)
