"""What one change would bring: the window replayed as it was and as it would be, with costs drawn anew.

Both are replayed with the same requests, and with costs that miss the same regions of work by as much; each
has its own mood and its own guesses, as two runs have. Only their ratio is told. How far the replay of what
was lies from what was measured widens the interval; beyond a bound nothing is told at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log, log1p

import numpy as np

from phasewise.costs.step_fit import CONFIDENCE, StepFit
from phasewise.diagnosis.fix import Advice, Effect, Figure, Fix, LeverChange, PredictedChange
from phasewise.model.interval import Interval
from phasewise.predict.drafting import DraftReading
from phasewise.predict.figures import Figures
from phasewise.predict.known_costs import KnownCosts
from phasewise.predict.setup import Setup, Unpredictable, changed
from phasewise.predict.traffic import Traffic
from phasewise.predict.trials import DRAWS, Draw, Trials

LEAST_WIDENING = 0.05
"""Costs that are known exactly would give an interval without width. A comparison calls servers that differ
by less than this equivalent, so nothing is told more finely."""
FEWEST_REQUESTS = 8
"""A median of fewer requests is one request's."""
MOST_UNUSABLE = 0.4
"""With a larger share of requests that cannot be replayed, the load is not the one that was measured."""
MOST_UNKNOWN = 0.1
"""A change may spend at most this share of its time in steps unlike any that costs were fitted to."""
MOST_OFF = 2.0
"""A replay that is further from what was measured than this factor is of something else."""
MOST_WIDE = 4.0
"""An interval whose ends are further apart than this factor, from a half to a double, holds every outcome
that somebody would have guessed: it says nothing."""

NO_LEVER = "it changes something that a replay does not hold"


def predict_effect(
    traffic: Traffic,
    fit: StepFit,
    setup: Setup,
    change: LeverChange,
    rng: np.random.Generator,
    *,
    others: Sequence[StepFit] = (),
    drafts: Sequence[DraftReading] = (),
    draws: int = DRAWS,
) -> Effect | Unpredictable:
    """The effect of one change on this traffic.

    `fit` knows what steps cost, `others` speak of steps that it has not seen: the window's own fit beside a
    calibration's, say. `drafts` are readings of what guessing would bring, for a change that turns it on.
    Nothing but `rng` is random, and nothing is read from anywhere.
    """
    trials = Trials(traffic, KnownCosts((fit, *others)), setup, rng, draws)
    return _predict(traffic, setup, trials, change, drafts)


def predict_advice(
    advice: Advice,
    traffic: Traffic,
    fit: StepFit,
    setup: Setup,
    rng: np.random.Generator,
    *,
    others: Sequence[StepFit] = (),
    drafts: Sequence[DraftReading] = (),
) -> Advice:
    """The same advice, each fix with its effect, or with why there is none; each is tried alone."""
    trials = Trials(traffic, KnownCosts((fit, *others)), setup, rng)

    def predicted(fix: Fix) -> Fix:
        if fix.lever is None:
            return replace(fix, unpredictable=NO_LEVER)
        found = _predict(traffic, setup, trials, fix.lever, drafts, fix.aims_at)
        if isinstance(found, Unpredictable):
            return replace(fix, unpredictable=found.reason)
        return replace(fix, effect=found)

    return replace(advice, fixes=tuple(map(predicted, advice.fixes)))


def beyond_replay(fix: Fix, setup: Setup) -> str:
    """Why no replay can tell what a fix brings, whatever is known of costs; empty where one might."""
    if fix.lever is None:
        return NO_LEVER
    after = changed(setup, fix.lever)
    return after.reason if isinstance(after, Unpredictable) else ""


def _predict(
    traffic: Traffic,
    setup: Setup,
    trials: Trials,
    change: LeverChange,
    drafts: Sequence[DraftReading],
    aims_at: Figure | None = None,
) -> Effect | Unpredictable:
    after = changed(setup, change, drafts)
    if isinstance(after, Unpredictable):
        return after
    refusal = _too_little(traffic) or _strange_steps(trials, setup, after)
    return refusal or _effect(traffic, trials.draws(after), aims_at)


def _too_little(traffic: Traffic) -> Unpredictable | None:
    usable = len(traffic.requests)
    if usable - traffic.warm_up < FEWEST_REQUESTS:
        return Unpredictable(f"only {usable} requests told enough to be replayed")
    if traffic.unusable > MOST_UNUSABLE * (usable + traffic.unusable):
        return Unpredictable(
            f"{traffic.unusable} of {usable + traffic.unusable} requests told too little to be replayed"
        )
    return None


def _strange_steps(trials: Trials, before: Setup, after: Setup) -> Unpredictable | None:
    for setup, when in ((before, "as it is"), (after, "after the change")):
        found = trials.strangeness(setup)
        if found.share > MOST_UNKNOWN:
            return Unpredictable(
                f"{found.share:.0%} of the time would be spent, {when}, in steps unlike any whose time is "
                f"known, {found.kind} steps most of all"
            )
    return None


def _effect(traffic: Traffic, draws: Sequence[Draw], aims_at: Figure | None) -> Effect | Unpredictable:
    off_by = _off_by(traffic.measured, draws)
    credible = [
        _change(figure, traffic.measured[figure], draws, off)
        for figure, off in off_by.items()
        if off <= log(MOST_OFF)
    ]
    if not credible:
        worst = max(off_by.values(), default=0.0)
        return Unpredictable(
            f"the replay does not look like what was measured (off by a factor of {exp(worst):.1f})"
        )
    sharp = tuple(change for change in credible if _width(change) <= MOST_WIDE)
    if not sharp or (aims_at and all(change.figure is not aims_at for change in sharp)):
        return _not_told(credible, aims_at)
    return Effect(
        changes=sharp,
        requests=len(traffic.requests),
        draws=len(draws),
        replay_off_by=exp(max(off_by[change.figure] for change in sharp)) - 1,
    )


def _not_told(credible: Sequence[PredictedChange], aims_at: Figure | None) -> Unpredictable:
    """Why nothing is told of the figure that counts, or of any."""
    wide = [_width(change) for change in credible if aims_at in {None, change.figure}]
    if not wide:
        return Unpredictable(f"the replay does not look like the measured {aims_at}")
    return Unpredictable(f"costs are known too poorly here: the interval spans a factor of {min(wide):.1f}")


def _width(change: PredictedChange) -> float:
    return change.interval.high / change.interval.low


def _off_by(measured: Figures, draws: Sequence[Draw]) -> Mapping[Figure, float]:
    """How far the replay of what was is from what was measured, as a logarithm, figure by figure."""
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
