"""Rules for requests that wait in the queue: a full KV cache, a low limit, uneven load, or overload."""

from __future__ import annotations

from math import log

from phasewise.core.timeline import Part
from phasewise.costs.fit.step import decoding
from phasewise.diagnosis.analysis.engine_load import EngineLoad, SeenBy
from phasewise.diagnosis.analysis.stall_causes import StallCause
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Confidence, Fact, FactSource, least
from phasewise.diagnosis.rules.case import (
    BEHIND_OTHERS,
    QUEUED,
    SATURATED_SHARE,
    Claim,
    StartCase,
    StreamCase,
    TokenPart,
    busy_share,
    capped_share,
    context_tokens,
    engine_load_source,
    engine_loads,
    excess,
    fullest,
    mean_of,
    ms,
    over_waiting,
    percent,
    prompt_work_share,
    stall_part,
)

KV_FULL = 0.9
"""A KV cache this full has no space for another typical request."""
NEARLY_SLOW, FAST_ENOUGH = 0.9, 0.8
"""Shares of the objective of a token's time: above the one more requests at once would miss it, below the
other they need not,"""
MANY_PROMPTS = 0.2
"""unless prompts take this share of the engine's time."""
NOT_WAITING_SHARE = 0.2
"""An engine at which requests waited a smaller share of the time had free slots."""
CHEAP_RATIO = 1.5
"""Doubling the streams is worthwhile if steps get at most this much longer."""
CHEAP_RATIO_UNFITTED = 1.3
"""The same, judged from a full step against a nearly empty one."""
FEW_PROMPTS = 0.35
"""An engine that spends at most this share of its time on prompts gains most from larger batches;"""
MOSTLY_PROMPTS = 0.6
"""one that spends a larger share than this gains little."""
FEW_RUNNING = 8
"""Any engine runs this many streams at nearly the cost of one: weights are read once for all."""
IDLE_BETWEEN = 0.25
"""An engine that is idle this share of the time serves its mean load,"""
AT_ONCE = 5
"""so that requests wait only if this many come together."""
MANY_AT_ONCE = 12.0
"""With this many requests in an engine whose time goes into prompts, their number is the cause,"""
NEVER_IDLE = 0.05
"""if it has no idle time."""
STALLS_MATTER = 0.1
SHORT_PROMPT = 0.5
"""A prompt that takes less than this share of the TTFT objective is short."""
BURSTY = 1.5
"""Gaps between random arrivals vary as much as their mean; those of bursts vary this many times as much."""
BY_CHANCE_MARGIN = 1.3
"""So many times as many requests at once as chance brings are a burst."""
ALWAYS_CAPPED = 0.7
"""Requests waited and the engine ran as many as it ever did for this share of the time."""
GROWTH = 2.0
"""This many more requests in the engine at the end than at the beginning are a trend,"""
GROWTH_SHARE = 0.3
"""if they are also this share of the mean."""


def kv_exhausted(case: StartCase) -> Claim | None:
    """Requests wait because the KV cache has no space for them."""
    share, sure = over_waiting(case.summary, lambda engine_load: engine_load.kv_full_share), Confidence.HIGH
    workload = case.summary.workload
    if share is None and (workload.preemptions or 0) > 0 and (workload.kv_usage_max or 0.0) >= KV_FULL:
        share, sure = 1.0, Confidence.LOW
    more_helps = _more_at_once_helps(case)
    if not share or more_helps is None:
        return None
    source = engine_load_source(case.summary) if sure is Confidence.HIGH else FactSource.DERIVED
    sure = least(sure, more_helps)
    taken = case.account.take(share * _served_without_limit(case.summary), *QUEUED)
    facts = [
        Fact(
            f"for {percent(share)} of the time that requests waited, the KV cache had no space for another",
            source,
        ),
        *kv_facts(case.summary),
        Fact(f"this costs {ms(taken.seconds)} of TTFT", FactSource.DERIVED),
    ]
    return Claim(
        Cause.KV_EXHAUSTED,
        taken,
        tuple(facts),
        "requests wait as long with twice the KV cache",
        sure,
        seen_itself=True,
    )


