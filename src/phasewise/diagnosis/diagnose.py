"""From evidence to a verdict: analyze the window, find what is slow and why, advise, predict.

Everything here is pure: the same evidence gives the same verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from phasewise.core.latency import ttft_breakdown
from phasewise.core.slo import Slo
from phasewise.core.steps import EngineStep
from phasewise.core.timeline import Part, Timeline
from phasewise.costs.fit.observation import Observation
from phasewise.costs.fit.step_fit import StepFit
from phasewise.diagnosis.advice.choose import advise, engines_back_first
from phasewise.diagnosis.advice.fix import Advice, Fix, by_gain
from phasewise.diagnosis.analysis.attribution import Readings, explained, readings_of
from phasewise.diagnosis.analysis.counter_series import series_of
from phasewise.diagnosis.analysis.counters import (
    counter_summary,
    with_counted_phases,
    with_counters,
)
from phasewise.diagnosis.analysis.engine_counters import engine_counters
from phasewise.diagnosis.analysis.engine_load import YOUNG_S, EngineSurroundings, SeenBy
from phasewise.diagnosis.analysis.kv_transfer_use import kv_transfer_use
from phasewise.diagnosis.analysis.prefix_use import prefix_use
from phasewise.diagnosis.analysis.probe_reading import probe_reading
from phasewise.diagnosis.analysis.standstill import (
    Standstill,
    standstills_of_loads,
    standstills_of_steps,
)
from phasewise.diagnosis.analysis.streams import stream_summary
from phasewise.diagnosis.analysis.ttft import start_summary
from phasewise.diagnosis.analysis.window_summary import (
    Unnamed,
    WindowSummary,
    WorkloadShape,
    outcome_counts,
    rejections,
    trust_of,
    workload_shape,
)
from phasewise.diagnosis.analysis.workload_profile import workload_profile
from phasewise.diagnosis.evidence import Evidence
from phasewise.diagnosis.predict.costs import Costs, KnownCosts, fit_window, steps_by_engine
from phasewise.diagnosis.predict.counted import Typical, counted_costs, counted_requests, counted_steps
from phasewise.diagnosis.predict.effects import OUTSIDE_COSTS, beyond_replay, predict_advice
from phasewise.diagnosis.predict.setup import Setup, setup_of
from phasewise.diagnosis.predict.traffic import RecordedTraffic, recorded_traffic
from phasewise.diagnosis.predict.unnamed import unnamed_in
from phasewise.diagnosis.predict.window_replay import WindowReplay, window_replay
from phasewise.diagnosis.rules.find import starts_late, streams_slowly
from phasewise.diagnosis.verdict import Verdict, judge
from phasewise.engines.known import engine_named
from phasewise.engines.port import Ability
from phasewise.fleet.config import Levers

FIT_SEED, REPLAY_SEED = 0, 1
"""A fixed seed: the same evidence gives the same prediction."""
NO_COSTS = "step costs are unknown: the window has too few recorded steps"
CALIBRATE = " (run `phasewise engine calibrate URL --save FILE`, then use --costs FILE)"


@dataclass(frozen=True, slots=True)
class Known:
    """Known facts besides the evidence: costs from a calibration, the levers of a fleet file, and the clients
    of a closed loop (None for an open loop). The first `warm_up` requests are left out, as in a measurement
    of the same load."""

    fit: StepFit | None = None
    levers: Levers | None = None
    concurrency: int | None = None
    warm_up: int = 0


def diagnose(evidence: Evidence, slo: Slo, known: Known) -> Verdict:
    """Find what is slow in a window and why, what helps, and the predicted effect of each fix."""
    window = _window(evidence, slo, known)
    verdict = judge(window.summary, slo)
    if verdict.top is None:
        return verdict
    advice = advise(verdict.top, window.summary)
    traffic = recorded_traffic(window.timelines, concurrency=known.concurrency, warm_up=known.warm_up)
    setup = setup_of(traffic, window.summary.engines, known.levers)
    predicted = _predict(advice, traffic, setup, window, slo)
    ranked = by_gain(_tried(predicted, window.replay))
    return replace(verdict, advice=engines_back_first(ranked, verdict.top.cause, window.summary))


def find_cause(evidence: Evidence, slo: Slo, known: Known) -> Verdict:
    """The verdict without advice, whose predictions take most of the time."""
    return judge(_window(evidence, slo, known).summary, slo)


@dataclass(frozen=True, slots=True)
class _Window:
    """A window in figures, with its requests and the step costs, the most trusted first."""

    summary: WindowSummary
    timelines: tuple[Timeline, ...]
    fits: tuple[StepFit, ...]
    replay: WindowReplay | None = None


def _window(evidence: Evidence, slo: Slo, known: Known) -> _Window:
    # The window's own costs complement a calibration's: they cover other steps.
    own_fit = fit_window(evidence.logs, np.random.default_rng(FIT_SEED), evidence.setups)
    fits = tuple(fit for fit in (known.fit, own_fit) if fit is not None)
    readings = readings_of(evidence.logs, fits[0] if fits else None)
    timelines = explained(evidence.timelines, readings)
    summary = _analyse(evidence, timelines, readings, slo, fits[0] if fits else None)
    if starts_late(summary) or streams_slowly(summary):
        seen = _recorded(evidence, timelines, fits) if timelines else _counted(evidence, slo)
        if seen is not None:
            summary = replace(summary, unnamed=_unnamed(seen, summary))
            return _Window(summary, timelines, fits, _replay(seen, summary, evidence, slo, known))
    return _Window(summary, timelines, fits)


@dataclass(frozen=True, slots=True)
class _Replayable:
    """What a replay of the window takes: its requests, step costs, and each engine's steps."""

    timelines: tuple[Timeline, ...]
    costs: Costs
    steps: Sequence[Sequence[Observation]]


