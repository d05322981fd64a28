"""What limits the meaning of a run's figures, each in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phasewise.benchmark.engine_watch import EngineView
from phasewise.benchmark.run import CUT_SHORT, BenchRun
from phasewise.benchmark.statistics.window import Window
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.clients.host import stolen_share
from phasewise.core import latency
from phasewise.core.latency import PartTime
from phasewise.core.timeline import Outcome, Part, Source, Timeline
from phasewise.core.units import counted, share
from phasewise.engines.known import USUAL

# --- Where the time to first token goes for a typical request.

TYPICAL_BAND = (0.4, 0.6)
"""Requests whose TTFT ranks in this band are called typical."""


@dataclass(frozen=True, slots=True)
class TypicalTtft:
    """The mean TTFT of the requests around the median; its parts and the unexplained rest add up to it.

    Medians of parts would not add up; means over the same few requests do.
    """

    requests: int
    ttft_s: float
    parts: tuple[PartTime, ...]
    unexplained_s: float


def typical_ttft(timelines: Sequence[Timeline]) -> TypicalTtft | None:
    """Split the TTFT of the requests around the median.

    Where some requests have the engine's timings, the others (cancelled, failed) are left out, because they
    would only dilute the parts.
    """
    timed = [timeline for timeline in timelines if reported_by_engine(timeline)] or timelines
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
    parts = tuple(
        PartTime(part, source, value)
        for (part, source), value in sorted(seconds.items(), key=lambda item: order.index(item[0][0]))
    )
    ttft_s = sum(breakdown.ttft_s for breakdown in band) / len(band)
    unexplained_s = sum(breakdown.unexplained_s for breakdown in band) / len(band)
    shown = latency.fitted(latency.TtftBreakdown(ttft_s, parts, unexplained_s))
    return TypicalTtft(len(band), shown.ttft_s, shown.parts, shown.unexplained_s)


def reported_by_engine(timeline: Timeline) -> bool:
    """Whether the engine reported how long the request's phases took."""
    serving = timeline.serving_attempt
    return serving is not None and any(span.source is Source.ENGINE_REPORT for span in serving.spans)


STOLEN_WORTH_A_NOTE = 0.02
"""A machine that loses more than this share of its time to others on its host is noisy."""
UNPLANNED_CACHE_SHARE = 0.05
"""A cold run is not cold if more than this share of its prompt tokens was cached, beyond what it shares."""
WARM_CACHE_SHARE = 0.8
"""A warm cache serves at least this share of the prompts it was filled with: all but their last blocks."""


def notes_on(run: BenchRun, window: Window, engine: EngineView | None) -> tuple[str, ...]:
    """Everything that limits what the figures mean, the most serious first."""
    return tuple(
        note
        for note in (
            *warnings_on(run),
            *_rejections(run),
            _used_up(run),
            _full(run),
            _turns_dropped(run),
            _not_settled(window),
            _warm_by_accident(run),
            _not_warm(run),
            _stolen(run),
            _left_out(run),
            _cut_to_context(run),
            _prompts_not_counted(run),
            _prompts_off(run),
            _free_lengths(run),
            _few_requests(run, window),
            _no_phases(run),
            _no_engine(run, engine),
        )
        if note
    )


def warnings_on(run: BenchRun) -> tuple[str, ...]:
    """Those notes without which the figures mislead: the run was not what was asked for."""
    return tuple(note for note in (_cut_short(run), _engines_out(run)) if note)


def _engines_out(run: BenchRun) -> str:
    out, engines = run.target.out, run.target.engines
    if not out:
        return ""
    used = f"{engines - len(out)} of {engines} engines"
    return f"At the run's end the gateway used {used}: not {', '.join(out)}."


def _all_out(run: BenchRun) -> bool:
    return 0 < run.target.engines <= len(run.target.out)


