"""What a reader must know before believing a run's figures, each in a sentence."""

from __future__ import annotations

from phasewise.adapters.host_cpu import stolen_share
from phasewise.bench.engine_view import EngineView
from phasewise.bench.run import BenchRun
from phasewise.bench.typical import reported_by_engine
from phasewise.bench.window import Window
from phasewise.model.timeline import Outcome

STOLEN_WORTH_A_NOTE = 0.02
"""A machine that loses more than this share of its time to others on the same host is a noisy one."""
UNPLANNED_CACHE_SHARE = 0.05
"""A cold run that finds more than this share of its prompt tokens cached, beyond what it shares itself."""


def notes_on(run: BenchRun, window: Window, engine: EngineView | None) -> tuple[str, ...]:
    """Everything that limits what the figures mean, the gravest first."""
    return tuple(
        note
        for note in (
            _cut_short(run),
            _used_up(run),
            _not_settled(window),
            _warm_by_accident(run),
            _stolen(run),
            _left_out(run),
            _inexact_prompts(run),
            _free_lengths(run),
            _few_requests(run, window),
            _no_phases(run),
            _no_engine(engine),
        )
        if note
    )


def _cut_short(run: BenchRun) -> str:
    if not run.cut_short:
        return ""
    return f"The run was cut short: {run.unsent} planned requests were not sent."


def _used_up(run: BenchRun) -> str:
    if not run.used_up:
        return ""
    return "The plan was used up before the time was over: the engine is faster than planned for."


def _not_settled(window: Window) -> str:
    if window.settled or not window.judged:
        return ""
    return (
        "The run never settled: latencies still moved at its end, as they do when more arrives than is "
        "served. Its figures depend on how long it lasted."
    )


def _warm_by_accident(run: BenchRun) -> str:
    planned = {str(request.index): request for request in run.plan.requests}
    prompt_tokens = unplanned_tokens = 0
    for timeline in run.timelines:
        _, _, index = timeline.request_id.rpartition("-")
        if index in planned and timeline.prompt_tokens is not None and timeline.cached_tokens is not None:
            prompt_tokens += timeline.prompt_tokens
            shared_tokens = max(timeline.prompt_tokens - planned[index].fresh_words, 0)
            unplanned_tokens += max(timeline.cached_tokens - shared_tokens, 0)
    if run.primed or unplanned_tokens <= UNPLANNED_CACHE_SHARE * prompt_tokens:
        return ""
    return (
        f"The prefix cache was not cold: {unplanned_tokens:,} of {prompt_tokens:,} prompt tokens came from "
        "it though no earlier request of this run had them."
    )


def _stolen(run: BenchRun) -> str:
    if len(run.cpu_samples) < 2:
        return ""
    share = stolen_share(run.cpu_samples[0], run.cpu_samples[-1])
    if share < STOLEN_WORTH_A_NOTE:
        return ""
    return f"Others on the same host took {share:.0%} of this machine's processor time (steal)."


def _left_out(run: BenchRun) -> str:
    if not run.plan.left_out:
        return ""
    return f"{run.plan.left_out} requests of the trace do not fit the model's context and were left out."


def _inexact_prompts(run: BenchRun) -> str:
    if run.plan.exact_prompts:
        return ""
    return "Prompt lengths were planned by a rule of thumb: no tokenizer answered at /tokenize."


def _free_lengths(run: BenchRun) -> str:
    if run.fixed_lengths:
        return ""
    return "The server refused to fix output lengths: replies ended when the model wanted."


def _few_requests(run: BenchRun, window: Window) -> str:
    if window.judged or window.warm_up_requests or not run.timelines:
        return ""
    return "Too few requests to find the end of the warm-up: all of them are counted."


def _no_phases(run: BenchRun) -> str:
    succeeded = [timeline for timeline in run.timelines if timeline.outcome is Outcome.SUCCEEDED]
    if not succeeded or any(map(reported_by_engine, succeeded)):
        return ""
    return "The engine does not report its phases: start vLLM with --enable-per-request-metrics."


def _no_engine(engine: EngineView | None) -> str:
    if engine is not None:
        return ""
    return "No engine's counters were seen at this address: only the client's view is shown."
