from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.benchmark.statistics.max_rate import (
    LOOKS,
    MaxRate,
    StopSearch,
    Trial,
    TrialOutcome,
    clustering_of,
    requests_needed,
    search_max_rate,
)

Engine = Callable[[Trial], TrialOutcome | StopSearch]


def drive(engine: Engine, *, start_per_s: float = 1.0, attainment: float = 0.9, **options) -> MaxRate:
    search = search_max_rate(start_per_s, attainment, **options)
    try:
        trial = next(search)
        while True:
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
    found = drive(sharp(limit_per_s), start_per_s=start_per_s, tolerance=tolerance, max_seconds=inf)
    assert found.decided
    assert found.low is not None
    assert found.high is not None
    assert found.low <= limit_per_s < found.high <= found.low * (1 + tolerance)


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
    assert (nothing.low, nothing.decided) == (None, False)
    assert "down to 0.25/s failed" in nothing.words


def slow_alone(service_s: float) -> Engine:
    """Every reply takes this long, beyond the SLO whatever the rate."""
    return lambda trial: TrialOutcome(
        0, trial.requests, answered=trial.requests, mean_open=trial.rate_per_s * service_s
    )


def test_an_slo_that_no_lone_request_meets_ends_the_search_as_soon_as_requests_are_alone():
    found = drive(slow_alone(2.0), start_per_s=4.0)
    assert found.words.startswith(
        "not even a lone request meets the SLO; every rate tried down to 0.25/s failed"
    )
    assert [tried.rate_per_s for tried in found.tried] == [4.0, 2.0, 1.0, 0.5, 0.25]
    assert not found.decided


@pytest.mark.parametrize("met_alone", [0.6, 1.0])
def test_misses_by_overlap_are_not_put_down_to_lone_requests(met_alone):
    """A request meets the SLO only while no other is open, and then in so many of all cases."""

    def respond(trial: Trial) -> TrialOutcome:
        mean_open = trial.rate_per_s * 0.5
        met = round(met_alone * exp(-2 * mean_open) * trial.requests)
        return TrialOutcome(met, trial.requests, answered=trial.requests, mean_open=mean_open)

    found = drive(respond, start_per_s=8.0)
    assert ("lone" in found.words) == (met_alone < 0.9)
    assert (found.low is None) == (met_alone < 0.9)


def test_a_server_that_answers_nothing_is_not_asked_again():
    found = drive(lambda trial: TrialOutcome(0, trial.requests, answered=0))
    assert (found.trials, found.low, found.decided) == (1, None, False)
    assert found.words.startswith("no request was answered at 1/s")


def test_a_server_that_stops_answering_ends_the_search_with_what_had_held():
    def dies(trial: Trial) -> TrialOutcome:
        met = trial.requests if trial.rate_per_s < 4 else 0
        return TrialOutcome(met, trial.requests, answered=met)

    found = drive(dies)
    assert (found.low, found.high, found.decided) == (2.0, 4.0, False)
    assert found.words == "no request was answered at 4/s; held at 2/s, failed at 4/s"


@given(st.floats(0.5, 0.99999), st.floats(0.8, 1.0), st.integers(100, 20_000))
def test_no_trial_offers_more_than_a_plan_may_hold(attainment, share, most_requests):
    asked: list[int] = []

    def respond(trial: Trial) -> TrialOutcome:
        asked.append(trial.requests)
        return TrialOutcome(round(share * trial.requests), trial.requests)

    drive(respond, attainment=attainment, most_requests=most_requests)
    assert max(asked, default=0) <= most_requests


@given(st.floats(0.01, 10), st.floats(60, 1e5))
def test_all_trials_together_take_no_longer_than_allowed(start_per_s, max_seconds):
    spent_s = 0.0

    def respond(trial: Trial) -> TrialOutcome:
        nonlocal spent_s
        spent_s += trial.requests / trial.rate_per_s
        return TrialOutcome(0, trial.requests)

    search = search_max_rate(start_per_s, 0.9, max_seconds=max_seconds)
    try:
        trial = next(search)
        while True:
            trial = search.send(respond(trial))
    except StopIteration as ended:
        found = ended.value
    assert spent_s <= max_seconds
    assert "and all trials may take" in found.words
    assert found.words.endswith("failed" if found.tried else "no rate was tried")


def test_a_search_stopped_before_its_first_outcome_says_that_nothing_was_tried():
    found = drive(lambda trial: StopSearch("interrupted"))
    assert found == MaxRate(None, None, False, (), 0, "interrupted; no rate was tried")


@given(st.integers(0, 12))
def test_a_stopped_search_tells_which_rates_had_held_and_failed(after):
    outcomes: list[TrialOutcome] = []

    def respond(trial: Trial) -> TrialOutcome | StopSearch:
        if len(outcomes) == after:
            return StopSearch("the generator fell behind")
        outcome = sharp(5.0)(trial)
        assert isinstance(outcome, TrialOutcome)
        outcomes.append(outcome)
        return outcome

    found = drive(respond)
    if "fell behind" in found.words:
        assert found.words.startswith("the generator fell behind; ")
        assert not found.decided
    assert found.trials == len(outcomes)
    assert sum(tried.offered for tried in found.tried) == sum(outcome.offered for outcome in outcomes)
    assert found.low == max((tried.rate_per_s for tried in found.tried if tried.held), default=None)
    assert found.high == min((tried.rate_per_s for tried in found.tried if not tried.held), default=None)


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