def _rejections(run: BenchRun) -> Iterator[str]:
    """The gateway's first words for each reason; the requests are counted by reason elsewhere."""
    for code, words in run.rejections.items():
        yield f"The gateway's words for {code}: {words}"


def _cut_short(run: BenchRun) -> str:
    if not run.cut_short:
        return ""
    still = sum(timeline.reason == CUT_SHORT for timeline in run.timelines)
    running = f" with {counted(still, 'request')} still running" if still else ""
    return f"The run was cut short{running}: {run.unsent} planned requests were not sent."


def _used_up(run: BenchRun) -> str:
    if not run.used_up:
        return ""
    if run.plan.full:
        why = f"it holds {len(run.plan.requests):,} requests at most"
    else:
        why = "the engine is faster than planned for"
    return f"The plan was used up before the time was over: {why}."


def _full(run: BenchRun) -> str:
    # A closed loop that ends by time lacks nothing, unless it used up its plan, which has a note of its own.
    ends_by_time = isinstance(run.plan.load, ClosedLoop) and run.plan.duration_s is not None
    if not run.plan.full or ends_by_time:
        return ""
    planned = len(run.plan.requests)
    return f"More requests were due than a plan may hold: the run ended with the first {planned:,}."


def _turns_dropped(run: BenchRun) -> str:
    # In a run that was cut short it is unknown which turns would have followed.
    if run.cut_short:
        return ""
    sent = _timelines_by_index(run)
    dropped = 0
    for thread in run.plan.threads:
        turns = [sent[planned.index] for planned in thread if planned.index in sent]
        if any(timeline.outcome is not Outcome.SUCCEEDED for timeline in turns):
            dropped += len(thread) - len(turns)
    if not dropped:
        return ""
    return f"{dropped:,} later turns were not sent because a turn before them failed."


def _not_settled(window: Window) -> str:
    if window.settled or not window.judged:
        return ""
    return (
        "The run never settled: latencies still changed at its end, as they do when more requests arrive "
        "than are served. Its figures depend on how long it lasted."
    )


def _warm_by_accident(run: BenchRun) -> str:
    sent = _timelines_by_index(run)
    prompt_tokens = unplanned_tokens = 0
    for planned in run.plan.requests:
        timeline = sent.get(planned.index)
        if timeline and timeline.prompt_tokens is not None and timeline.cached_tokens is not None:
            prompt_tokens += timeline.prompt_tokens
            shared_tokens = max(timeline.prompt_tokens - planned.fresh_words, 0)
            unplanned_tokens += max(timeline.cached_tokens - shared_tokens, 0)
    if run.primed or unplanned_tokens <= UNPLANNED_CACHE_SHARE * prompt_tokens:
        return ""
    return (
        f"The prefix cache was not cold: {unplanned_tokens:,} of {prompt_tokens:,} prompt tokens came from "
        "it though no earlier request of this run had them."
    )


def _not_warm(run: BenchRun) -> str:
    # Only first turns were sent before; later turns contain replies.
    sent = _timelines_by_index(run)
    first_turns = [sent[first.index] for first, *_ in run.plan.threads if first.index in sent]
    answered = [timeline for timeline in first_turns if timeline.prompt_tokens is not None]
    if not run.primed or not answered:
        return ""
    counted = [timeline for timeline in answered if timeline.cached_tokens is not None]
    if not counted:
        return (
            "Whether the prefix cache was warm cannot be determined: the server does not report cached "
            f"tokens ({USUAL.TITLE} does with {USUAL.FLAGS['cached_tokens']})."
        )
    prompt_tokens = sum(timeline.prompt_tokens or 0 for timeline in counted)
    cached_tokens = sum(timeline.cached_tokens or 0 for timeline in counted)
    if cached_tokens >= WARM_CACHE_SHARE * prompt_tokens:
        return ""
    return (
        f"The prefix cache was not warm: only {cached_tokens:,} of {prompt_tokens:,} prompt tokens came from "
        "it. It is smaller than this run's prompts together, its blocks are longer than they are, or the "
        "server has none."
    )


