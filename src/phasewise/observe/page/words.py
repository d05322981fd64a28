"""What the vocabulary of a verdict is called in plain words, on the screen and on the page alike."""

from __future__ import annotations

from phasewise.diagnosis.cause import Cause, Phase
from phasewise.diagnosis.finding import Finding
from phasewise.diagnosis.stall_causes import StallCause
from phasewise.diagnosis.verdict import Ruling, Verdict

RULINGS = {
    Ruling.SLOW_TO_START: "slow to start",
    Ruling.SLOW_TO_STREAM: "slow to stream",
    Ruling.FAILING: "requests fail",
    Ruling.HEALTHY: "healthy",
    Ruling.TOO_LITTLE_SEEN: "too little seen to say",
}
CAUSES = {
    Cause.OVERLOAD: "more requests come than the engines can serve",
    Cause.BATCH_CAP_LOW: "the batch cap is too low",
    Cause.KV_EXHAUSTED: "the KV cache is full",
    Cause.UNEVEN_LOAD: "some engines are loaded more than others",
    Cause.LONG_PROMPTS: "long prompts take long to compute",
    Cause.CHUNKS_SMALL: "prompts are cut into chunks that are too small",
    Cause.PREFIX_CACHE_OFF: "the prefix cache is off",
    Cause.PREFIX_SALTED: "prompts differ before the part they share",
    Cause.PREFIX_SCATTERED: "prompts that begin alike go to different engines",
    Cause.PREFIX_EVICTED: "shared beginnings leave the cache too soon",
    Cause.KV_NOT_HANDED_OVER: "prompts are computed twice, as their KV is not handed over",
    Cause.CHUNKS_STALL: "prompts of others stall the streams",
    Cause.ENGINE_PAUSES: "the engine stands still now and then",
    Cause.SLOW_CLIENT: "the client reads slowly",
    Cause.DECODE_WEIGHTS: "every token has to read all the weights",
    Cause.DECODE_KV_READS: "every token has to read a long KV cache",
    Cause.DECODE_OVERHEAD: "every step has a fixed overhead",
    Cause.DECODE_FLOOR: "a step takes long even with a single stream",
    Cause.BATCH_CAP_HIGH: "too many streams share a step",
    Cause.SPECULATION_UNPAID: "guessing tokens ahead costs more than it saves",
    Cause.ENGINE_STARVED: "the engine does not get the CPU it wants",
    Cause.COLD_START: "the engine is still warming up",
    Cause.FRONT_END_BUSY: "the engine's front end is out of CPU",
    Cause.NETWORK_OR_PROXY: "time is lost on the way to the engine and back",
    Cause.GATEWAY: "requests wait in the gateway",
    Cause.GENERATOR_LAG: "the load generator sends late",
    Cause.WARM_CACHE: "the cache was warm from before the window",
    Cause.DRIFT: "latencies drifted during the window",
}
NOT_THE_SERVER = frozenset({Cause.GENERATOR_LAG})
"""Causes that weigh in a phase though nothing at the server would change them."""
UNEXPLAINED_SHARE = 0.1
"""A verdict says how much it does not explain from here on."""
WHOLES = {Phase.START: "of the mean TTFT", Phase.STREAM: "of the mean time per token"}
STALLS = {
    StallCause.PREFILL_CHUNK: "a prompt's chunk",
    StallCause.PREEMPTION: "a preemption",
    StallCause.SLOW_STEP: "a slow step without any prompt",
    StallCause.PAUSE: "a pause: the engine had work and did none",
    StallCause.COLD_STEP: "a cold step: the first of its kind",
    StallCause.STEPS_WENT_ON: "none of the steps: they went on as usual",
    StallCause.ENGINE_IDLE: "no step: the engine stood still",
    StallCause.CLIENT: "its reader, who did not take what was there",
    StallCause.UNKNOWN: "something that no record shows",
}


def headline(verdict: Verdict) -> str:
    """What the verdict comes to, without its confidence."""
    ruling = RULINGS[verdict.ruling].upper()
    return ruling if verdict.top is None else f"{ruling}: {CAUSES[verdict.top.cause]}"


def also_slow(verdict: Verdict) -> str:
    """The phase that is slow besides, in words; empty where there is none."""
    return "" if verdict.also_slow is None else f"also {verdict.also_slow.value.replace('_', ' ')}"


def weight(finding: Finding) -> str:
    """How much of its phase a finding makes up."""
    whole = WHOLES.get(finding.phase)
    return f"{finding.share:.0%} {whole}" if whole is not None else "about the measurement"


def cost(finding: Finding, verdict: Verdict) -> str:
    """How much of its phase a finding makes up, and of what users lost there, which may be far more."""
    lost = {
        Phase.START: verdict.picture.start.lost_s if verdict.picture.start is not None else 0.0,
        Phase.STREAM: verdict.picture.stream.lost_s if verdict.picture.stream is not None else 0.0,
    }.get(finding.phase, 0.0)
    if lost <= 0:
        return weight(finding)
    return f"{weight(finding)}, {min(finding.lost_s / lost, 1.0):.0%} of the time lost beyond the objective"


def unexplained(verdict: Verdict) -> str:
    """How much of what users lost no cause accounts for, where that is more than little."""
    missing = verdict.unexplained_share
    if missing is None or missing < UNEXPLAINED_SHARE:
        return ""
    return f"no cause was found for {missing:.0%} of the time that was lost"


def is_caveat(finding: Finding) -> bool:
    """Whether a finding speaks of the measurement, not of the server."""
    return finding.phase is Phase.MEASUREMENT or finding.cause in NOT_THE_SERVER


def caveats(verdict: Verdict) -> tuple[str, ...]:
    """What is to be known before anything else is believed or changed, each with a word of warning."""
    return tuple(_caveat(found, verdict) for found in verdict.findings if is_caveat(found))


def _caveat(found: Finding, verdict: Verdict) -> str:
    warning = "not your server" if found.cause in NOT_THE_SERVER else "careful"
    if found is verdict.top:
        return f"{warning}: no change to the engine would help"
    told = "; ".join(fact.words for fact in found.facts)
    return f"{warning}: {CAUSES[found.cause]}{f' ({told})' if told else ''}"


def what_next(verdict: Verdict) -> str:
    """What a reader does where no fix is called for; empty where there is a finding to act on."""
    if verdict.ruling is Ruling.TOO_LITTLE_SEEN:
        return "send streamed requests while this runs, or add --probe to let us send a few"
    if verdict.ruling is Ruling.FAILING:
        return _find_out_why(verdict)
    if verdict.ruling is Ruling.HEALTHY:
        return _all_is_well(verdict)
    if verdict.top is None:
        return "no rule explains it from what was seen; what is missing stands under what is not known"
    return ""


def _find_out_why(verdict: Verdict) -> str:
    start = verdict.picture.start
    if start is None or start.unanswered == start.requests or start.late > start.unanswered:
        return "find out why requests are not answered: their outcomes and the engine's log tell"
    return "those that were answered were fast: find out why the others were not"


def _all_is_well(verdict: Verdict) -> str:
    picture = verdict.picture
    if picture.start is None or picture.stream is None:
        unseen = "the start" if picture.start is None else "streaming"
        return f"nothing for what was seen; {unseen} was not"
    return "nothing: both phases meet their objective"