def _more_at_once_helps(case: StartCase) -> Confidence | None:
    """How sure it is that more requests at once would help; None if more come than leave and it would not.
    They make every token slower, and wait for each other's prompts.
    """
    stream, prompts = case.summary.stream, prompt_work_share(case.summary) or 0.0
    slow = 0.0 if stream is None or stream.tpot_p50_s is None else stream.tpot_p50_s / case.slo.tpot_s
    if (slow >= NEARLY_SLOW or prompts >= MANY_PROMPTS) and excess(case.summary) > 0:
        return None
    clear = (
        slow <= FAST_ENOUGH and prompts <= MANY_PROMPTS / 2 and case.summary.seen_by is not SeenBy.COUNTERS
    )
    return Confidence.HIGH if clear else Confidence.MEDIUM


def kv_facts(summary: WindowSummary) -> list[Fact]:
    """The usage and size of the KV cache, and the preemptions."""
    facts = []
    known = engine_loads(summary)
    usage = max(
        (load.kv_usage_max for load in known if load.kv_usage_max is not None),
        default=summary.workload.kv_usage_max,
    )
    sizes = [engine.kv_tokens for engine in summary.engines if engine.kv_tokens is not None]
    if usage is not None:
        holds = f" of {min(sizes)} tokens" if sizes else ""
        facts.append(
            Fact(f"the KV cache{holds} was up to {percent(usage)} full", engine_load_source(summary))
        )
    if preempted := preemptions(summary):
        facts.append(Fact(f"{preempted:.0f} preemptions of running requests", FactSource.COUNTERS))
    return facts


def preemptions(summary: WindowSummary) -> float | None:
    """The number of preemptions; None if not observed."""
    counted = [engine.preemptions for engine in summary.engines if engine.preemptions is not None]
    return sum(counted) if counted else summary.workload.preemptions


def batch_cap_low(case: StartCase) -> Claim | None:
    """Requests wait though the KV cache has space, and running more at once would cost little."""
    queued = bool(case.account.seconds(Part.ENGINE_QUEUE))
    share, engine_load = capped_share(case.summary) if queued else None, fullest(case.summary)
    held_s = case.account.seconds(Part.GATEWAY_WAIT)
    if engine_load is None or not (share or held_s):
        return None
    cheap = _cheap_to_run_more(case.summary, engine_load)
    if cheap is None:
        return None
    fact, sure = cheap
    # What the gateway still has here it held back because the engine had no free slot.
    fed = _served_without_limit(case.summary)
    taken = case.account.take(fed, Part.GATEWAY_WAIT)
    taken += case.account.take(fed * (share or 0.0), Part.ENGINE_QUEUE)
    waited = "while others waited" if share else "while others waited in the gateway"
    if engine_load.waiting_max and share:
        waited = f"while up to {engine_load.waiting_max} waited"
    return Claim(
        Cause.BATCH_CAP_LOW,
        taken,
        (
            Fact(
                f"at most {engine_load.running_max} ran at once {waited}, "
                f"for {percent(share or engine_load.full_share)} of the time with space in the KV cache",
                engine_load_source(case.summary),
            ),
            fact,
            Fact(f"this costs {ms(taken.seconds)} of TTFT", FactSource.DERIVED),
        ),
        "requests wait as long if twice as many may run at once",
        sure,
        seen_itself=True,
    )


def _served_without_limit(summary: WindowSummary) -> float:
    """The share of the requests that came too many which an engine with free slots would serve: prompts take
    their time however many streams share a step.
    """
    too_many = excess(summary)
    left = (1.0 + too_many) * (prompt_work_share(summary) or 0.0) - 1.0
    return 1.0 - min(1.0, max(0.0, left) / too_many) if too_many > 0 else 1.0


def _cheap_to_run_more(summary: WindowSummary, engine_load: EngineLoad) -> tuple[Fact, Confidence] | None:
    """Why twice as many streams would cost little, with confidence; None if they would not."""
    now = engine_load.running_max
    if not _decoding_matters(summary):
        return None
    if summary.fit is not None and summary.fit.separates_batches and now:
        context = context_tokens(summary)
        more = decoding([context] * 2 * now)
        ratio = summary.fit.cost(more) / summary.fit.cost(decoding([context] * now))
        words = f"a step of {2 * now} streams should take {ratio:.1f}x one of {now}"
        sure = Confidence.HIGH if summary.fit.predict(more) is not None else Confidence.MEDIUM
        return (Fact(words, FactSource.FIT), sure) if ratio <= CHEAP_RATIO else None
    lone_s, full_s = _lone_and_usual_step_s(summary)
    if lone_s and full_s and now > 2:
        words = f"the median decode step takes {full_s / lone_s:.1f}x a nearly empty one"
        cheap = full_s <= CHEAP_RATIO_UNFITTED * lone_s
        return (Fact(words, FactSource.STEP_RECORD), Confidence.MEDIUM) if cheap else None
    if now > FEW_RUNNING or _tokens_wait_for_prompts(summary):
        return None
    words = "one stream leaves most of the engine unused" if now == 1 else f"{now} streams at once are few"
    always = engine_load.capped_share * engine_load.waited_share >= ALWAYS_CAPPED
    sure = Confidence.MEDIUM if now == 1 or always else Confidence.LOW
    if always and (prompt_work_share(summary) or 0.0) <= FEW_PROMPTS:
        sure = Confidence.HIGH
    return Fact(f"{words}: more streams usually take nearly the same step time", FactSource.DERIVED), sure


