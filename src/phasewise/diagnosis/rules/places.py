"""Requests that wait for a place: no KV memory, a low cap, one engine fuller than the others, or too many."""

from __future__ import annotations

from phasewise.costs.step_work import decoding
from phasewise.diagnosis.cause import Cause, Confidence
from phasewise.diagnosis.finding import Fact, FactSource
from phasewise.diagnosis.picture import Picture
from phasewise.diagnosis.rules.case import BEHIND_OTHERS, Claim, StartCase
from phasewise.diagnosis.rules.engines import (
    busy_share,
    context_tokens,
    crowd_source,
    crowds,
    fullest,
    mean_of,
    over_waiting,
    prompt_work_share,
)
from phasewise.diagnosis.rules.machine import SATURATED_SHARE
from phasewise.diagnosis.rules.words import ms, percent
from phasewise.diagnosis.seen_by import clock_source
from phasewise.diagnosis.surroundings import Crowd, EngineSurroundings
from phasewise.model.timeline import Part

KV_FULL = 0.9
"""A KV cache this full has no room for another ordinary request."""
UNEVEN_FACTOR = 2.0
"""Engines whose loads differ by less are as even as chance makes them."""
NOT_WAITING_SHARE = 0.2
"""An engine at which requests waited less of the time than this had places free."""
CHEAP_RATIO = 1.5
"""Twice as many streams for at most this much longer steps is a gain worth having."""
CHEAP_RATIO_UNFITTED = 1.3
"""The same, judged from a full step beside a lone one, which says nothing of steps that are fuller still."""
MOSTLY_PROMPTS = 0.6
"""An engine that spends more of its time on prompts has little to gain from fuller decode steps."""
FEW_RUNNING = 8
"""Any engine takes as many streams at nearly the cost of one: weights are read once for all."""
GROWTH = 2.0
"""So many more requests in the engine at the end than at the beginning are not chance,"""
GROWTH_SHARE = 0.3
"""if they are also this much of those that were in it on average."""


def kv_exhausted(case: StartCase) -> Claim | None:
    """Requests wait because the KV cache has no room for them."""
    share, sure = over_waiting(case.picture, lambda crowd: crowd.kv_full_share), Confidence.HIGH
    workload = case.picture.workload
    if share is None and (workload.preemptions or 0) > 0 and (workload.kv_usage_max or 0.0) >= KV_FULL:
        share, sure = 1.0, Confidence.LOW
    if not share:
        return None
    taken = case.account.take(share, Part.ENGINE_QUEUE)
    facts = [
        Fact(
            f"for {percent(share)} of the time that requests waited, the KV cache had no room for another",
            crowd_source(case.picture) if sure is Confidence.HIGH else FactSource.DERIVED,
        ),
        *kv_facts(case.picture),
        Fact(f"{ms(taken.seconds)} of TTFT went by like that", FactSource.DERIVED),
    ]
    return Claim(
        Cause.KV_EXHAUSTED, taken, tuple(facts), "requests wait as long with twice the KV memory", sure
    )


def kv_facts(picture: Picture) -> list[Fact]:
    """How full the KV cache was, how large it is, and who lost a place in it."""
    facts = []
    known = crowds(picture)
    usage = max((crowd.kv_usage_max for crowd in known), default=picture.workload.kv_usage_max)
    sizes = [engine.kv_tokens for engine in picture.engines if engine.kv_tokens is not None]
    if usage is not None:
        holds = f" of {min(sizes)} tokens" if sizes else ""
        facts.append(Fact(f"the KV cache{holds} was up to {percent(usage)} full", crowd_source(picture)))
    if preempted := preemptions(picture):
        facts.append(Fact(f"{preempted:.0f} times a running request lost its place", FactSource.COUNTERS))
    return facts


def preemptions(picture: Picture) -> float | None:
    """How often a running request lost its place; None where nobody counts."""
    counted = [engine.preemptions for engine in picture.engines if engine.preemptions is not None]
    return sum(counted) if counted else picture.workload.preemptions


