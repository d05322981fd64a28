"""Traffic is described by its distributions, and by what they let expect."""

import pytest

from phasewise.core.slo import Slo
from phasewise.core.steps import StepLog
from phasewise.core.timeline import Outcome
from phasewise.diagnosis.analysis.counter_series import ReadingSeries
from phasewise.diagnosis.analysis.counters import counter_summary
from phasewise.diagnosis.analysis.engine_counters import EngineCounters, Spread
from phasewise.diagnosis.analysis.engine_view import timelines_from_steps
from phasewise.diagnosis.analysis.prefix_use import prefix_use
from phasewise.diagnosis.analysis.ttft import start_summary
from phasewise.diagnosis.analysis.window_summary import workload_shape
from phasewise.diagnosis.analysis.workload_profile import distribution, workload_profile
from tests.builders import EPOCH_S, make_finished, make_step, make_timeline
from tests.diagnosis.analysis.test_prefix_use import BODIES, HEAD, prompt

SLO = Slo(ttft_s=1.0, tpot_s=0.1)


def traffic(prompts, outputs, arrivals_s=None, lasted_s=1.0, **fields):
    arrivals_s = arrivals_s or [float(index) for index in range(len(prompts))]
    return [
        make_timeline(
            (0.5,),
            request_id=f"r{index}",
            started_unix_s=EPOCH_S + at_s,
            ended_s=lasted_s,
            prompt_tokens=tokens,
            output_tokens=made,
            **fields,
        )
        for index, (tokens, made, at_s) in enumerate(zip(prompts, outputs, arrivals_s, strict=True))
    ]


def said(timelines, window_s=100.0):
    return " | ".join(workload_profile(timelines, window_s).implications)


def test_a_distribution_counts_every_value_once_by_its_magnitude():
    found = distribution([1, 2, 3, 100, 127, 128])
    assert found.histogram == ((1, 1), (3, 2), (127, 2), (255, 1))
    assert (found.count, found.largest) == (6, 128)
    assert distribution([]) is None


def test_concurrency_is_how_many_requests_are_under_way():
    """One request each second, of two seconds each."""
    found = workload_profile(traffic([100] * 20, [10] * 20, lasted_s=2.0), 21.0)
    assert found.concurrency_mean == pytest.approx(40 / 21)
    assert found.concurrency_max == 2
    assert found.rate_per_s == pytest.approx(20 / 21)


def test_only_what_lies_in_the_window_counts_for_the_mean():
    found = workload_profile(traffic([100], [10], lasted_s=50.0), 10.0)
    assert found.concurrency_mean == pytest.approx(1.0)


def test_long_streams_from_before_the_window_are_no_arrivals():
    """One a second, of 30 s each: a window of 20 s sees 50 of them, and 20 came."""
    seen = traffic([100] * 50, [10] * 50, [float(at_s) for at_s in range(-30, 20)], lasted_s=30.0)
    profile = workload_profile(seen, 20.0, None, EPOCH_S)
    assert (profile.requests, profile.rate_per_s) == (50, pytest.approx(1.0))
    assert workload_shape(workload_profile(seen, 20.0, None, EPOCH_S), ()).rate_per_s == pytest.approx(1.0)
    late = [it for it in seen if it.started_unix_s >= EPOCH_S or it.request_id == "r0"]
    assert workload_profile(late, 20.0, None, EPOCH_S).burstiness == pytest.approx(0.0, abs=1e-6)


def test_metronomes_chance_and_bursts_are_distinguished():
    even = workload_profile(traffic([100] * 20, [10] * 20), 20.0)
    burst = [float(10 * (index // 10)) + 0.001 * index for index in range(30)]
    bursty = workload_profile(traffic([100] * 30, [10] * 30, burst), 30.0)
    assert even.burstiness == pytest.approx(0.0, abs=1e-6)
    assert bursty.burstiness > 1.5
    assert "evenly spaced" in " ".join(even.implications)
    assert "bursts" in " ".join(bursty.implications)


def test_the_balance_of_phases_is_reported():
    assert "prefill-heavy: 12 uncached prompt tokens" in said(traffic([1200] * 5, [100] * 5))
    assert "decode-heavy: 10 output tokens" in said(traffic([10] * 5, [100] * 5))
    assert "heavy" not in said(traffic([300] * 5, [100] * 5))


def test_cached_prompts_are_not_prefill_heavy():
    assert "prefill-heavy" not in said(traffic([1200] * 5, [100] * 5, cached_tokens=1100))


def test_a_long_tail_of_prompts_is_reported():
    assert "long tail: the p99 prompt is" in said(traffic([100] * 95 + [6000] * 5, [10] * 100))
    assert "long tail" not in said(traffic([100] * 95 + [900] * 5, [10] * 100))


def test_outputs_of_one_token_have_no_stream():
    assert said(traffic([1200] * 5, [1] * 5)).startswith("outputs of one token")


def test_shared_beginnings_are_reported():
    asked = [prompt(index, HEAD + body) for index, body in enumerate(BODIES)]
    assert workload_profile(asked, 10.0, prefix_use(asked)).shared_share == pytest.approx(3 / 4 / 2, rel=0.01)
    found = workload_profile(asked, 10.0, prefix_use(asked))
    assert "shared prefixes: 38%" in " ".join(found.implications)


def test_nothing_is_made_up_of_nothing():
    empty = workload_profile([], 10.0)
    assert empty.prompt_tokens is empty.burstiness is empty.concurrency_mean is None
    assert empty.implications == ()


def counters(**fields):
    spread = Spread(count=40, mean=0.4, p50=0.3, p90=0.9, p99=1.5)
    blank = dict.fromkeys(EngineCounters.__slots__)
    return EngineCounters(**{**blank, "window_s": 20.0, "ttft": spread, **fields})


def test_counters_give_a_profile_of_what_they_know():
    prompts = Spread(count=40, mean=1200, p50=1000, p90=2000, p99=9000)
    outputs = Spread(count=40, mean=100, p50=90, p90=200, p99=300)
    found = counter_summary(
        counters(prompt_tokens=prompts, output_tokens=outputs, running=3.0, waiting=2.0), ReadingSeries(), SLO
    )
    profile = found.profile
    assert (profile.requests, profile.rate_per_s, profile.concurrency_mean) == (40, 2.0, 5.0)
    assert profile.prompt_tokens.p99 == 9000
    assert profile.prompt_tokens.largest is profile.burstiness is None
    assert any(line.startswith("prefill-heavy") for line in profile.implications)


def test_counters_say_whom_they_leave_out():
    quiet = counter_summary(counters(waiting=0.0), ReadingSeries(), SLO)
    loaded = counter_summary(counters(waiting=7.0, aborted=3.0), ReadingSeries(), SLO)
    assert quiet.not_observed == ()
    assert "7 still waiting, 3 whose clients disconnected" in loaded.not_observed[0]
    assert dict(loaded.outcomes) == {"started": 40, "cancelled": 3}


def test_a_request_that_left_an_engine_before_its_first_token_is_not_forgotten():
    nan = float("nan")
    left = make_finished("gone", reason="abort", queue_s=nan, prefill_s=nan, decode_s=nan, e2e_s=4.0)
    log = StepLog([make_step(1, 1.0), make_step(2, 5.0, finished=[left])])
    (timeline,) = timelines_from_steps(log, "w0")
    assert timeline.outcome is Outcome.CANCELLED
    assert timeline.started_unix_s == EPOCH_S + 1.0
    assert start_summary([timeline], SLO, {}).late == 1
