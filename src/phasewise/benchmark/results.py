"""The figures of a run, from its timelines and the engine's own counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from phasewise.benchmark.engine_watch import EngineView, view_engine
from phasewise.benchmark.notes import TypicalTtft, notes_on, reported_by_engine, typical_ttft, warnings_on
from phasewise.benchmark.run import CUT_SHORT, BenchRun
from phasewise.benchmark.statistics.bootstrap import estimate, estimate_pooled
from phasewise.benchmark.statistics.stationarity import find_change
from phasewise.benchmark.statistics.summary import Summary, summarise
from phasewise.benchmark.statistics.window import Window, choose_window, punctuality, void_reasons
from phasewise.clients.host import busy_share, stolen_share
from phasewise.core import latency
from phasewise.core.latency import STALL_FACTOR, STALL_FLOOR_S, Goodput
from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.units import bound

# --- What every figure of a report means, in one sentence each, printed with it.
#
# docs/explanation/measuring.md compares tools that use the same words for other figures.

DEFINITIONS = {
    "TTFT": "from the moment a request was meant to be sent to its first chunk with content",
    "TPOT": "(E2E - TTFT) / (output tokens - 1) of one request; none for a single token",
    "ITL": "the gap between two chunks with content; pooled over all requests, and as each request's mean",
    "E2E": "from the moment a request was meant to be sent to the end of its answer, if it was whole",
    "stall": f"a gap of at least {STALL_FACTOR:g} times its stream's median and {bound(STALL_FLOOR_S)}",
    "goodput": "answers per second that met the SLO's TTFT and TPOT; as a share: of all that were offered",
    "throughput": "output tokens per second that arrived in the window, over all requests",
    "generator lag": "from the moment a request was meant to be sent to when it was; part of TTFT",
    "interval": "95%: where the percentile would lie in a repeated run, by block bootstrap over requests",
    "window": "from the end of the warm-up to the last arrival; requests that arrived in it are counted",
}


REPORT_VERSION = 2


@dataclass(frozen=True, slots=True)
class LevelShift:
    """A latency that changed its level within the window, at `at_s` seconds of the run."""

    metric: str
    at_s: float
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True)
class HostView:
    """What the generator's machine did during the run: its share of steal time, and its own work."""

    stolen_share: float
    busy_share: float
    generator_cpu_share: float


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A run in figures, over the requests that arrived in its window.

    Percentiles are None where there were too few requests. `void` says why the run does not count, if so;
    `warnings` are those notes that must be read first.
    """

    url: str
    model: str
    wall_s: float
    window: Window
    void: tuple[str, ...]
    offered: int
    succeeded: int
    unsent: int
    cut_short: bool
    slo: Slo
    goodput: Goodput
    goodput_per_s: float | None
    ttft_s: Summary
    tpot_s: Summary
    itl_pooled_s: Summary
    itl_per_request_s: Summary
    e2e_s: Summary
    stalls: int
    stalled_requests: int
    stall_excess_s: Summary
    lag_s: Summary
    loop_lag_s: Summary
    prompt_tokens: Summary
    cached_tokens: int | None
    output_tokens: Summary
    chunks: int
    output_tokens_per_s: float | None
    ended_in_window: int
    requests_per_s: float | None
    errors: dict[str, int]
    typical_ttft: TypicalTtft | None
    without_engine_timings: int
    exact_prompts: bool
    fixed_lengths: bool
    cache: str
    engine: EngineView | None
    host: HostView | None
    shifts: tuple[LevelShift, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON types."""
        facts = asdict(self)
        per_s = facts.pop("goodput_per_s")
        goodput = {"per_s": per_s, "share": self.goodput.share, "met": self.goodput.met}
        return {"v": REPORT_VERSION} | facts | {"goodput": goodput, "definitions": DEFINITIONS}


