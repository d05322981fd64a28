"""From evidence to a verdict whose fixes say what they would bring: the same way for every command."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from phasewise.bench.session import RunSpec
from phasewise.config import Levers
from phasewise.costs.step_fit import StepFit
from phasewise.diagnosis.fix import Advice
from phasewise.diagnosis.picture import Picture, explained
from phasewise.diagnosis.verdict import Verdict, judge
from phasewise.model.slo import Slo
from phasewise.observe.evidence import FIT_SEED, Evidence, picture_of
from phasewise.observe.window_fit import fit_window
from phasewise.predict.effects import beyond_replay, predict_advice
from phasewise.predict.setup import setup_of
from phasewise.predict.traffic import recorded_traffic
from phasewise.workload.arrivals import ClosedLoop

REPLAY_SEED = 1
"""The same evidence gives the same prediction."""
NO_COSTS = (
    "what steps cost here is not known: the window has too few recorded steps "
    "(`phasewise calibrate URL --save FILE`, then --costs FILE)"
)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known beside the evidence: costs from a calibration, the levers of a fleet file, and how many
    clients sent in a closed loop; without such a number requests came at their own times. The first `warm_up`
    requests are those that a measurement of the same load leaves out."""

    fit: StepFit | None = None
    levers: Levers | None = None
    concurrency: int | None = None
    warm_up: int = 0


def concurrency_of(spec: RunSpec) -> int | None:
    """How many clients a load of our own has; None where it comes at its own times."""
    load = spec.plan.load
    return load.concurrency if isinstance(load, ClosedLoop) else None


def reach_verdict(evidence: Evidence, slo: Slo, known: Known) -> Verdict:
    """Judge what was seen, and predict what each fix for the top finding would bring."""
    verdict = judge(picture_of(evidence, slo, known.fit), slo)
    advice = verdict.advice
    if advice is None or not advice.fixes:
        return verdict
    return replace(verdict, foreseen=_foreseen(advice, verdict.picture, evidence, known))


def _foreseen(advice: Advice, picture: Picture, evidence: Evidence, known: Known) -> Advice:
    timelines = explained(evidence.timelines, evidence.logs)
    traffic = recorded_traffic(timelines, concurrency=known.concurrency, warm_up=known.warm_up)
    setup = setup_of(traffic, picture.engines, known.levers)
    if picture.fit is None:
        fixes = (replace(fix, unpredictable=beyond_replay(fix, setup) or NO_COSTS) for fix in advice.fixes)
        return replace(advice, fixes=tuple(fixes))
    rng = np.random.default_rng(REPLAY_SEED)
    return predict_advice(advice, traffic, picture.fit, setup, rng, others=_window_fits(evidence, known))


def _window_fits(evidence: Evidence, known: Known) -> tuple[StepFit, ...]:
    """The window's own costs stand beside a calibration's: they have seen steps that it has not."""
    if known.fit is None:
        return ()
    own = fit_window(evidence.logs, np.random.default_rng(FIT_SEED), evidence.setups)
    return () if own is None else (own,)
