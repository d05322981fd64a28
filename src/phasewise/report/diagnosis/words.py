"""The words of a verdict, for the screen and the page."""

from __future__ import annotations

from collections.abc import Iterator

from phasewise.core.statistics import Interval
from phasewise.core.units import duration, share
from phasewise.diagnosis.advice.fix import NO_CLEAR_GAIN, Figure, Fix
from phasewise.diagnosis.analysis.probe_reading import ProbeReading
from phasewise.diagnosis.analysis.stall_causes import StallCause
from phasewise.diagnosis.analysis.streams import StreamSummary
from phasewise.diagnosis.analysis.ttft import StartSummary
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Confidence, Finding, Phase
from phasewise.diagnosis.observed.not_observed import NO_ANSWER
from phasewise.diagnosis.rules.failing import NAMED_ENGINES
from phasewise.diagnosis.verdict import Ruling, Verdict

RULINGS = {
    Ruling.SLOW_TO_START: "slow to start",
    Ruling.SLOW_TO_STREAM: "slow to stream",
    Ruling.FAILING: "requests fail",
    Ruling.HEALTHY: "healthy",
    Ruling.NOT_ENOUGH_TRAFFIC: "not enough traffic to judge",
    Ruling.MACHINE_BUSY: "machine too busy to judge",
}
CAUSES = {
    Cause.OVERLOAD: "more requests arrive than the engines can serve",
    Cause.BATCH_CAP_LOW: "the batch limit is too low",
    Cause.KV_EXHAUSTED: "the KV cache is full",
    Cause.UNEVEN_LOAD: "load is uneven across engines",
    Cause.BURSTS: "requests arrive in bursts",
    Cause.LONG_PROMPTS: "long prompts take long to prefill",
    Cause.CHUNKS_SMALL: "prefill chunks are too small",
    Cause.PREFIX_CACHE_OFF: "prefix caching is off",
    Cause.PREFIX_SALTED: "prompts differ before their shared part",
    Cause.PREFIX_SCATTERED: "prompts with the same prefix go to different engines",
    Cause.PREFIX_EVICTED: "shared prefixes are evicted too soon",
    Cause.KV_NOT_TRANSFERRED: "prompts are computed twice, because their KV is not transferred",
    Cause.CHUNKS_STALL: "other requests' prompts stall running streams",
    Cause.ENGINE_PAUSES: "the engine stood still for a while",
    Cause.ENGINE_HUNG: "the engine stands still now",
    Cause.ENGINE_DOWN: "an engine is out of service",
    Cause.NUMBER_FORMAT: "the processor has no instructions for the engine's number format",
    Cause.SLOW_CLIENT: "the client reads slowly",
    Cause.DECODE_WEIGHTS: "every decode step reads all the weights",
    Cause.DECODE_KV_READS: "every decode step reads a long KV cache",
    Cause.DECODE_OVERHEAD: "every step has a fixed overhead",
    Cause.DECODE_FLOOR: "a step takes long even with a single stream",
    Cause.BATCH_CAP_HIGH: "too many streams share a step",
    Cause.SPECULATION_UNPAID: "speculative decoding costs more than it saves",
    Cause.ENGINE_STARVED: "the engine does not get enough CPU",
    Cause.THREADS_HIGH: "the engine has more threads than cores",
    Cause.COLD_START: "the engine is still warming up",
    Cause.FRONT_END_BUSY: "the engine's front end is out of CPU",
    Cause.NETWORK_OR_PROXY: "time is lost in the network",
    Cause.GATEWAY: "requests wait in the gateway",
    Cause.REQUESTS_REJECTED: "engines reject requests",
    Cause.GATEWAY_REJECTS: "the gateway rejects requests",
    Cause.CLIENTS_CANCEL: "clients leave before the answer ends",
    Cause.GENERATOR_LAG: "the load generator sends late",
    Cause.WARM_CACHE: "the cache was warm from before the window",
    Cause.DRIFT: "latencies drifted during the window",
}
NOT_THE_SERVER = frozenset({Cause.GENERATOR_LAG})
"""Causes within a phase that no change to the server would remove."""
LEAST_SHARE = 0.01
"""A smaller share of a phase's latency is not worth a word."""
UNEXPLAINED_SHARE = 0.1
"""A verdict reports its unexplained share from this share on."""
WHOLES = {
    Phase.START: "of the late requests' TTFT",
    Phase.STREAM: "of the slow streams' time per token",
    Phase.FAILING: "of the requests",
}
CONFIDENCES = {
    Confidence.HIGH: "High confidence: enough requests, measured directly.",
    Confidence.MEDIUM: "Medium confidence: part of the evidence is indirect, or the requests are few.",
    Confidence.LOW: "Low confidence: the evidence is indirect. Read what would refute it before you act.",
}
STALLS = {
    StallCause.PREFILL_CHUNK: "another request's prefill chunk",
    StallCause.PREEMPTION: "a preemption",
    StallCause.SLOW_STEP: "a slow step without prompt tokens",
    StallCause.PAUSE: "a pause: the engine had work and did none",
    StallCause.COLD_STEP: "a cold step: the first of its kind",
    StallCause.STEPS_WENT_ON: "no step: steps went on as usual",
    StallCause.ENGINE_IDLE: "no step: the engine paused",
    StallCause.CLIENT: "a client that did not read",
    StallCause.WORKER_FAILED: "the failure of its engine",
    StallCause.NO_WORKER: "the gateway's wait for another worker",
    StallCause.UNKNOWN: "an unexplained pause",
}