def build_report(
    run: BenchRun, slo: Slo, rng: np.random.Generator, warm_up_requests: int | None = None
) -> BenchReport:
    """Compute the figures. The first `warm_up_requests` are left out; None detects how many."""
    window = choose_window(run.timelines, run.started_unix_s, warm_up_requests)
    counted = run.timelines[window.warm_up_requests :]
    # Requests that a stop interrupted say nothing about the server.
    offered = [timeline for timeline in counted if timeline.reason != CUT_SHORT]
    ended = _ended_in(run, window)
    gaps_s = [latency.chunk_gaps_s(timeline) for timeline in counted]
    stalls = [latency.stalls(timeline) for timeline in counted]
    cached = [timeline.cached_tokens for timeline in counted if timeline.cached_tokens is not None]
    ttft_s = estimate((latency.ttft_s(timeline) for timeline in counted), rng)
    itl_s = estimate_pooled(gaps_s, rng)
    kept = punctuality(run, counted)
    shifts = _level_shifts(run, counted, rng)
    engine = _engine_view(run, window)
    return BenchReport(
        url=run.target.url,
        model=run.target.model,
        wall_s=run.wall_s,
        window=window,
        void=void_reasons(kept, ttft_s, itl_s),
        offered=len(counted),
        succeeded=sum(timeline.outcome is Outcome.SUCCEEDED for timeline in counted),
        unsent=run.unsent,
        cut_short=run.cut_short,
        slo=slo,
        goodput=latency.goodput(offered, slo),
        goodput_per_s=_per_s(sum(latency.meets(timeline, slo) for timeline in ended), window),
        ttft_s=ttft_s,
        tpot_s=estimate((latency.tpot_s(timeline) for timeline in counted), rng),
        itl_pooled_s=itl_s,
        itl_per_request_s=estimate((sum(gaps) / len(gaps) for gaps in gaps_s if gaps), rng),
        e2e_s=estimate((latency.e2e_s(timeline) for timeline in counted), rng),
        stalls=sum(map(len, stalls)),
        stalled_requests=sum(map(bool, stalls)),
        stall_excess_s=summarise(stall.excess_s for found in stalls for stall in found),
        lag_s=kept.send_lag_s,
        loop_lag_s=kept.loop_lag_s,
        prompt_tokens=summarise(timeline.prompt_tokens for timeline in counted),
        cached_tokens=sum(cached) if cached else None,
        output_tokens=summarise(timeline.output_tokens for timeline in counted),
        chunks=sum(len(timeline.content_times_s) for timeline in counted),
        output_tokens_per_s=_tokens_per_s(run, window),
        ended_in_window=len(ended),
        requests_per_s=_per_s(len(ended), window),
        errors=errors_by_kind(counted),
        typical_ttft=typical_ttft(counted),
        without_engine_timings=sum(not reported_by_engine(timeline) for timeline in counted),
        exact_prompts=run.plan.exact_prompts,
        fixed_lengths=run.fixed_lengths,
        cache="warm" if run.primed else "cold",
        engine=engine,
        host=_host_view(run),
        shifts=shifts,
        notes=notes_on(run, window, engine),
        warnings=warnings_on(run),
    )


def errors_by_kind(timelines: Sequence[Timeline]) -> dict[str, int]:
    """How many requests did not succeed, by reason, the most frequent first."""
    reasons = (
        timeline.reason or timeline.outcome.value
        for timeline in timelines
        if timeline.outcome is not Outcome.SUCCEEDED
    )
    return dict(Counter(map(str, reasons)).most_common())


def _tokens_per_s(run: BenchRun, window: Window) -> float | None:
    """Output tokens that arrived in the window; a request's tokens are spread evenly over its chunks."""
    tokens = 0.0
    for timeline in run.timelines:
        if timeline.output_tokens and timeline.content_times_s:
            start_s = timeline.started_unix_s - run.started_unix_s
            times_s = [start_s + at_s for at_s in timeline.content_times_s]
            inside = sum(window.start_s <= at_s <= window.end_s for at_s in times_s)
            tokens += timeline.output_tokens * inside / len(times_s)
    return tokens / window.length_s if tokens and window.length_s > 0 else None


def _ended_in(run: BenchRun, window: Window) -> list[Timeline]:
    """The requests whose answers were complete within the window, whenever they arrived.

    Rates count these: in a steady window as many requests end as arrive, but those that arrive last end
    after it.
    """
    return [
        timeline
        for timeline in run.timelines
        if (e2e_s := latency.e2e_s(timeline)) is not None
        and window.start_s <= timeline.started_unix_s - run.started_unix_s + e2e_s <= window.end_s
    ]


def _per_s(count: int, window: Window) -> float | None:
    return count / window.length_s if window.length_s > 0 else None


def _level_shifts(
    run: BenchRun, counted: Sequence[Timeline], rng: np.random.Generator
) -> tuple[LevelShift, ...]:
    shifts = []
    for metric, reading in (("TTFT", latency.ttft_s), ("TPOT", latency.tpot_s)):
        known = [
            (timeline.started_unix_s - run.started_unix_s, value)
            for timeline in counted
            if (value := reading(timeline)) is not None
        ]
        change = find_change([value for _, value in known], rng)
        if change is not None:
            shifts.append(LevelShift(metric, known[change.index][0], change.before, change.after))
    return tuple(shifts)


def _engine_view(run: BenchRun, window: Window) -> EngineView | None:
    if run.engine is None:
        return None
    return view_engine(run.engine, run.started_unix_s + window.start_s, run.started_unix_s + window.end_s)


def _host_view(run: BenchRun) -> HostView | None:
    if len(run.cpu_samples) < 2 or run.wall_s <= 0:
        return None
    first, last = run.cpu_samples[0], run.cpu_samples[-1]
    return HostView(stolen_share(first, last), busy_share(first, last), run.health.cpu_s / run.wall_s)