def _stolen(run: BenchRun) -> str:
    if len(run.cpu_samples) < 2:
        return ""
    stolen = stolen_share(run.cpu_samples[0], run.cpu_samples[-1])
    if stolen < STOLEN_WORTH_A_NOTE:
        return ""
    return f"Others on the same host took {share(stolen)} of this machine's processor time (steal)."


def _left_out(run: BenchRun) -> str:
    if not run.plan.left_out:
        return ""
    return f"{run.plan.left_out} requests of the trace do not fit the model's context and were left out."


def _cut_to_context(run: BenchRun) -> str:
    cut, shape = run.plan.cut, run.plan.shape
    if cut is None or shape is None:
        return ""
    changes = (
        ("median", shape.prompt.median_tokens, cut.asked.prompt.median_tokens),
        ("longest", shape.prompt.high_tokens, cut.asked.prompt.high_tokens),
        ("system prompt", shape.shared_prefix_tokens, cut.asked.shared_prefix_tokens),
    )
    said = (f"{name} {used:,} instead of {asked:,}" for name, used, asked in changes if used != asked)
    return f"Prompts were cut to fit a context of {cut.context_tokens:,} tokens: {', '.join(said)}."


def _prompts_not_counted(run: BenchRun) -> str:
    plan = run.plan
    if plan.fit is None and _all_out(run):
        return "Prompt lengths were planned by a rule of thumb: no engine was there to count tokens."
    if plan.fit is None:
        return (
            "Prompt lengths were planned by a rule of thumb: no tokenizer answered at /tokenize (that of a "
            "gateway's engines does with --admin-key)."
        )
    if plan.fit.counted == len(plan.threads):
        return ""
    sent = _timelines_by_index(run)
    uncounted = sum(first.index in sent for first, *_ in plan.threads[plan.fit.counted :])
    return (
        f"Only the first {plan.fit.counted:,} of {len(plan.threads):,} planned prompts were counted by the "
        f"tokenizer, to keep the wait short; of the others, {uncounted:,} were sent with lengths by a rule "
        "of thumb."
    )


def _prompts_off(run: BenchRun) -> str:
    fit = run.plan.fit
    if fit is None or not fit.off:
        return ""
    return (
        f"{fit.off:,} of {fit.counted:,} prompts could not be made exactly as long as planned: they are up "
        f"to {fit.most_off_tokens:,} tokens off, as the tokenizer splits words or the template takes space."
    )


def _free_lengths(run: BenchRun) -> str:
    if run.fixed_lengths:
        return ""
    return "The server does not accept fixed output lengths: replies ended when the model chose."


def _few_requests(run: BenchRun, window: Window) -> str:
    if window.judged or window.warm_up_requests or not run.timelines:
        return ""
    return "Too few requests to find the end of the warm-up: all of them are counted."


def _no_phases(run: BenchRun) -> str:
    succeeded = [timeline for timeline in run.timelines if timeline.outcome is Outcome.SUCCEEDED]
    if not succeeded or any(map(reported_by_engine, succeeded)):
        return ""
    return f"The engine does not report its phases: start {USUAL.TITLE} with {USUAL.FLAGS['phase_times']}."


def _no_engine(run: BenchRun, engine: EngineView | None) -> str:
    if engine is not None or _all_out(run):
        return ""
    return (
        "No engine's counters were seen at this address: only the client's view is shown (a gateway shows "
        "those of its engines with --admin-key)."
    )


def _timelines_by_index(run: BenchRun) -> dict[int, Timeline]:
    """The timelines by their request's index in the plan, which ends their names."""
    named = ((timeline.request_id.rpartition("-")[2], timeline) for timeline in run.timelines)
    return {int(index): timeline for index, timeline in named if index.isdecimal()}