def headline(verdict: Verdict) -> str:
    """The verdict in one line, without its confidence."""
    late_sender = verdict.top is not None and verdict.top.cause in NOT_THE_SERVER
    ruling = RULINGS[Ruling.MACHINE_BUSY if late_sender else verdict.ruling].upper()
    if verdict.summary.synthetic:
        ruling = f"SYNTHETIC PROBE: {ruling}"
    if verdict.ruling is Ruling.HEALTHY and _engine_silent(verdict):
        return f"{ruling}, but an engine did not answer"
    if verdict.top is None:
        return ruling
    rival = "" if verdict.top.rival is None else f", or {CAUSES[verdict.top.rival]}"
    return f"{ruling}: {CAUSES[verdict.top.cause]}{rival}"


def outcomes(summary: WindowSummary) -> str:
    """How many of the window's requests ended in which way."""
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in summary.outcomes) or "no requests"


def besides(verdict: Verdict) -> tuple[str, ...]:
    """What stands beside the headline: the other slow phase, and what else is wrong with a slow server."""
    found = [] if verdict.also_slow is None else [f"also {verdict.also_slow.value.replace('_', ' ')}"]
    if verdict.ruling is not Ruling.FAILING:
        failing = (finding.cause for finding in verdict.findings if finding.phase is Phase.FAILING)
        found += [CAUSES[cause] for cause in failing if cause is not Cause.ENGINE_DOWN]
        found += [out_of_service(verdict)] if out_of_service(verdict) else []
    return tuple(found)


def out_of_service(verdict: Verdict) -> str:
    """The engines that the gateway does not use, by name; empty if it uses all of them."""
    engines = verdict.summary.engines
    out = [engine.name for engine in engines if engine.out_of_service]
    if not out:
        return ""
    every = ", so there is none to serve requests" if len(out) == len(engines) else ""
    names = ", ".join(out[:NAMED_ENGINES]) + (" and more" if len(out) > NAMED_ENGINES else "")
    return f"{names} {'is' if len(out) == 1 else 'are'} out of service{every}"


def weight(finding: Finding) -> str:
    """A finding's share of its phase."""
    whole = WHOLES.get(finding.phase)
    return f"{share(finding.share)} {whole}" if whole is not None else "about the measurement"


def cost(finding: Finding, verdict: Verdict) -> str:
    """A finding's share of its phase, and of the time lost beyond the objective."""
    part = _part_of_loss(finding, verdict)
    return f"{weight(finding)}, {part}" if part and finding.share >= LEAST_SHARE else part or weight(finding)


def brief_cost(finding: Finding, verdict: Verdict) -> str:
    """A finding's share of its phase, or of the loss: stalls are hardly any of a mean token."""
    part = _part_of_loss(finding, verdict)
    return weight(finding) if finding.share >= LEAST_SHARE or not part else part


def _part_of_loss(finding: Finding, verdict: Verdict) -> str:
    """Its share of what the phase lost, in words; empty for a phase that lost nothing."""
    phases = {Phase.START: verdict.summary.start, Phase.STREAM: verdict.summary.stream}
    phase = phases.get(finding.phase)
    lost_s = 0.0 if phase is None else phase.lost_s
    if lost_s <= 0:
        return ""
    return f"{share(min(finding.lost_s / lost_s, 1.0))} of the time lost beyond the objective"


def unexplained(verdict: Verdict) -> str:
    """The share of the lost time without a cause; empty if it is small."""
    missing = verdict.unexplained_share
    if missing is None or missing < UNEXPLAINED_SHARE:
        return ""
    return f"no cause was found for {share(missing)} of the lost time"


