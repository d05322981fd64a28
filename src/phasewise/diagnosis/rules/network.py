"""Rules for time outside the engine: load generator, gateway, network; and caveats."""

from __future__ import annotations

from collections.abc import Iterator

from phasewise.core.slo import Slo
from phasewise.core.timeline import Part
from phasewise.diagnosis.analysis.stall_causes import StallCause
from phasewise.diagnosis.analysis.ttft import StartSummary
from phasewise.diagnosis.analysis.window_summary import Trust, WindowSummary
from phasewise.diagnosis.finding import Cause, Confidence, Fact, FactSource, Finding, Phase
from phasewise.diagnosis.rules.case import (
    UNEXPLAINED,
    Claim,
    StartCase,
    StreamCase,
    Taken,
    mean_of,
    ms,
    percent,
    slots_are_taken,
    stall_part,
    worst_of,
)
from phasewise.diagnosis.rules.machine import FRONT_END_FULL_CORES, STARVED_SHARE

NEAR_ROUND_TRIP = 0.5
"""A round trip of at least this share of the unexplained time explains it."""


def generator_lag_start(case: StartCase) -> Claim | None:
    """The load generator sent late, and therefore also read late."""
    lag_s = case.account.seconds(Part.CLIENT_LAG)
    taken = case.account.take(1.0, Part.CLIENT_LAG)
    taken += case.account.take_seconds(lag_s, UNEXPLAINED)
    return _generator_lag(lag_s, case.summary.trust.lag_p90_s, taken)


def generator_lag_stream(case: StreamCase) -> Claim | None:
    """A generator that is later than the TPOT objective cannot time tokens."""
    trust = case.summary.trust
    if trust.lag_p90_s is None or trust.lag_p90_s < case.slo.tpot_s:
        return None
    taken = case.account.take(1.0, UNEXPLAINED, stall_part(StallCause.STEPS_WENT_ON))
    return _generator_lag(trust.lag_mean_s or 0.0, trust.lag_p90_s, taken, Confidence.MEDIUM)


def _generator_lag(
    lag_s: float, p90_s: float | None, taken: Taken, sure: Confidence = Confidence.HIGH
) -> Claim:
    at_worst = f", {ms(p90_s)} at p90" if p90_s is not None else ""
    return Claim(
        Cause.GENERATOR_LAG,
        taken,
        (
            Fact(f"the load generator sent {ms(lag_s)} late on average{at_worst}", FactSource.CLIENT),
            Fact("this is not your server: the load generator was too busy", FactSource.DERIVED),
        ),
        "the same load from a separate machine shows the same figures",
        sure,
    )


def gateway_wait(case: StartCase) -> Claim | None:
    """The gateway held the request: admission, cache, routing, or failed attempts."""
    parts = (Part.GATEWAY_WAIT, Part.CACHE_LOOK_UP, Part.EARLIER_ATTEMPTS)
    # If engines have no free slot, the gateway waits for one: whoever holds those slots is the cause.
    own = 0.0 if slots_are_taken(case.summary) else 1.0
    waited_s, looked_up_s, tried_s = (case.account.seconds(part) for part in parts)
    waited_s *= own
    taken = case.account.take(own, parts[0]) + case.account.take(1.0, *parts[1:])
    looked_up = f", {ms(looked_up_s)} looking for a stored answer" if looked_up_s else ""
    return Claim(
        Cause.GATEWAY,
        taken,
        (
            Fact(
                f"the gateway took {ms(waited_s)} before it forwarded the request{looked_up}, "
                f"and {ms(tried_s)} in failed attempts",
                FactSource.GATEWAY,
            ),
        ),
        "the same request sent directly to the engine's port is as slow",
    )


def network_start(case: StartCase) -> Claim | None:
    """Unexplained time: as long as a round trip, or with no other possible cause."""
    unexplained_s, seen_by = case.account.seconds(UNEXPLAINED), case.summary.seen_by
    if not _engine_is_timed(case.start) or not unexplained_s or seen_by.is_within_engine:
        return None
    trips = _long_round_trip(case.summary, unexplained_s)
    if trips and seen_by.is_straight_from_here:
        return _network(case.account.take(1.0, UNEXPLAINED), trips, Confidence.HIGH)
    calm = _host_is_calm(case.summary)
    if calm is False:
        return None
    taken = case.account.take(1.0, UNEXPLAINED)
    sure = Confidence.MEDIUM if calm else Confidence.LOW
    return _network(taken, [_by_exclusion(calm), *trips], sure)


def _engine_is_timed(start: StartSummary) -> bool:
    """Whether the engine's own part of TTFT is known: else what is unexplained may be in the engine."""
    parts = start.late_parts or start.parts
    return bool(start.timed) and any(entry.part is Part.PREFILL and entry.seconds > 0 for entry in parts)