def _recorded(
    evidence: Evidence, timelines: tuple[Timeline, ...], fits: tuple[StepFit, ...]
) -> _Replayable | None:
    return _Replayable(timelines, KnownCosts(fits), steps_by_engine(evidence.logs)) if fits else None


def _counted(evidence: Evidence, slo: Slo) -> _Replayable | None:
    """What a replay takes of readings of counters, where no request was seen."""
    counters = engine_counters(evidence.metrics, evidence.window_s, slo)
    prompt, output, gap = counters.prompt_tokens, counters.output_tokens, counters.itl
    if prompt is None or output is None or gap is None:
        return None
    cached = (counters.prefix_hits or 0.0) / (counters.prefix_queries or 1.0)
    typical = Typical(prompt.mean, cached, output.mean, gap.mean)
    steps = [counted_steps(loads, typical) for loads in evidence.loads.values()]
    costs = counted_costs(chain.from_iterable(steps))
    if costs is None:
        return None
    requests = (counted_requests(name, loads, typical) for name, loads in evidence.loads.items())
    return _Replayable(tuple(chain.from_iterable(requests)), costs, steps)


def _replay(
    seen: _Replayable, summary: WindowSummary, evidence: Evidence, slo: Slo, known: Known
) -> WindowReplay | None:
    setup = setup_of(recorded_traffic(seen.timelines), summary.engines, known.levers)
    measured_s = None
    if summary.seen_by is SeenBy.COUNTERS:
        measured_s = sum(phase.lost_s for phase in (summary.start, summary.stream) if phase is not None)
    return window_replay(seen.timelines, setup, seen.costs, slo, evidence.window[1], measured_s)


def _unnamed(seen: _Replayable, summary: WindowSummary) -> Unnamed:
    found = unnamed_in(seen.steps, seen.costs)
    if any(engine.age_s is not None and engine.age_s < YOUNG_S for engine in summary.engines):
        # An engine's first steps take longer, which is known.
        return replace(found, in_stretches=0.0)
    return found


def _predict(advice: Advice, traffic: RecordedTraffic, setup: Setup, window: _Window, slo: Slo) -> Advice:
    """The advice with the predicted effect of each fix, or the reason why there is none."""
    fits = window.fits
    if fits:
        rng = np.random.default_rng(REPLAY_SEED)
        advice = predict_advice(advice, traffic, fits[0], setup, rng, others=fits[1:], slo=slo)
    else:
        fixes = (replace(fix, unpredictable=beyond_replay(fix, setup) or NO_COSTS) for fix in advice.fixes)
        advice = replace(advice, fixes=tuple(fixes))
    kinds = (engine_named(engine.kind) for engine in window.summary.engines)
    if not all(Ability.BE_CALIBRATED in kind.CAN for kind in kinds):
        return advice
    return replace(advice, fixes=tuple(map(_calibrating, advice.fixes)))


def _calibrating(fix: Fix) -> Fix:
    """The fix with the command that would make it predictable, if one would."""
    lacks_costs = fix.unpredictable.endswith((NO_COSTS, OUTSIDE_COSTS))
    return replace(fix, unpredictable=fix.unpredictable + CALIBRATE) if lacks_costs else fix


def _tried(advice: Advice, window: WindowReplay | None) -> Advice:
    """The advice, each fix that cannot be predicted with what it gains in one replay of the window."""
    if window is None:
        return advice
    fixes = (
        fix
        if fix.lever is None or fix.effect is not None
        else replace(fix, rough_gain=window.gain(fix.lever))
        for fix in advice.fixes
    )
    return replace(advice, fixes=tuple(fixes))


def _analyse(
    evidence: Evidence,
    timelines: tuple[Timeline, ...],
    readings: Readings,
    slo: Slo,
    fit: StepFit | None,
) -> WindowSummary:
    """The window in figures, from single requests if there are any, else from counters."""
    standstills = _standstills(evidence, readings)
    if timelines:
        found = _of_requests(evidence, timelines, readings, slo, standstills)
    else:
        found = _of_counters(evidence, slo, standstills)
    return replace(
        found,
        engines=_with_weights(evidence.surroundings, fit),
        fit=fit,
        synthetic=evidence.synthetic,
        probe_cut_short=evidence.probe_cut_short,
        probe=probe_reading(timelines) if evidence.synthetic else None,
        stolen_share=evidence.stolen_share,
        standstills=standstills,
    )


