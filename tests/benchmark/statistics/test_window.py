from __future__ import annotations

from random import Random

import pytest

from phasewise.benchmark.statistics.window import choose_window
from phasewise.core.timeline import Outcome
from tests.builders import EPOCH_S, make_timeline


def arrivals(ttfts_s: list[float], every_s: float = 0.1, **fields):
    return [
        make_timeline((ttft_s, ttft_s + 0.1, ttft_s + 0.2), started_unix_s=EPOCH_S + every_s * at, **fields)
        for at, ttft_s in enumerate(ttfts_s)
    ]


def noisy(count: int, level_s: float = 0.2) -> list[float]:
    rng = Random(5)  # noqa: S311 - noise, no secret
    return [level_s * rng.uniform(0.9, 1.1) for _ in range(count)]


def test_the_warm_up_is_left_out_and_the_window_begins_after_it():
    window = choose_window(arrivals(noisy(30, 2.0) + noisy(170)), EPOCH_S)
    assert 25 <= window.warm_up_requests <= 50
    assert window.start_s == pytest.approx(0.1 * window.warm_up_requests)
    assert window.end_s == pytest.approx(19.9)
    assert (window.judged, window.settled) == (True, True)


def test_a_run_whose_latencies_only_grow_never_settles():
    window = choose_window(arrivals([0.2 + 0.05 * at for at in range(200)]), EPOCH_S)
    assert (window.judged, window.settled) == (True, False)


def test_few_requests_are_not_judged_and_all_count():
    window = choose_window(arrivals(noisy(20)), EPOCH_S)
    assert (window.warm_up_requests, window.judged, window.start_s) == (0, False, 0.0)


def test_requests_that_failed_do_not_move_the_end_of_the_warm_up():
    failed = [
        make_timeline((), outcome=Outcome.FAILED, output_tokens=None, started_unix_s=EPOCH_S + 0.01 * at)
        for at in range(40)
    ]
    measured = arrivals(noisy(30, 2.0) + noisy(170))
    window = choose_window([*failed, *measured], EPOCH_S)
    assert 65 <= window.warm_up_requests <= 90


def test_a_number_given_is_obeyed():
    window = choose_window(arrivals(noisy(30)), EPOCH_S, warm_up_requests=7)
    assert (window.warm_up_requests, window.start_s) == (7, pytest.approx(0.7))
    assert choose_window(arrivals(noisy(3)), EPOCH_S, warm_up_requests=9).warm_up_requests == 3


def test_requests_that_all_came_at_once_are_counted_until_the_last_is_answered():
    window = choose_window(arrivals(noisy(5), every_s=0.0), EPOCH_S)
    assert window.start_s == 0.0
    assert window.end_s == pytest.approx(0.4, abs=0.05)


def test_a_run_without_requests_has_an_empty_window():
    assert choose_window([], EPOCH_S).length_s == 0.0
