"""The few counters of KV transfers are found in an engine's text, over all its cores."""

from phasewise.engines.vllm import read_page

TEXT = b"""# HELP vllm:prompt_tokens_by_source_total Number of prompt tokens by source.
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 10.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_compute"} 5.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 1408.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 1500.0
vllm:nixl_bytes_transferred_bucket{engine="0",le="1e+06",model_name="m"} 1.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 3.54e+07
vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="m"} 0.01
vllm:nixl_num_notifications_after_expiry_total{engine="0",model_name="m"} 2.0
"""


def test_counters_are_summed_over_cores_and_distinguished_by_source():
    seen = read_page(TEXT, 5.0).kv
    assert (seen.computed_tokens, seen.hit_tokens, seen.moved_tokens) == (15.0, 1408.0, 1500.0)
    assert (seen.moved_bytes, seen.moving_s, seen.read_after_release) == (3.54e7, 0.01, 2.0)
    assert seen.has_connector


def test_an_engine_without_connector_counts_no_transfers():
    seen = read_page(b'vllm:prompt_tokens_by_source_total{source="local_compute"} 3.0\n', 5.0).kv
    assert seen.computed_tokens == 3.0
    assert seen.moved_tokens is None
    assert seen.moved_bytes is None
    assert not seen.has_connector


def test_a_line_that_is_no_number_is_left_out():
    assert read_page(b"vllm:nixl_bytes_transferred_sum{} much\n", 5.0).kv.moved_bytes is None