def uneven_load(case: StartCase) -> Claim | None:
    """Requests wait at one engine while another has places free."""
    known = _of_fullest_model(case.picture)
    if len(known) < 2:
        return None
    full, most = max(known, key=lambda pair: _load(pair[1]))
    idle, least = min(known, key=lambda pair: _load(pair[1]))
    uneven = _load(most) >= UNEVEN_FACTOR * max(_load(least), 0.5)
    if not uneven or least.waited_share > NOT_WAITING_SHARE or not most.waiting_mean:
        return None
    every = [crowd for _, crowd in known]
    share = _spared_by_evenness(every)
    taken = case.account.take(share, Part.ENGINE_QUEUE)
    taken += case.account.take(_load_spared(every), Part.PREFILL_OTHERS)
    return Claim(
        Cause.UNEVEN_LOAD,
        taken,
        (
            Fact(
                f"{full.name} had {_load(most):.1f} requests on average, {most.waiting_mean:.1f} of "
                f"them waiting; {idle.name} had {_load(least):.1f}, {least.waiting_mean:.1f} waiting",
                crowd_source(case.picture),
            ),
            *_starts_there(case, full, idle),
            Fact(f"spread evenly, {percent(share)} of the waiting would not be", FactSource.DERIVED),
        ),
        "requests wait as long when each goes to the engine with the fewest",
        Confidence.MEDIUM,
    )


def _of_fullest_model(picture: Picture) -> list[tuple[EngineSurroundings, Crowd]]:
    """The crowds of the engines that could have stood in for the one with the longest queue."""
    known = [(engine, engine.crowd) for engine in picture.engines if engine.crowd is not None]
    full = max(known, key=lambda pair: pair[1].waiting_mean, default=None)
    return [pair for pair in known if full is not None and pair[0].model == full[0].model]


def _load(crowd: Crowd) -> float:
    return crowd.running_mean + crowd.waiting_mean


def _spared_by_evenness(known: list[Crowd]) -> float:
    """The share of the waiting that would vanish: an even load waits only beyond what an engine runs."""
    even = sum(map(_load, known)) / len(known)
    places = max(crowd.running_max for crowd in known)
    waiting = sum(crowd.waiting_mean for crowd in known)
    return max(0.0, 1.0 - max(0.0, even - places) * len(known) / waiting)


def _load_spared(known: list[Crowd]) -> float:
    """How much smaller the company of a typical request would be."""
    total = sum(map(_load, known))
    company = sum(_load(crowd) ** 2 for crowd in known) / total
    return 1.0 - total / len(known) / company


def _starts_there(case: StartCase, full: EngineSurroundings, idle: EngineSurroundings) -> list[Fact]:
    starts = {start.engine: start.ttft_mean_s for start in case.start.by_engine}
    if full.name not in starts or idle.name not in starts:
        return []
    return [
        Fact(
            f"mean TTFT {ms(starts[full.name])} at {full.name}, {ms(starts[idle.name])} at {idle.name}",
            clock_source(case.picture.seen_by),
        )
    ]


def batch_cap_low(case: StartCase) -> Claim | None:
    """Requests wait though there is KV memory, and running more at once would cost little."""
    share, crowd = over_waiting(case.picture, lambda crowd: crowd.capped_share), fullest(case.picture)
    if not share or crowd is None:
        return None
    cheap = _cheap_to_run_more(case.picture, crowd)
    if cheap is None:
        return None
    fact, sure = cheap
    taken = case.account.take(share, Part.ENGINE_QUEUE)
    return Claim(
        Cause.BATCH_CAP_LOW,
        taken,
        (
            Fact(
                f"never more than {crowd.running_max} ran at once while up to {crowd.waiting_max} waited, "
                f"for {percent(share)} of the waiting with room in the KV cache",
                crowd_source(case.picture),
            ),
            fact,
            Fact(f"{ms(taken.seconds)} of TTFT went by like that", FactSource.DERIVED),
        ),
        "requests wait as long with twice the batch cap",
        sure,
    )


def _cheap_to_run_more(picture: Picture, crowd: Crowd) -> tuple[Fact, Confidence] | None:
    """Why twice as many streams would cost little, and how surely; None where they would not."""
    now = crowd.running_max
    if not _decoding_matters(picture):
        return None
    if picture.fit is not None and picture.fit.tells_batches and now:
        context = context_tokens(picture)
        more = decoding([context] * 2 * now)
        ratio = picture.fit.cost(more) / picture.fit.cost(decoding([context] * now))
        words = f"a step of {2 * now} streams should take {ratio:.1f}x one of {now}"
        sure = Confidence.HIGH if picture.fit.predict(more) is not None else Confidence.MEDIUM
        return (Fact(words, FactSource.FIT), sure) if ratio <= CHEAP_RATIO else None
    lone_s, full_s = _lone_and_usual_step_s(picture)
    if lone_s and full_s and now > 2:
        words = f"a usual decode step takes {full_s / lone_s:.1f}x a nearly empty one"
        cheap = full_s <= CHEAP_RATIO_UNFITTED * lone_s
        return (Fact(words, FactSource.STEP_RECORD), Confidence.MEDIUM) if cheap else None
    if now > FEW_RUNNING:
        return None
    words = "one stream leaves most of an engine unused" if now == 1 else f"{now} streams at once are few"
    sure = Confidence.MEDIUM if now == 1 else Confidence.LOW
    return Fact(f"{words}: more usually take nearly the same step", FactSource.DERIVED), sure


