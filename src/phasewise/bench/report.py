"""The figures of a run, from its timelines alone; every definition is model/latency.py's.

Making them readable is left to report_table.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phasewise.bench.generator import BenchRun
from phasewise.bench.statistics import Summary, summarise
from phasewise.model import latency
from phasewise.model.latency import Goodput, PartTime
from phasewise.model.slo import Slo
from phasewise.model.timeline import Outcome, Part, Source, Timeline

REPORT_VERSION = 1
TYPICAL_BAND = (0.4, 0.6)
"""Requests whose TTFT ranks in this band are called typical."""
LAG_WORTH_A_NOTE = 0.05
"""A generator later than this share of TTFT is part of what it measures."""


@dataclass(frozen=True, slots=True)
class TypicalTtft:
    """The mean TTFT of the requests around the median one, split so that parts and residual add up to it.

    Medians of parts would not add up; means over the same few requests do.
    """

    requests: int
    ttft_s: float
    parts: tuple[PartTime, ...]
    residual_s: float


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A run in figures. Percentiles are None where too few requests were seen."""

    url: str
    model: str
    wall_s: float
    offered: int
    succeeded: int
    unsent: int
    cut_short: bool
    slo: Slo
    goodput: Goodput
    ttft_s: Summary
    tpot_s: Summary
    itl_pooled_s: Summary
    itl_per_request_s: Summary
    e2e_s: Summary
    stalls: int
    stalled_requests: int
    stall_excess_s: Summary
    lag_s: Summary
    prompt_tokens: Summary
    cached_tokens: int | None
    output_tokens: Summary
    output_tokens_per_s: float | None
    requests_per_s: float | None
    errors: dict[str, int]
    typical_ttft: TypicalTtft | None
    without_engine_timings: int
    exact_prompts: bool
    fixed_lengths: bool
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON types."""
        goodput = {"per_s": self.goodput.per_second, "share": self.goodput.share, "met": self.goodput.met}
        return {"v": REPORT_VERSION} | asdict(self) | {"goodput": goodput}


def build_report(run: BenchRun, slo: Slo) -> BenchReport:
    """Work the figures out."""
    timelines = run.timelines
    gaps_s = [latency.chunk_gaps_s(timeline) for timeline in timelines]
    stalls = [latency.stalls(timeline) for timeline in timelines]
    succeeded = sum(timeline.outcome is Outcome.SUCCEEDED for timeline in timelines)
    outputs = [timeline.output_tokens for timeline in timelines if timeline.output_tokens is not None]
    cached = [timeline.cached_tokens for timeline in timelines if timeline.cached_tokens is not None]
    ttft_s = summarise(latency.ttft_s(timeline) for timeline in timelines)
    lag_s = summarise(_part_s(timeline, Part.CLIENT_LAG) for timeline in timelines)
    return BenchReport(
        url=run.target.url,
        model=run.target.model,
        wall_s=run.wall_s,
        offered=len(timelines),
        succeeded=succeeded,
        unsent=run.unsent,
        cut_short=run.cut_short,
        slo=slo,
        goodput=latency.goodput(timelines, slo, run.wall_s),
        ttft_s=ttft_s,
        tpot_s=summarise(latency.tpot_s(timeline) for timeline in timelines),
        itl_pooled_s=summarise(gap_s for gaps in gaps_s for gap_s in gaps),
        itl_per_request_s=summarise(sum(gaps) / len(gaps) for gaps in gaps_s if gaps),
        e2e_s=summarise(latency.e2e_s(timeline) for timeline in timelines),
        stalls=sum(map(len, stalls)),
        stalled_requests=sum(map(bool, stalls)),
        stall_excess_s=summarise(stall.excess_s for found in stalls for stall in found),
        lag_s=lag_s,
        prompt_tokens=summarise(timeline.prompt_tokens for timeline in timelines),
        cached_tokens=sum(cached) if cached else None,
        output_tokens=summarise(outputs),
        output_tokens_per_s=sum(outputs) / run.wall_s if outputs and run.wall_s > 0 else None,
        requests_per_s=succeeded / run.wall_s if run.wall_s > 0 else None,
        errors=errors_by_kind(timelines),
        typical_ttft=typical_ttft(timelines),
        without_engine_timings=sum(not _reported_by_engine(timeline) for timeline in timelines),
        exact_prompts=run.plan.exact_prompts,
        fixed_lengths=run.fixed_lengths,
        notes=tuple(_notes(run, ttft_s, lag_s)),
    )


def errors_by_kind(timelines: Sequence[Timeline]) -> dict[str, int]:
    """How many requests did not succeed, by reason, the most frequent first."""
    reasons = (
        timeline.reason or timeline.outcome.value
        for timeline in timelines
        if timeline.outcome is not Outcome.SUCCEEDED
    )
    return dict(Counter(map(str, reasons)).most_common())


def typical_ttft(timelines: Sequence[Timeline]) -> TypicalTtft | None:
    """Where the time to first token goes for a request in the middle of the field.

    Where some requests have the engine's timings, the others (cancelled, failed) are left out: they would
    only dilute the parts.
    """
    timed = [timeline for timeline in timelines if _reported_by_engine(timeline)] or timelines
    split = [found for timeline in timed if (found := latency.ttft_breakdown(timeline)) is not None]
    if not split:
        return None
    split.sort(key=lambda breakdown: breakdown.ttft_s)
    low, high = (share * (len(split) - 1) for share in TYPICAL_BAND)
    band = [found for rank, found in enumerate(split) if low - 0.5 <= rank <= high + 0.5]
    seconds: dict[tuple[Part, Source], float] = {}
    for entry in (entry for breakdown in band for entry in breakdown.parts):
        key = (entry.part, entry.source)
        seconds[key] = seconds.get(key, 0.0) + entry.seconds / len(band)
    order = list(Part)
    return TypicalTtft(
        requests=len(band),
        ttft_s=sum(breakdown.ttft_s for breakdown in band) / len(band),
        parts=tuple(
            PartTime(part, source, value)
            for (part, source), value in sorted(seconds.items(), key=lambda item: order.index(item[0][0]))
        ),
        residual_s=sum(breakdown.residual_s for breakdown in band) / len(band),
    )


def _part_s(timeline: Timeline, part: Part) -> float | None:
    return next((span.duration_s for span in timeline.spans if span.part is part), None)


def _reported_by_engine(timeline: Timeline) -> bool:
    serving = timeline.serving_attempt
    return serving is not None and any(span.source is Source.ENGINE_REPORT for span in serving.spans)


def _notes(run: BenchRun, ttft_s: Summary, lag_s: Summary) -> list[str]:
    notes = []
    if run.cut_short:
        notes.append(f"The run was cut short: {run.unsent} planned requests were not sent.")
    if run.used_up:
        notes.append("The plan was used up before the time was over: the engine is faster than planned for.")
    if not run.plan.exact_prompts:
        notes.append("Prompt lengths were planned by a rule of thumb: no tokenizer answered at /tokenize.")
    if not run.fixed_lengths:
        notes.append("The server refused to fix output lengths: replies ended when the model wanted.")
    succeeded = [timeline for timeline in run.timelines if timeline.outcome is Outcome.SUCCEEDED]
    if succeeded and not any(map(_reported_by_engine, succeeded)):
        notes.append("The engine does not report its phases: start vLLM with --enable-per-request-metrics.")
    if lag_s.p50 and ttft_s.p50 and lag_s.p50 > LAG_WORTH_A_NOTE * ttft_s.p50:
        notes.append("The generator itself was late: lower the rate or run it on another machine.")
    return notes
