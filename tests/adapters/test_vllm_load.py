"""The few gauges that are read every second say what a full reading of the metrics says."""

import pytest

from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.vllm_load import fetch_load, parse_load
from phasewise.adapters.vllm_metrics import fetch_metrics
from phasewise.diagnosis.surroundings import LoadReading

PAGE = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a model"} 3.0
vllm:num_requests_running{engine="1",model_name="a model"} 1.0
vllm:num_requests_waiting{engine="0",model_name="a model"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 40.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.7
"""


def test_engine_cores_are_added_up_and_their_caches_averaged():
    assert parse_load(PAGE, 5.0) == LoadReading(5.0, running=4, waiting=2, kv_usage=pytest.approx(0.6))


@pytest.mark.parametrize(
    "page", [b"", b"\xff\x00", PAGE.replace(b"kv_cache", b"other"), PAGE.replace(b"3.0", b"x")]
)
def test_gauges_that_are_missing_or_no_numbers_give_no_reading(page):
    assert parse_load(page, 0.0) is None


async def test_a_fake_engine_tells_its_load(fake_engine):
    client = HttpClient(fake_engine.base_url)
    load, whole = await fetch_load(client), await fetch_metrics(client)
    client.close()
    assert (load.running, load.waiting) == (
        whole.gauge("num_requests_running"),
        whole.gauge("num_requests_waiting"),
    )
