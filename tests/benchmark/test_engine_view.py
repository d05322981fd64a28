from __future__ import annotations

import pytest

from phasewise.benchmark.engine_watch import EngineRecord, gauges, view_engine
from phasewise.engines.vllm import parse_metrics
from tests.builders import EPOCH_S, make_step

PAGE = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0"}} {running}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0"}} {kv}
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="length"}} {done}
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0"}} {queries}
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{engine="0"}} {hits}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf"}} {done}
vllm:time_to_first_token_seconds_count{{engine="0"}} {done}
vllm:time_to_first_token_seconds_sum{{engine="0"}} {ttft_sum}
"""


def snapshot(at_s: float, done: int, **values: float):
    fields = {"running": 1, "kv": 0.1, "queries": 0, "hits": 0, "ttft_sum": 0.2 * done, **values}
    return parse_metrics(PAGE.format(done=done, **fields), EPOCH_S + at_s)


def view(record: EngineRecord, start_s: float = 1.5, end_s: float = 3.5):
    return view_engine(record, EPOCH_S + start_s, EPOCH_S + end_s)


def test_counters_are_read_from_just_before_the_window_to_just_after_it():
    record = EngineRecord(
        (
            snapshot(0, 0),
            snapshot(1, 4, queries=100, hits=100),
            snapshot(2, 6, running=7, kv=0.5),
            snapshot(3, 8),
            snapshot(4, 10, queries=300, hits=150),
            snapshot(5, 90, running=50),
        )
    )
    seen = view(record)
    assert (seen.requests, seen.window_s) == (6, 3.0)
    assert seen.ttft_mean_s == pytest.approx(0.2)
    assert seen.cached_share == pytest.approx(50 / 200)
    assert (seen.running_max, seen.kv_usage_max) == (7, 0.5)
    assert seen.itl_mean_s is None, "what the engine does not count is unknown"
    assert seen.steps is None


def test_an_engine_that_was_restarted_in_the_window_has_no_counts():
    seen = view(EngineRecord((snapshot(1, 40), snapshot(4, 2))))
    assert (seen.requests, seen.window_s) == (None, None)


def test_recorded_steps_are_counted_within_the_window():
    steps = tuple(
        make_step(at, float(at) / 10, prompt=64 if at % 10 == 0 else 0, decode=2, running=at % 5)
        for at in range(60)
    )
    seen = view(EngineRecord((), steps))
    assert seen.steps is not None
    assert (seen.steps.count, seen.steps.mixed) == (21, 2)
    assert seen.steps.duration_s.p50 == pytest.approx(0.1)
    assert (seen.steps.prompt_tokens, seen.steps.decode_tokens) == (128, 42)
    assert seen.running_max == 4


def test_gauges_come_from_steps_where_there_are_some_and_count_from_the_start_of_the_run():
    steps = (make_step(1, 2.0, running=3, waiting=1),)
    (gauge,) = gauges(EngineRecord((snapshot(1, 0),), steps), EPOCH_S)
    assert (gauge.at_s, gauge.running, gauge.waiting, gauge.kv_usage) == (2.0, 3, 1, 0.1)
    (gauge,) = gauges(EngineRecord((snapshot(1, 0),)), EPOCH_S)
    assert (gauge.at_s, gauge.running, gauge.waiting) == (1.0, 1, None)
