"""The effect of one change: the window is replayed without and with it, with costs drawn at random.

Both replays have the same requests and the same cost errors by region; errors per run and draft outcomes are
independent, as in two real runs. Only their ratio is reported. The difference between the replay and the
measurement widens the interval; beyond a bound there is no prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, log1p

import numpy as np

from phasewise.core.slo import Slo
from phasewise.core.statistics import Interval
from phasewise.costs.fit.step import StepKind, StepWork
from phasewise.costs.fit.step_fit import CONFIDENCE, StepFit
from phasewise.diagnosis.advice.fix import Advice, Effect, Figure, Fix, LeverChange, PredictedChange
from phasewise.diagnosis.predict.costs import DrawnForm, KnownCosts, RunCost
from phasewise.diagnosis.predict.replay import figures_of_replay, lost_in_replay_s, replay, replay_requests
from phasewise.diagnosis.predict.setup import (
    Drafting,
    DraftReading,
    Setup,
    Unpredictable,
    changed,
    drafting_of,
)
from phasewise.diagnosis.predict.traffic import Figures, RecordedTraffic, drawn_stretch

DRAWS = 30
LEAST_WIDENING = 0.05
"""The least width of an interval. A comparison calls servers that differ by less than this equivalent."""
FEWEST_REQUESTS = 8
"""With fewer requests a median is not meaningful."""
MOST_UNUSABLE = 0.4
"""With a larger share of requests that cannot be replayed, the replay is not the measured load."""
MOST_UNKNOWN = 0.1
"""A replay may spend at most this share of its time outside measured step sizes."""
MOST_OFF = 2.0
"""A replay that differs from the measurement by more than this factor is not used."""
MOST_WIDE = 4.0
"""An interval whose ends are further apart than this factor (from half to double) is not useful."""

NO_LEVER = "a replay does not model this change"
OUTSIDE_COSTS = "is outside measured step sizes"


def predict_advice(
    advice: Advice,
    traffic: RecordedTraffic,
    fit: StepFit,
    setup: Setup,
    rng: np.random.Generator,
    *,
    others: Sequence[StepFit] = (),
    drafts: Sequence[DraftReading] = (),
    slo: Slo | None = None,
) -> Advice:
    """The advice with the effect of each fix alone, or the reason why there is none.

    `fit` has the step costs, `others` cover steps that it lacks, such as the window's own fit beside a
    calibration's. `drafts` are readings of speculative decoding, for a change that turns it on.
    """
    trials = ReplayTrials(traffic, KnownCosts((fit, *others)), setup, rng, slo=slo)

    def predicted(fix: Fix) -> Fix:
        if fix.lever is None:
            return replace(fix, unpredictable=NO_LEVER)
        found = trials.effect(fix.lever, drafts, fix.aims_at)
        if isinstance(found, Unpredictable):
            return replace(fix, unpredictable=found.reason)
        return replace(fix, effect=found)

    return replace(advice, fixes=tuple(map(predicted, advice.fixes)))


def beyond_replay(fix: Fix, setup: Setup) -> str:
    """Why a fix cannot be replayed at all; empty if it can."""
    if fix.lever is None:
        return NO_LEVER
    after = changed(setup, fix.lever)
    return after.reason if isinstance(after, Unpredictable) else ""


@dataclass(frozen=True, slots=True)
class _Trial:
    """Requests and costs that were drawn together, and a replay of the window with them as it was."""

    traffic: RecordedTraffic
    form: DrawnForm
    beyond_marks: float
    before: Figures
    lost_s: float


@dataclass(frozen=True, slots=True)
class Draw:
    """A pair of replays that differ only in the change, and the seconds that each lost."""

    before: Figures
    after: Figures
    lost_before_s: float
    lost_after_s: float


class ReplayTrials:
    """A window on which each change is tried `count` times, by an objective if there is one."""

    def __init__(
        self,
        traffic: RecordedTraffic,
        costs: KnownCosts,
        setup: Setup,
        rng: np.random.Generator,
        count: int = DRAWS,
        slo: Slo | None = None,
    ) -> None:
        self._traffic = traffic
        self._slo = slo
        self._count = count
        self._costs = costs
        self._setup = setup
        self._rng = rng
        self._trials: tuple[_Trial, ...] = ()

    def effect(
        self, change: LeverChange, drafts: Sequence[DraftReading] = (), aims_at: Figure | None = None
    ) -> Effect | Unpredictable:
        """The effect of one change, or why there is none, also on the figure that it `aims_at` alone."""
        after = changed(self._setup, change, drafts)
        if isinstance(after, Unpredictable):
            return after
        if (rejection := _too_little(self._traffic) or self._strange_steps(after)) is not None:
            return rejection
        self._trials = self._trials or tuple(self._trial() for _ in range(self._count))
        return _effect(self._traffic, tuple(self._draw(trial, after) for trial in self._trials), aims_at)

    def _strange_steps(self, after: Setup) -> Unpredictable | None:
        for setup, when in ((self._setup, "before the change"), (after, "after the change")):
            visited = _Visited(self._costs)
            # Always the same requests: this is about which steps occur, not how they vary.
            some = drawn_stretch(self._traffic, np.random.default_rng(0))
            replay(some, setup, visited, drafting=drafting_of(setup.drafts), beyond_marks=0.5)
            share = sum(visited.unknown_s.values()) / max(visited.total_s, 1e-12)
            if share > MOST_UNKNOWN:
                kind = max(visited.unknown_s, key=lambda each: visited.unknown_s[each])
                return Unpredictable(
                    f"{share:.0%} of the time {when}, mostly in {kind} steps, {OUTSIDE_COSTS}"
                )
        return None

    def _trial(self) -> _Trial:
        some, form = drawn_stretch(self._traffic, self._rng), DrawnForm(self._costs, self._rng)
        beyond_marks = float(self._rng.random())
        return _Trial(some, form, beyond_marks, *self._replay(some, self._setup, form, beyond_marks))

    def _draw(self, trial: _Trial, after: Setup) -> Draw:
        figures, lost_after_s = self._replay(trial.traffic, after, trial.form, trial.beyond_marks)
        return Draw(trial.before, figures, trial.lost_s, lost_after_s)

    def _replay(
        self, some: RecordedTraffic, setup: Setup, form: DrawnForm, beyond_marks: float
    ) -> tuple[Figures, float]:
        drafting = self._drawn_drafting(setup)
        found = replay_requests(some, setup, RunCost(form), drafting=drafting, beyond_marks=beyond_marks)
        lost = 0.0 if self._slo is None else lost_in_replay_s(found, some, self._slo)
        return figures_of_replay(found, some), lost

    def _drawn_drafting(self, setup: Setup) -> Drafting:
        """Resampled readings: a few answers are not exact."""
        readings = setup.drafts
        chosen = self._rng.integers(len(readings), size=len(readings)) if readings else ()
        return drafting_of([readings[at] for at in chosen])


@dataclass(slots=True)
class _Visited:
    """The fitted cost of steps, which adds up the time outside measured step sizes."""

    costs: KnownCosts
    total_s: float = 0.0
    unknown_s: dict[StepKind, float] = field(default_factory=dict)

    def __call__(self, work: StepWork) -> float:
        found = self.costs.of(work)
        seconds = found.cost(work)
        self.total_s += seconds
        if not found.seen:
            self.unknown_s[work.kind] = self.unknown_s.get(work.kind, 0.0) + seconds
        return seconds


def _too_little(traffic: RecordedTraffic) -> Unpredictable | None:
    usable = len(traffic.requests)
    if usable - traffic.warm_up < FEWEST_REQUESTS:
        return Unpredictable(f"only {usable} requests have enough data to be replayed")
    if traffic.unusable > MOST_UNUSABLE * (usable + traffic.unusable):
        return Unpredictable(
            f"{traffic.unusable} of {usable + traffic.unusable} requests have too little data to be replayed"
        )
    return None


def _effect(
    traffic: RecordedTraffic, draws: Sequence[Draw], aims_at: Figure | None
) -> Effect | Unpredictable:
    off_by = _off_by(traffic.measured, draws)
    credible = [
        _change(figure, traffic.measured[figure], draws, off)
        for figure, off in off_by.items()
        if off <= log(MOST_OFF)
    ]
    if not credible:
        worst = max(off_by.values(), default=0.0)
        return Unpredictable(f"the replay differs from the measurement by a factor of {exp(worst):.1f}")
    sharp = tuple(change for change in credible if _width(change) <= MOST_WIDE)
    if not sharp or (aims_at and all(change.figure is not aims_at for change in sharp)):
        return _not_reported(credible, aims_at)
    return Effect(
        changes=sharp,
        requests=len(traffic.requests),
        draws=len(draws),
        replay_off_by=exp(max(off_by[change.figure] for change in sharp)) - 1,
        gain=_gain(draws),
    )


def _gain(draws: Sequence[Draw]) -> float | None:
    """The share of the lost seconds that the change takes away; None if nothing is lost in the replay."""
    before_s, after_s = (
        sum(each.lost_before_s for each in draws),
        sum(each.lost_after_s for each in draws),
    )
    return 1.0 - after_s / before_s if before_s > 0 else None


def _not_reported(credible: Sequence[PredictedChange], aims_at: Figure | None) -> Unpredictable:
    """Why there is no prediction of the figure that the fix aims at, or of any."""
    wide = [_width(change) for change in credible if aims_at in {None, change.figure}]
    if not wide:
        return Unpredictable(f"the replay differs too much from the measured {aims_at}")
    return Unpredictable(f"the costs are too uncertain: the interval spans a factor of {min(wide):.1f}")


def _width(change: PredictedChange) -> float:
    return change.interval.high / change.interval.low


def _off_by(measured: Figures, draws: Sequence[Draw]) -> Mapping[Figure, float]:
    """The difference between replay and measurement by figure, as a logarithm."""
    known = [
        figure for figure in measured if all(figure in each.before and figure in each.after for each in draws)
    ]
    return {
        figure: abs(log(float(np.median([each.before[figure] for each in draws])) / measured[figure]))
        for figure in known
    }


def _change(figure: Figure, measured: float, draws: Sequence[Draw], off_by: float) -> PredictedChange:
    logs = [log(each.after[figure] / each.before[figure]) for each in draws]
    low, middle, high = np.quantile(logs, [(1 - CONFIDENCE) / 2, 0.5, (1 + CONFIDENCE) / 2])
    widening = max(off_by, log1p(LEAST_WIDENING))
    interval = Interval(exp(low - widening), exp(high + widening), CONFIDENCE)
    return PredictedChange(figure, measured, exp(middle), interval)
