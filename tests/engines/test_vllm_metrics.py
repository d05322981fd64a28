from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.engine_metrics import MetricsSnapshot, QuantileEstimate, ScrapedHistogram, delta, merged
from phasewise.core.errors import UpstreamError
from phasewise.engines.vllm import parse_metrics

TEXT = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 32.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 10.0
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 2.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 5.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",engine="0"} 1.0
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{engine="0",le="0.5",model_name="m"} 1.0
vllm:request_queue_time_seconds_bucket{engine="0",le="1.0",model_name="m"} 3.0
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 4.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 6.0
"""
BOUNDS = (0.1, 0.5, 1.0, 5.0, inf)


def make_histogram(observed: list[float]) -> ScrapedHistogram:
    buckets = tuple((bound, float(sum(value <= bound for value in observed))) for bound in BOUNDS)
    return ScrapedHistogram(buckets, float(len(observed)), sum(observed))


def make_snapshot(observed: list[float], tokens: float = 0.0, started_s: float = 1.0) -> MetricsSnapshot:
    return MetricsSnapshot(
        taken_at_unix_s=100.0,
        counters={("prompt_tokens_total", frozenset()): tokens},
        histograms={("ttft", frozenset()): make_histogram(observed)},
        process_start_unix_s=started_s,
    )


def test_counts_are_summed_over_engine_cores_and_shares_are_averaged():
    snapshot = parse_metrics(TEXT, 5.0)
    assert snapshot.counter("prompt_tokens_total") == 42
    assert snapshot.gauge("num_requests_running") == 7
    assert snapshot.gauge("kv_cache_usage_perc") == 0.375
    assert snapshot.taken_at_unix_s == 5.0


def test_labels_narrow_a_counter_down():
    snapshot = parse_metrics(TEXT, 0.0)
    assert snapshot.counter("request_success_total") == 7
    assert snapshot.counter("request_success_total", finished_reason="length") == 5


def test_a_missing_series_is_unknown_not_zero():
    snapshot = parse_metrics(TEXT, 0.0)
    assert snapshot.counter("num_preemptions_total") is None
    assert snapshot.counter("request_success_total", finished_reason="abort") is None
    assert snapshot.gauge("num_requests_waiting") is None
    assert snapshot.histogram("e2e_request_latency_seconds") is None
    change = delta(snapshot, snapshot)
    assert change.counter("num_preemptions_total") is None
    assert change.histogram("e2e_request_latency_seconds") is None


def test_histograms_keep_their_buckets_and_infos_their_labels():
    snapshot = parse_metrics(TEXT, 0.0)
    assert snapshot.histogram("request_queue_time_seconds") == ScrapedHistogram(
        ((0.5, 1.0), (1.0, 3.0), (inf, 4.0)), 4.0, 6.0
    )
    assert snapshot.infos["cache_config_info"]["block_size"] == "128"
    assert snapshot.block_tokens == 128
    assert snapshot.kv_tokens is None, "the number of blocks is not reported"
    assert snapshot.process_start_unix_s == 1.7e9


def test_a_quantile_is_interpolated_and_keeps_its_bounds():
    histogram = ScrapedHistogram(((0.5, 1.0), (1.0, 3.0), (inf, 4.0)), 4.0, 6.0)
    assert histogram.quantile(0.5) == QuantileEstimate(0.75, 0.5, 1.0)
    assert histogram.quantile(0.99) == QuantileEstimate(1.0, 1.0, inf)
    assert histogram.mean == 1.5
    assert ScrapedHistogram((), 0.0, 0.0).quantile(0.5) is None


@given(
    earlier=st.lists(st.floats(0.0, 10.0), max_size=20),
    later=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=20),
    share=st.floats(0.01, 1.0),
)
def test_a_delta_covers_the_window_alone(earlier, later, share):
    change = delta(make_snapshot(earlier, 5.0), make_snapshot(earlier + later, 9.0))
    assert change.same_incarnation
    assert change.counter("prompt_tokens_total") == 4
    assert change.histogram("ttft").mean == pytest.approx(sum(later) / len(later))
    estimate = change.histogram("ttft").quantile(share)
    assert estimate is not None
    rank = max(0, -int(-share * len(later) // 1) - 1)
    assert estimate.low <= sorted(later)[rank] <= estimate.high
    assert estimate.low <= estimate.value <= estimate.high


def test_a_counter_that_went_backwards_is_another_incarnation():
    change = delta(make_snapshot([1.0], 50.0), make_snapshot([1.0], 9.0))
    assert not change.same_incarnation
    assert change.went_backwards == ("prompt_tokens_total",)
    assert change.counter("prompt_tokens_total") is None
    assert change.histogram("ttft") is None


def test_another_process_start_is_another_incarnation_even_when_counters_grew():
    change = delta(make_snapshot([], 1.0, started_s=1.0), make_snapshot([], 9.0, started_s=2.0))
    assert change.went_backwards == ("process_start_time_seconds",)


def test_a_labelled_series_that_appears_was_counted_from_zero():
    before = parse_metrics(TEXT, 0.0)
    after = parse_metrics(
        TEXT.replace(
            "# TYPE vllm:kv_cache_usage_perc gauge\n",
            'vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 3.0\n'
            "# TYPE vllm:kv_cache_usage_perc gauge\n",
        ),
        10.0,
    )
    change = delta(before, after)
    assert change.counter("request_success_total", finished_reason="abort") == 3
    assert change.counter("request_success_total") == 3


def test_text_that_is_not_metrics_is_rejected_with_a_hint():
    with pytest.raises(UpstreamError, match="not Prometheus text"):
        parse_metrics("<html><body a=b>hello</body>", 0.0)


def test_several_engines_are_merged_into_one():
    text = (
        'vllm:num_requests_running{engine="0"} 2\nvllm:kv_cache_usage_perc{engine="0"} 0.4\n'
        "# TYPE vllm:x_total counter\nvllm:x_total 3\n"
        "# TYPE vllm:t histogram\n"
        'vllm:t_bucket{le="1"} 1\nvllm:t_bucket{le="+Inf"} 2\nvllm:t_count 2\nvllm:t_sum 4\n'
        "process_start_time_seconds 100\n"
    )
    both = merged(
        [parse_metrics(text, 5.0), parse_metrics(text.replace("0.4", "0.8").replace("100", "200"), 5.0)]
    )
    assert both.gauge("num_requests_running") == 4
    assert both.gauge("kv_cache_usage_perc") == pytest.approx(0.6)
    assert both.counter("x_total") == 6
    assert (both.histogram("t").count, both.histogram("t").total) == (4, 8)
    assert both.process_start_unix_s == 200