def _standstills(evidence: Evidence, readings: Readings) -> tuple[Standstill, ...]:
    """Standstills, by an engine's step record if it has one, else by its counters."""
    found: list[Standstill] = []
    for name, loads in evidence.loads.items():
        if name not in readings:
            found += standstills_of_loads(name, loads, evidence.window)
    for name, ranks in readings.items():
        for reading in ranks:
            found += standstills_of_steps(name, reading, evidence.timelines, evidence.window)
    return tuple(sorted(found, key=lambda standstill: standstill.began_unix_s))


def _with_weights(
    engines: tuple[EngineSurroundings, ...], fit: StepFit | None
) -> tuple[EngineSurroundings, ...]:
    """The engines with the time to read the weights, which only a calibration knows."""
    if fit is None or fit.weights_read_s is None:
        return engines
    return tuple(replace(engine, weights_read_s=fit.weights_read_s) for engine in engines)


def _of_counters(evidence: Evidence, slo: Slo, standstills: tuple[Standstill, ...]) -> WindowSummary:
    counters = engine_counters(evidence.metrics, evidence.window_s, slo)
    ages = {engine.name: engine.age_s for engine in evidence.surroundings if engine.age_s is not None}
    series = series_of(evidence.loads, evidence.window, standstills, ages)
    summary = counter_summary(counters, series, slo, evidence.not_observed)
    return replace(summary, workload=_with_engine_loads(summary.workload, evidence.surroundings))


def _with_engine_loads(workload: WorkloadShape, engines: Sequence[EngineSurroundings]) -> WorkloadShape:
    """Over the whole window, if engines were read throughout and not only at its end."""
    loads = [engine.engine_load for engine in engines if engine.engine_load is not None]
    if not loads:
        return workload
    usages = [load.kv_usage_max for load in loads if load.kv_usage_max is not None]
    return replace(
        workload,
        running_mean=sum(load.running_mean for load in loads),
        waiting_max=max(load.waiting_max for load in loads),
        kv_usage_max=max(usages, default=None),
    )


def _of_requests(
    evidence: Evidence,
    timelines: tuple[Timeline, ...],
    readings: Readings,
    slo: Slo,
    standstills: tuple[Standstill, ...],
) -> WindowSummary:
    kv_tokens = {
        engine.name: engine.kv_tokens for engine in evidence.surroundings if engine.kv_tokens is not None
    }
    prefix = prefix_use(timelines, kv_tokens, evidence.logs)
    profile = workload_profile(timelines, evidence.window_s, prefix, evidence.began_unix_s)
    summary = WindowSummary(
        window_s=evidence.window_s,
        seen_by=evidence.seen_by,
        start=start_summary(timelines, slo, readings, standstills),
        stream=stream_summary(timelines, slo, readings),
        workload=workload_shape(profile, _steps_of_window(evidence)),
        outcomes=outcome_counts(timelines),
        rejections=rejections(timelines),
        streamed_tokens=_streamed_tokens(evidence),
        not_observed=evidence.not_observed + _untimed(timelines),
        prefix=prefix,
        trust=trust_of(timelines, are_ours=evidence.seen_by.is_ours),
        profile=profile,
        kv_transfer=kv_transfer_use(evidence.timelines, evidence.surroundings, evidence.began_unix_s),
    )
    counters = engine_counters(evidence.metrics, evidence.window_s, slo)
    if not any(timeline.streamed for timeline in timelines):
        summary = with_counted_phases(summary, counters, slo)
    return with_counters(summary, counters, _first_tokens(evidence))


def _streamed_tokens(evidence: Evidence) -> int:
    """Pieces of answers that came within the window."""
    began_s, until_s = evidence.window
    return sum(
        began_s <= timeline.started_unix_s + at_s <= until_s
        for timeline in evidence.timelines
        for at_s in timeline.content_times_s
    )


def _first_tokens(evidence: Evidence) -> int:
    """The number of requests whose first token came within the window."""
    began_s, until_s = evidence.window
    firsts = (
        timeline.started_unix_s + timeline.content_times_s[0]
        for timeline in evidence.timelines
        if timeline.content_times_s
    )
    return sum(began_s <= first_s <= until_s for first_s in firsts)


def _steps_of_window(evidence: Evidence) -> list[EngineStep]:
    """The steps of the window: logs reach back before it, for requests that began there."""
    return [
        timed.step
        for ranks in evidence.logs.values()
        for log in ranks
        for timed in log.steps
        if timed.step.ended_unix_s >= evidence.began_unix_s
    ]


def _untimed(timelines: Sequence[Timeline]) -> tuple[str, ...]:
    """A note on requests whose engine did not report its phases, if others did."""
    answered = [found for found in map(ttft_breakdown, timelines) if found is not None]
    silent = sum(found.seconds(Part.PREFILL) is None for found in answered)
    if not 0 < silent < len(answered):
        return ()
    return (f"queue and prefill of {silent} of {len(answered)} requests: their engine did not report them",)