def is_caveat(finding: Finding) -> bool:
    """Whether a finding is about the measurement rather than the server."""
    return finding.phase is Phase.MEASUREMENT or finding.cause in NOT_THE_SERVER


def caveats(verdict: Verdict) -> tuple[str, ...]:
    """The warnings to read before acting on the verdict."""
    return tuple(_caveat(found, verdict) for found in verdict.findings if is_caveat(found))


def _caveat(found: Finding, verdict: Verdict) -> str:
    warning = "not your server" if found.cause in NOT_THE_SERVER else "careful"
    if found is verdict.top:
        return f"{warning}: no change to the engine would help"
    text = "; ".join(fact.words for fact in found.facts)
    return f"{warning}: {CAUSES[found.cause]}{f' ({text})' if text else ''}"


def what_next(verdict: Verdict) -> str:
    """The next step without a fix; empty if there is a finding to act on."""
    if verdict.ruling in {Ruling.NOT_ENOUGH_TRAFFIC, Ruling.MACHINE_BUSY}:
        return _how_to_judge(verdict)
    if verdict.ruling is Ruling.FAILING:
        return _find_out_why(verdict) if verdict.top is None else ""
    if verdict.ruling is Ruling.HEALTHY:
        return _all_is_well(verdict)
    if verdict.top is None:
        return _no_known_cause(verdict)
    return ""


def _how_to_judge(verdict: Verdict) -> str:
    if verdict.ruling is Ruling.MACHINE_BUSY:
        lost = share(verdict.summary.stolen_share or 0.0)
        return f"others on the same host took {lost} of this machine's processor time: probe again later"
    if verdict.summary.synthetic:
        return "run the probe again and let it finish"
    if out := out_of_service(verdict):
        return f"{out}: read the end of their logs and start them again; `phasewise status` shows them"
    return "watch longer with --window, send streamed requests while this runs, or add --probe"


def _no_known_cause(verdict: Verdict) -> str:
    unnamed = verdict.summary.unnamed
    if unnamed.slower > 1:
        return (
            f"no known cause: steps of the same size took {unnamed.slower:.1f} times as long at the end of "
            "the window as at its beginning; watch whether a restarted engine slows down again"
        )
    if unnamed.per_prompt_s > 0:
        return (
            f"no known cause: every prompt takes {duration(unnamed.per_prompt_s)} whatever its length; look "
            "at what else the engine does for a new request (structured output, adapters, images)"
        )
    if unnamed.in_stretches > 0:
        return (
            "no known cause: steps with the same work take much longer for a while, and then do not; look at "
            "what some requests ask for (structured output, adapters) and at what else the host runs"
        )
    unseen = "; see what was not observed" if verdict.summary.not_observed else ""
    return f"no rule explains it from this evidence{unseen}"


def _find_out_why(verdict: Verdict) -> str:
    start = verdict.summary.start
    if start is None or start.unanswered == start.requests or start.late > start.unanswered:
        return "find out why requests are not answered: see their outcomes and the engine's log"
    return "the answered requests were fast: find out why the others were not answered"


def _all_is_well(verdict: Verdict) -> str:
    summary = verdict.summary
    if summary.start is None or summary.stream is None:
        unseen = "the start" if summary.start is None else "streaming"
        return f"no problem in what was observed; {unseen} was not observed"
    if out := out_of_service(verdict):
        return (
            f"both phases meet their objectives, but {out}: read the end of their logs and start them again"
        )
    if _engine_silent(verdict):
        return "requests meet both objectives, but an engine did not answer: see what was not observed"
    return "none needed: both phases meet their objectives"


def _engine_silent(verdict: Verdict) -> bool:
    return any(NO_ANSWER in unseen for unseen in verdict.summary.not_observed)


# --- A fix in words: how to apply it, and its predicted effect.

FIGURES = {
    Figure.TTFT_P50: "TTFT p50",
    Figure.TTFT_P90: "TTFT p90",
    Figure.TPOT_P50: "TPOT p50",
    Figure.ITL_P99: "ITL p99",
    Figure.THROUGHPUT: "tokens/s",
}
NO_CHANGE = 0.03
"""Smaller changes than this are not shown."""


def how_in_words(fix: Fix) -> tuple[str, ...]:
    """The engine's flag and the fleet file's line, if any."""
    lines = (
        fix.engine_flag and f"engine flag: {fix.engine_flag}",
        fix.fleet_line and f"fleet file:  {fix.fleet_line}",
    )
    return tuple(line for line in lines if line)