def _long_round_trip(summary: WindowSummary, unexplained_s: float) -> list[Fact]:
    """The fact that a round trip is as long as the unexplained time, measured from here."""
    round_trip_s = mean_of(summary.engines, lambda engine: engine.round_trip_s)
    if round_trip_s is None or round_trip_s < NEAR_ROUND_TRIP * unexplained_s:
        return []
    words = f"the fastest round trip from here takes {ms(round_trip_s)}"
    return [Fact(words, FactSource.CLIENT)]


def network_stream(case: StreamCase) -> Claim | None:
    """Tokens that were computed and arrived late, with no other possible cause."""
    if not case.stream.step_timed or case.summary.seen_by.is_within_engine:
        return None
    if not _host_is_calm(case.summary):
        return None
    taken = case.account.take(1.0, UNEXPLAINED, stall_part(StallCause.STEPS_WENT_ON))
    return _network(taken, [_by_exclusion(True)], Confidence.LOW)


def _host_is_calm(summary: WindowSummary) -> bool | None:
    """Whether the engines' front ends and hosts had spare CPU; None if not observed."""
    front = worst_of(summary.engines, lambda engine: engine.front_end_cores)
    waits = worst_of(summary.engines, lambda engine: engine.cpu_wait_share)
    if front is None and waits is None:
        return None
    front_is_calm = front is None or (front.front_end_cores or 0.0) < FRONT_END_FULL_CORES
    return front_is_calm and (waits is None or (waits.cpu_wait_share or 0.0) < STARVED_SHARE)


def _by_exclusion(calm: bool | None) -> Fact:
    if calm:
        words = "by exclusion: the engine's front end and its host had spare CPU"
        return Fact(words, FactSource.HOST)
    words = "by exclusion: neither the engine's front end nor its host was observed"
    return Fact(words, FactSource.DERIVED)


def _network(taken: Taken, ways: list[Fact], sure: Confidence) -> Claim:
    return Claim(
        Cause.NETWORK_OR_PROXY,
        taken,
        (Fact(f"{ms(taken.seconds)} of it is outside the engine's own timings", FactSource.DERIVED), *ways),
        "the same request from the engine's own machine, directly to its port, is as slow",
        sure,
    )


# --- Caveats: signs that the measurement cannot be trusted. They are always reported.

WARM_SHARE = 0.2
"""A larger share of accidentally cached tokens makes TTFT look better than it is."""
DRIFT_RATIO = 1.5
"""A smaller change within the window is no drift."""
LAG_OF_OBJECTIVE = 0.1
"""A delay of the generator by a larger share of the objective distorts every figure."""


def caveats(trust: Trust, slo: Slo) -> Iterator[Finding]:
    """All caveats."""
    if trust.lag_p90_s is not None and trust.lag_p90_s >= LAG_OF_OBJECTIVE * slo.ttft_s:
        yield _caveat(
            Cause.GENERATOR_LAG,
            min(1.0, trust.lag_p90_s / slo.ttft_s),
            Fact(
                f"the load generator sent up to {ms(trust.lag_p90_s)} late (p90), "
                f"{ms(trust.lag_mean_s)} on average: that time is not your server's",
                FactSource.CLIENT,
            ),
            "the same load from a separate machine shows the same figures",
        )
    if trust.warm_share is not None and trust.warm_share >= WARM_SHARE:
        yield _caveat(
            Cause.WARM_CACHE,
            trust.warm_share,
            Fact(
                f"{percent(trust.warm_share)} of the prompt tokens came from the prefix cache though no "
                "request of this window had sent them: an earlier run left them there",
                FactSource.ENGINE_REPORT,
            ),
            "the same requests have the same TTFT after the engine's cache was reset",
        )
    drifts = {"TTFT": trust.ttft_drift, "time per output token": trust.tpot_drift}
    for name, ratio in drifts.items():
        if ratio is not None and ratio > 0 and max(ratio, 1 / ratio) >= DRIFT_RATIO:
            yield _caveat(
                Cause.DRIFT,
                abs(1 - min(ratio, 1 / ratio)),
                Fact(
                    f"{name} in the last third of the window is {ratio:.1f}x that of the first: "
                    "the figures depend on the length of the window",
                    FactSource.DERIVED,
                ),
                "a longer window shows the same figures from beginning to end",
            )


def _caveat(cause: Cause, share: float, fact: Fact, refuted_by: str) -> Finding:
    return Finding(Phase.MEASUREMENT, cause, share, 0.0, (fact,), Confidence.MEDIUM, refuted_by)