def _decoding_matters(summary: WindowSummary) -> bool:
    """Streams share a step, prompts do not: if prompts fill the engine, more requests at once do not help."""
    share = prompt_work_share(summary)
    return _prefill_fits(summary) if share is None else share <= MOSTLY_PROMPTS


def _tokens_wait_for_prompts(summary: WindowSummary) -> bool:
    """Whether running streams spend most of their time in steps with prompts: more of them would not help."""
    ledger = None if summary.stream is None else summary.stream.ledger
    if summary.stream is None or ledger is None:
        return False
    return ledger.prompts_s > MOSTLY_PROMPTS * summary.stream.tpot_mean_s


def _prefill_fits(summary: WindowSummary) -> bool:
    """Without a step record: whether all prefills fit into the window one after the other."""
    if summary.start is None:
        return True
    answered = summary.start.requests - summary.start.unanswered
    prefill_s = summary.start.seconds(Part.PREFILL) * answered
    return prefill_s < summary.window_s * max(1, len(summary.engines))


def _lone_and_usual_step_s(summary: WindowSummary) -> tuple[float | None, float | None]:
    lone_s = mean_of(summary.engines, lambda engine: engine.steps.lone_step_s if engine.steps else None)
    usual_s = mean_of(
        summary.engines, lambda engine: engine.steps.decode_step_p50_s if engine.steps else None
    )
    return lone_s, usual_s


def bursts(case: StartCase) -> Claim | None:
    """Requests wait behind others that came with them, and between such bursts the engine is idle."""
    loads = engine_loads(case.summary)
    if not loads or any(map(grows, loads)):
        return None
    idle = min(engine_load.idle_share for engine_load in loads)
    most = max(engine_load.running_max + engine_load.waiting_max for engine_load in loads)
    mean = max(engine_load.requests_mean / max(1.0 - engine_load.idle_share, 0.01) for engine_load in loads)
    if idle < IDLE_BETWEEN or most < AT_ONCE or not _is_bursty(case.summary, idle, most):
        return None
    taken = case.account.take(1.0, *BEHIND_OTHERS)
    # What a prompt of a burst waits for is computed with it: without the step record both are one.
    if not case.start.step_timed:
        taken += case.account.take(1.0 - 1.0 / max(mean, 1.0), Part.PREFILL)
    return Claim(
        Cause.BURSTS,
        taken,
        (
            Fact(
                f"up to {most} requests were in the engine at once, and none {percent(idle)} of the time",
                engine_load_source(case.summary),
            ),
            Fact(f"waiting behind each other costs {ms(taken.seconds)} of TTFT", FactSource.DERIVED),
        ),
        "TTFT stays as high when the same requests arrive evenly",
        Confidence.HIGH if idle >= 2 * IDLE_BETWEEN else Confidence.MEDIUM,
    )


def _is_bursty(summary: WindowSummary, idle: float, most: int) -> bool:
    """Whether arrivals are less even than chance makes them: by their gaps, or by how many came together.

    At random, an engine that is busy for a share b of the time has k requests in it in b^k of the time.
    """
    varies = None if summary.profile is None else summary.profile.burstiness
    by_chance = log(max(2, summary.workload.requests)) / -log(min(0.99, max(0.01, 1.0 - idle)))
    return (varies or 0.0) >= BURSTY or most >= BY_CHANCE_MARGIN * by_chance + 1


