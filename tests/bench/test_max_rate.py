from __future__ import annotations

from collections.abc import Callable
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.bench.max_rate import (
    LOOKS,
    MaxRate,
    Trial,
    TrialOutcome,
    clustering_of,
    requests_needed,
    search_max_rate,
)

Engine = Callable[[Trial], TrialOutcome]


def drive(engine: Engine, *, start_per_s: float = 1.0, attainment: float = 0.9, **options) -> MaxRate:
    search = search_max_rate(start_per_s, attainment, **options)
    trial = next(search)
    while True:
        try:
            trial = search.send(engine(trial))
        except StopIteration as end:
            return end.value


def sharp(limit_per_s: float) -> Engine:
    """Every request meets the SLO up to the limit, none beyond."""
    return lambda trial: TrialOutcome(
        trial.requests if trial.rate_per_s <= limit_per_s else 0, trial.requests
    )


def queue(rng: np.random.Generator, service_per_s: float, slo_s: float) -> Engine:
    """One server's response: the share within the SLO as M/M/1 has it, seen through so many requests."""

    def respond(trial: Trial) -> TrialOutcome:
        spare = service_per_s - trial.rate_per_s
        if spare <= 0:
            return TrialOutcome(0, trial.requests, settled=False)
        return TrialOutcome(int(rng.binomial(trial.requests, 1 - exp(-spare * slo_s))), trial.requests)

    return respond


@pytest.mark.parametrize("attainment", [0.9, 0.99])
def test_the_bracket_holds_the_true_rate_in_nine_runs_of_ten(attainment):
    rng = np.random.default_rng(61)
    held, decided, held_when_decided = 0, 0, 0
    for _ in range(200):
        service_per_s = rng.uniform(5, 50)
        slo_s = rng.uniform(8, 40) / service_per_s
        true = service_per_s + log(1 - attainment) / slo_s
        found = drive(
            queue(rng, service_per_s, slo_s), start_per_s=rng.uniform(0.5, 20), attainment=attainment
        )
        assert found.low is not None
        assert found.high is not None
        assert found.high <= 1.1 * found.low * (1 + 1e-9)
        within = found.low <= true <= found.high
        held += within
        decided += found.decided
        held_when_decided += within and found.decided
    assert held >= 180
    assert decided >= 80
    assert held_when_decided >= 0.95 * decided


@given(st.floats(0.05, 500), st.floats(0.05, 500), st.floats(0.02, 0.5))
def test_a_sharp_limit_is_bracketed_from_any_start(limit_per_s, start_per_s, tolerance):
    found = drive(sharp(limit_per_s), start_per_s=start_per_s, tolerance=tolerance)
    assert found.decided
    assert found.low is not None
    assert found.high is not None
    assert found.low <= limit_per_s < found.high <= found.low * (1 + tolerance)
    assert found.rate_per_s == found.low


def test_a_share_too_close_to_call_is_looked_at_again_and_marked():
    asked: list[Trial] = []

    def coin(trial: Trial) -> TrialOutcome:
        asked.append(trial)
        share = 1.0 if trial.rate_per_s < 4 else 0.9 if trial.rate_per_s < 5 else 0.0
        return TrialOutcome(round(share * trial.requests), trial.requests)

    found = drive(coin, start_per_s=4.0, max_trials=60)
    first = [trial.requests for trial in asked[:LOOKS]]
    assert first == [first[0], first[0], 2 * first[0], 4 * first[0]]
    assert {trial.rate_per_s for trial in asked[:LOOKS]} == {4.0}
    assert not found.decided
    assert "too close to call" in found.words


def test_a_queue_that_grows_fails_whatever_the_share():
    def growing(trial: Trial) -> TrialOutcome:
        return TrialOutcome(trial.requests, trial.requests, settled=trial.rate_per_s < 3)

    found = drive(growing)
    assert found.high is not None
    assert found.high < 3.3
    assert "the queue grew" in found.words
    assert all(each.held is each.settled for each in found.tried)


def test_growth_seen_once_is_asked_for_again():
    seen: list[float] = []

    def startled(trial: Trial) -> TrialOutcome:
        calm = trial.rate_per_s in seen or trial.rate_per_s > 6
        seen.append(trial.rate_per_s)
        met = trial.requests if trial.rate_per_s <= 6 else 0
        return TrialOutcome(met, trial.requests, settled=calm)

    found = drive(startled)
    assert found.low is not None
    assert found.low == pytest.approx(6, rel=0.1)


def test_no_limit_found_is_said():
    everything = drive(lambda trial: TrialOutcome(trial.requests, trial.requests), max_trials=5)
    assert (everything.high, everything.decided, everything.trials) == (None, False, 5)
    assert "every rate tried up to 16/s held" in everything.words
    nothing = drive(lambda trial: TrialOutcome(0, trial.requests), max_trials=3)
    assert (nothing.low, nothing.rate_per_s, nothing.decided) == (None, None, False)
    assert "down to 0.25/s failed" in nothing.words


def test_bursts_of_misses_make_a_share_less_certain():
    scattered = drive(lambda trial: TrialOutcome(round(0.97 * trial.requests), trial.requests), max_trials=4)
    bursts = drive(
        lambda trial: TrialOutcome(round(0.97 * trial.requests), trial.requests, clustering=40.0),
        max_trials=4,
    )
    assert len(bursts.tried) < len(scattered.tried)
    assert not bursts.tried[0].certain


def test_an_end_that_seemed_clear_is_tried_again_once_bursts_are_seen():
    asked: list[float] = []

    def bursty_when_busy(trial: Trial) -> TrialOutcome:
        asked.append(trial.rate_per_s)
        if trial.rate_per_s <= 4:
            return TrialOutcome(round(0.98 * trial.requests), trial.requests)
        return TrialOutcome(0, trial.requests, clustering=10.0)

    found = drive(bursty_when_busy, start_per_s=4.0)
    assert found.low == 4.0
    assert asked.count(4.0) >= 2
    assert asked[1] == 8.0


def test_clustering_is_one_for_scattered_misses_and_a_burst_long_for_bursts():
    rng = np.random.default_rng(62)
    scattered = [clustering_of((rng.random(900) < 0.9).tolist()) for _ in range(40)]
    bursts = [clustering_of(np.repeat(rng.random(90) < 0.9, 10).tolist()) for _ in range(40)]
    assert np.mean(scattered) < 1.3
    assert np.mean(bursts) == pytest.approx(9, abs=2)


@pytest.mark.parametrize("met", [[], [True], [True] * 400, [False] * 400, [True, False] * 10])
def test_no_clustering_is_made_up_where_none_can_be_seen(met):
    assert clustering_of(met) == 1.0


def test_a_strict_attainment_asks_for_more_requests():
    assert requests_needed(0.5, 0.95) == 100
    assert requests_needed(0.99, 0.95) > 700


@pytest.mark.parametrize(
    "broken", [{"start_per_s": 0.0}, {"attainment": 1.0}, {"tolerance": 0.0}, {"max_trials": 0}]
)
def test_a_search_that_cannot_be_is_refused(broken):
    with pytest.raises(ValueError, match="a search needs"):
        drive(sharp(1.0), **broken)


@pytest.mark.parametrize(("met", "offered"), [(1, 0), (3, 2), (-1, 2)])
def test_an_outcome_that_cannot_be_is_refused(met, offered):
    with pytest.raises(ValueError, match="cannot have met"):
        TrialOutcome(met, offered)