def _decoding_matters(picture: Picture) -> bool:
    """Streams share a step, prompts do not: where prompts fill the engine, more at once are no faster."""
    share = prompt_work_share(picture)
    return _prefill_fits(picture) if share is None else share <= MOSTLY_PROMPTS


def _prefill_fits(picture: Picture) -> bool:
    """Whether all prefills fit into the window one after the other, where no steps tell what shared one."""
    if picture.start is None:
        return True
    answered = picture.start.requests - picture.start.unanswered
    prefill_s = picture.start.seconds(Part.PREFILL) * answered
    return prefill_s < picture.window_s * max(1, len(picture.engines))


def _lone_and_usual_step_s(picture: Picture) -> tuple[float | None, float | None]:
    lone_s = mean_of(picture.engines, lambda engine: engine.steps.lone_step_s if engine.steps else None)
    usual_s = mean_of(
        picture.engines, lambda engine: engine.steps.decode_step_p50_s if engine.steps else None
    )
    return lone_s, usual_s


def overload(case: StartCase) -> Claim | None:
    """More is asked than the engines can do: what is left of the waiting behind others."""
    parts = {part: case.account.seconds(part) for part in BEHIND_OTHERS}
    taken = case.account.take(1.0, *BEHIND_OTHERS)
    if not taken.seconds:
        return None
    why, sure = _why_overloaded(case.picture)
    return Claim(
        Cause.OVERLOAD,
        taken,
        (
            Fact(
                f"waiting behind other requests: {ms(parts[Part.ENGINE_QUEUE])} in the engine's queue, "
                f"{ms(parts[Part.STEP_IN_FLIGHT])} for the running step, "
                f"{ms(parts[Part.PREFILL_OTHERS])} in steps shared with others",
                FactSource.STEP_RECORD if case.start.step_timed else FactSource.ENGINE_REPORT,
            ),
            *_crowd_facts(case.picture),
            why,
        ),
        "TTFT stays as high at half the load",
        sure,
    )


def _crowd_facts(picture: Picture) -> list[Fact]:
    crowd, workload = fullest(picture), picture.workload
    if crowd is not None:
        words = f"up to {crowd.waiting_max} waiting, {crowd.running_mean:.1f} running on average"
        return [Fact(words, crowd_source(picture))]
    if workload.waiting_max is None or workload.running_mean is None:
        return []
    words = f"up to {workload.waiting_max} waiting, {workload.running_mean:.1f} running on average"
    return [Fact(words, FactSource.COUNTERS)]


def grows(crowd: Crowd) -> bool:
    """Whether requests pile up in the engine."""
    return crowd.growth >= max(GROWTH, GROWTH_SHARE * _load(crowd))


def _why_overloaded(picture: Picture) -> tuple[Fact, Confidence]:
    """What shows that it is too much, and how surely."""
    growth = max((crowd.growth for crowd in crowds(picture) if grows(crowd)), default=None)
    busy = mean_of(picture.engines, busy_share)
    if growth is not None:
        words = f"requests came faster than they left: {growth:.0f} more in the engine at the end"
        return Fact(words, crowd_source(picture)), Confidence.HIGH
    if busy is not None and busy >= SATURATED_SHARE:
        waited = max((crowd.waited_share for crowd in crowds(picture)), default=0.0)
        words = f"a step ran {percent(busy)} of the time, and requests waited {percent(waited)} of it"
        sure = Confidence.HIGH if waited > NOT_WAITING_SHARE else Confidence.LOW
        return Fact(words, FactSource.STEP_RECORD), sure
    if busy is not None:
        words = f"a step ran only {percent(busy)} of the time: requests came in bursts"
        return Fact(words, FactSource.STEP_RECORD), Confidence.LOW
    words = "how busy the engine was is not known: that it is too much is read from the waiting alone"
    return Fact(words, FactSource.DERIVED), Confidence.LOW