def overload(case: StartCase) -> Claim | None:
    """Overload: the waiting behind other requests that no other rule claimed."""
    parts = {part: case.account.seconds(part) for part in BEHIND_OTHERS}
    taken = case.account.take(1.0, *BEHIND_OTHERS)
    if not taken.seconds:
        return None
    why, sure = _why_overloaded(case.summary)
    return Claim(
        Cause.OVERLOAD,
        taken,
        (
            Fact(
                f"waiting behind other requests: {ms(sum(parts[part] for part in QUEUED))} for a slot, "
                f"{ms(parts[Part.STEP_IN_FLIGHT])} for the running step, "
                f"{ms(parts[Part.PREFILL_OTHERS])} in steps shared with other requests",
                FactSource.STEP_RECORD if case.start.step_timed else FactSource.ENGINE_REPORT,
            ),
            *_engine_load_facts(case.summary),
            why,
        ),
        "TTFT stays as high at half the load",
        sure,
    )


def overload_stream(case: StreamCase) -> Claim | None:
    """So many requests at once that their prompts fill the engine's time, and streams get what is left."""
    share, load = prompt_work_share(case.summary), fullest(case.summary)
    if share is None or load is None or not (_prompts_fill(share, load) or _prompts_are_short(case)):
        return None
    taken = case.account.take(1.0, TokenPart.PROMPTS, stall_part(StallCause.PREFILL_CHUNK))
    return Claim(
        Cause.OVERLOAD,
        taken,
        (
            Fact(f"prompts took {percent(share)} of the engine's time", engine_load_source(case.summary)),
            *_engine_load_facts(case.summary),
            Fact(f"this adds {ms(taken.seconds)} to a slow stream's token", FactSource.DERIVED),
        ),
        "a token takes as long at half the load",
    )


def _prompts_fill(share: float, load: EngineLoad) -> bool:
    """Whether many requests are in an engine whose time goes into prompts."""
    return share >= MOSTLY_PROMPTS and load.requests_mean >= MANY_AT_ONCE and load.idle_share <= NEVER_IDLE


def _prompts_are_short(case: StreamCase) -> bool:
    """Whether no prompt stalls a stream noticeably, so that only their number slows streams."""
    start, stream = case.summary.start, case.stream
    if start is None or not stream.step_timed or stream.stall_lost_s > STALLS_MATTER * stream.lost_s:
        return False
    return start.seconds(Part.PREFILL) < SHORT_PROMPT * case.slo.ttft_s


def _engine_load_facts(summary: WindowSummary) -> list[Fact]:
    engine_load, workload = fullest(summary), summary.workload
    if engine_load is not None:
        words = f"up to {engine_load.waiting_max} waiting, {engine_load.running_mean:.1f} running on average"
        return [Fact(words, engine_load_source(summary))]
    if workload.waiting_max is None or workload.running_mean is None:
        return []
    words = f"up to {workload.waiting_max} waiting, {workload.running_mean:.1f} running on average"
    return [Fact(words, FactSource.COUNTERS)]


def grows(engine_load: EngineLoad) -> bool:
    """Whether the number of requests in the engine grows."""
    return engine_load.growth >= max(GROWTH, GROWTH_SHARE * engine_load.requests_mean)


def _if_prompts_are_seen(summary: WindowSummary) -> Confidence:
    """Whether prompts that fill the engine's time repeat each other is not seen from within it."""
    unseen = summary.seen_by.is_within_engine and (prompt_work_share(summary) or 0.0) > MOSTLY_PROMPTS
    return Confidence.MEDIUM if unseen else Confidence.HIGH


def _why_overloaded(summary: WindowSummary) -> tuple[Fact, Confidence]:
    """The evidence of overload, with confidence."""
    growth = max(
        (engine_load.growth for engine_load in engine_loads(summary) if grows(engine_load)), default=None
    )
    busy = mean_of(summary.engines, busy_share)
    if growth is not None:
        words = f"requests arrived faster than they finished: {growth:.0f} more in the engine at the end"
        return Fact(words, engine_load_source(summary)), _if_prompts_are_seen(summary)
    if busy is not None and busy >= SATURATED_SHARE:
        waited = max((engine_load.waited_share for engine_load in engine_loads(summary)), default=0.0)
        words = f"a step ran {percent(busy)} of the time, and requests waited {percent(waited)} of it"
        sure = _if_prompts_are_seen(summary) if waited > NOT_WAITING_SHARE else Confidence.LOW
        return Fact(words, FactSource.STEP_RECORD), sure
    if busy is not None:
        words = f"a step ran only {percent(busy)} of the time: requests arrived in bursts"
        return Fact(words, FactSource.STEP_RECORD), Confidence.LOW
    words = "the engine's utilization was not observed: overload is inferred from the waiting alone"
    return Fact(words, FactSource.DERIVED), Confidence.LOW
