"""Time on the way: in the load generator, in the gateway, and between machines."""

from __future__ import annotations

from phasewise.diagnosis.cause import Cause, Confidence
from phasewise.diagnosis.finding import Fact, FactSource
from phasewise.diagnosis.picture import Picture
from phasewise.diagnosis.rules.account import Taken
from phasewise.diagnosis.rules.case import RESIDUAL, Claim, StartCase, StreamCase, stall_part
from phasewise.diagnosis.rules.engines import mean_of, worst_of
from phasewise.diagnosis.rules.machine import FRONT_END_FULL_CORES, STARVED_SHARE
from phasewise.diagnosis.rules.words import ms
from phasewise.diagnosis.seen_by import is_straight_from_here, is_within_engine
from phasewise.diagnosis.stall_causes import StallCause
from phasewise.model.timeline import Part

NEAR_ROUND_TRIP = 0.5
"""A request makes one round trip at least: one that takes this much of the unexplained time explains it."""


def generator_lag_start(case: StartCase) -> Claim | None:
    """The load generator sent late; what sends late also reads late, by as much."""
    lag_s = case.account.seconds(Part.CLIENT_LAG)
    taken = case.account.take(1.0, Part.CLIENT_LAG)
    taken += case.account.take_seconds(lag_s, RESIDUAL)
    return _generator_lag(lag_s, case.picture.trust.lag_p90_s, taken)


def generator_lag_stream(case: StreamCase) -> Claim | None:
    """A generator that is later than a token may be cannot time tokens: chunks waited to be read."""
    trust = case.picture.trust
    if trust.lag_p90_s is None or trust.lag_p90_s < case.slo.tpot_s:
        return None
    taken = case.account.take(1.0, RESIDUAL, stall_part(StallCause.STEPS_WENT_ON))
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
            Fact("this is not your server: the generator had no time", FactSource.DERIVED),
        ),
        "the same load from a machine of its own shows the same figures",
        sure,
    )


def gateway_wait(case: StartCase) -> Claim | None:
    """The gateway held the request: in admission, in its cache, in routing, or in attempts that failed."""
    parts = (Part.GATEWAY_WAIT, Part.CACHE_LOOK_UP, Part.EARLIER_ATTEMPTS)
    waited_s, looked_up_s, tried_s = (case.account.seconds(part) for part in parts)
    taken = case.account.take(1.0, *parts)
    looked_up = f", {ms(looked_up_s)} looking for a stored answer" if looked_up_s else ""
    return Claim(
        Cause.GATEWAY,
        taken,
        (
            Fact(
                f"the gateway took {ms(waited_s)} before it sent the request on{looked_up}, "
                f"and {ms(tried_s)} in attempts that were given up",
                FactSource.GATEWAY,
            ),
        ),
        "the same request sent straight to the engine's port is as slow",
    )


def network_start(case: StartCase) -> Claim | None:
    """Time between the clocks: as long as a round trip, or with nothing else left that could take it."""
    residual_s, seen_by = case.account.seconds(RESIDUAL), case.picture.seen_by
    if not case.start.timed or not residual_s or is_within_engine(seen_by):
        return None
    trips = _long_round_trip(case.picture, residual_s)
    if trips and is_straight_from_here(seen_by):
        return _network(case.account.take(1.0, RESIDUAL), trips, Confidence.HIGH)
    calm = _host_is_calm(case.picture)
    if calm is False:
        return None
    taken = case.account.take(1.0, RESIDUAL)
    sure = Confidence.MEDIUM if calm else Confidence.LOW
    return _network(taken, [_by_exclusion(calm), *trips], sure)


def _long_round_trip(picture: Picture, residual_s: float) -> list[Fact]:
    """That a request's way there and back is as long as what is missing, where it is; seen from here."""
    round_trip_s = mean_of(picture.engines, lambda engine: engine.round_trip_s)
    if round_trip_s is None or round_trip_s < NEAR_ROUND_TRIP * residual_s:
        return []
    words = f"from here, an empty request there and back takes {ms(round_trip_s)} at best"
    return [Fact(words, FactSource.CLIENT)]


def network_stream(case: StreamCase) -> Claim | None:
    """Tokens that the engine had computed and that came late, with nothing else left that could hold them."""
    if not case.stream.step_timed or is_within_engine(case.picture.seen_by):
        return None
    if not _host_is_calm(case.picture):
        return None
    taken = case.account.take(1.0, RESIDUAL, stall_part(StallCause.STEPS_WENT_ON))
    return _network(taken, [_by_exclusion(True)], Confidence.LOW)


def _host_is_calm(picture: Picture) -> bool | None:
    """Whether the engines' front ends and hosts had time to spare; None where nobody can say."""
    front = worst_of(picture.engines, lambda engine: engine.front_end_cores)
    waits = worst_of(picture.engines, lambda engine: engine.cpu_wait_share)
    if front is None and waits is None:
        return None
    front_is_calm = front is None or (front.front_end_cores or 0.0) < FRONT_END_FULL_CORES
    return front_is_calm and (waits is None or (waits.cpu_wait_share or 0.0) < STARVED_SHARE)


def _by_exclusion(calm: bool | None) -> Fact:
    if calm:
        words = "by exclusion: the engine's front end and its host had time to spare"
        return Fact(words, FactSource.HOST)
    words = "by exclusion: neither the engine's front end nor its host could be looked at"
    return Fact(words, FactSource.DERIVED)


def _network(taken: Taken, ways: list[Fact], sure: Confidence) -> Claim:
    return Claim(
        Cause.NETWORK_OR_PROXY,
        taken,
        (Fact(f"no engine clock saw {ms(taken.seconds)} of it", FactSource.DERIVED), *ways),
        "the same request from the engine's own machine, straight to its port, is as slow",
        sure,
    )
