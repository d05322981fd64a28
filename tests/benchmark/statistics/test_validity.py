from __future__ import annotations

import pytest

from phasewise.benchmark.statistics.summary import Summary, summarise
from phasewise.benchmark.statistics.window import Punctuality, void_reasons

TTFT = summarise([0.1] * 200)
ITL = summarise([0.02] * 2000)


def reasons(lags_s: list[float], loop_lags_s: list[float] | None = None, held_back: int = 0) -> str:
    kept = Punctuality(summarise(lags_s), summarise(loop_lags_s or [0.0001] * 200), held_back)
    return " ".join(void_reasons(kept, TTFT, ITL))


def test_a_punctual_generator_measures_the_server():
    assert reasons([0.0005] * 200) == ""


@pytest.mark.parametrize(
    ("lags_s", "word"),
    [
        ([0.006] * 200, "6.00 ms at p50"),
        ([0.0] * 160 + [0.02] * 40, "20.0 ms at p90"),
        ([0.0] * 195 + [0.05] * 5, "50.0 ms at p99"),
        ([0.0] * 31 + [3.0], "3.00 s at max"),
    ],
)
def test_lag_that_shows_in_a_figure_voids_the_run_and_names_it(lags_s, word):
    assert word in reasons(lags_s)
    assert "of a TTFT of 100 ms" in reasons(lags_s)


def test_a_lag_that_nobody_would_miss_voids_nothing_however_quick_the_server():
    kept = Punctuality(summarise([0.0015] * 200), summarise([0.0001] * 200))
    assert void_reasons(kept, summarise([0.004] * 200), ITL) == ()


def test_chunks_stamped_late_void_the_run():
    assert "chunks were stamped late: 9.00 ms at p90" in reasons([0.0] * 200, [0.0001] * 150 + [0.009] * 50)


def test_a_hiccup_at_the_far_end_voids_nothing():
    assert reasons([0.0] * 195 + [0.009] * 5) == ""
    assert reasons([0.0] * 200, [0.0001] * 190 + [0.0095] * 10) == ""


def test_a_starved_loop_voids_a_run_of_single_tokens_too():
    kept = Punctuality(summarise([0.0] * 200), summarise([0.02] * 200))
    (reason,) = void_reasons(kept, TTFT, summarise([]))
    assert "first chunks were stamped late: 20.0 ms at p50, of a TTFT of 100 ms" in reason


def test_requests_held_back_void_the_run():
    assert "3 requests were held back" in reasons([0.0] * 200, held_back=3)


def test_a_run_without_figures_is_not_called_void_for_it():
    nothing = Summary(0, None, None, None, None, None)
    assert void_reasons(Punctuality(nothing, nothing), nothing, nothing) == ()