def prediction_in_words(fix: Fix) -> str:
    """The effect of this fix alone: the figure it aims at first, then the others that change."""
    if fix.effect is None:
        rough = "" if fix.rough_gain is None else f"{_lost(fix.rough_gain)} in one replay of the window; "
        return f"{rough}not predictable: {fix.unpredictable}" if fix.unpredictable else "not predicted"
    aimed = [change for change in fix.effect.changes if change.figure is fix.aims_at]
    others = [
        change
        for change in fix.effect.changes
        if change.figure is not fix.aims_at
        and (change.interval.low < 1 - NO_CHANGE or change.interval.high > 1 + NO_CHANGE)
    ]
    text = ", ".join(
        f"{FIGURES[change.figure]} {interval_in_words(change.interval)}" for change in (*aimed, *others)
    )
    doubtful = any(
        change.interval.low <= 1.0 if change.figure is Figure.THROUGHPUT else change.interval.high >= 1.0
        for change in aimed
    )
    doubt = ", though it may not help" if doubtful else ""
    lost = "" if fix.effect.gain is None else f"; {_lost(fix.effect.gain)}"
    return f"predicted{doubt}: {text or 'no change'}{lost}"


def _lost(gain: float) -> str:
    if abs(gain) < NO_CLEAR_GAIN:
        return "about as much time lost beyond the objective"
    return f"time lost beyond the objective {-gain * 100:+.0f}%"


def interval_in_words(ratio: Interval) -> str:
    """A ratio's interval as changes in per cent, the smaller change first."""
    ends = sorted((ratio.low - 1, ratio.high - 1), key=abs if ratio.low >= 1 or ratio.high <= 1 else None)
    low, high = (f"{end * 100:+.0f}" for end in ends)
    return f"{low}%" if low == high else f"{low} to {high}%"


# --- What a probe measured, a line each.


def probe_in_words(found: ProbeReading) -> Iterator[str]:
    """TTFT against the prompt's length, the prefix cache, decode against the batch, and stalls."""
    if found.short is not None and found.long is not None:
        yield (
            f"TTFT {duration(found.short.ttft_s)} with {found.short.prompt_tokens} prompt tokens, "
            f"{duration(found.long.ttft_s)} with {found.long.prompt_tokens}"
            + (f": {duration(found.per_1000_s)} per 1,000 tokens" if found.per_1000_s is not None else "")
        )
    if found.again is not None and found.long is not None:
        state = "works" if found.reuses_prefixes else "does not help: off, or evicted"
        yield f"the same prompt again {duration(found.again.ttft_s)}: the prefix cache {state}"
    if found.alone_tpot_s is not None and found.together_tpot_s is not None:
        yield (
            f"a token takes {duration(found.alone_tpot_s)} alone, {duration(found.together_tpot_s)} with "
            f"{found.streams} streams"
        )
    if found.stall_s is not None and found.joined_tokens:
        each = found.stall_s / found.joined_tokens
        yield (
            f"a prompt of {found.joined_tokens} tokens stalls running streams for {duration(found.stall_s)}, "
            f"{duration(each)} per prompt token"
        )


# --- TTFT and TPOT, each in a line.


def ttft_in_words(start: StartSummary) -> str:
    """Quantiles, and how many requests were late or unanswered."""
    quantiles = (
        _quantile("p50", start.ttft_p50_s, at_least=start.ttft_p50_at_least),
        _quantile("p90", start.ttft_p90_s, at_least=start.ttft_p90_at_least),
    )
    counts = (
        (start.gave_up, "ended without an answer"),
        (start.unfinished, "of the unfinished without a first token yet"),
    )
    silent = (f"{count} {how}" for count, how in counts if count)
    late = f"{start.late} of {start.requests} late"
    return f"{', '.join(quantiles)}; {', '.join((late, *silent))}"


def _quantile(name: str, seconds: float, *, at_least: bool) -> str:
    return f"{name} {'at least ' if at_least else ''}{duration(seconds)}"


def tpot_in_words(stream: StreamSummary) -> str:
    """Quantiles, the number of slow streams, and the longest gap."""
    worst = f", worst gap {duration(stream.gap_max_s)}" if stream.gap_max_s is not None else ""
    quantiles = f"p50 {duration(stream.tpot_p50_s)}, p90 {duration(stream.tpot_p90_s)}"
    return f"{quantiles}; {stream.slow} of {stream.streams} slow{worst}"
