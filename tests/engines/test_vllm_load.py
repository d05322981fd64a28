"""The few series that are read several times a second say what a full reading of the metrics says."""

import pytest

from phasewise.clients.engine_metrics import fetch_metrics, fetch_page
from phasewise.clients.http_client import HttpClient
from phasewise.core.engine_metrics import LoadReading
from phasewise.engines.vllm import read_page

PAGE = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a model"} 3.0
vllm:num_requests_running{engine="1",model_name="a model"} 1.0
vllm:num_requests_waiting{engine="0",model_name="a model"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 40.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.7
"""


def test_engine_cores_are_added_up_and_their_caches_averaged():
    assert read_page(PAGE, 5.0).load == LoadReading(5.0, running=4, waiting=2, kv_usage=pytest.approx(0.6))


COUNTED = b"""vllm:iteration_tokens_total_count{engine="0"} 7.0
vllm:iteration_tokens_total_sum{engine="0"} 99.0
vllm:request_success_total{engine="0",finished_reason="stop"} 4.0
vllm:request_success_total{engine="0",finished_reason="abort"} 2.0
http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"} 3.0
http_requests_total{handler="none",method="GET",status="4xx"} 50.0
http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 1.0
"""


def test_counters_are_read_beside_the_gauges_and_only_replies_of_the_api():
    load = read_page(PAGE + COUNTED, 5.0).load
    assert (load.steps, load.step_tokens, load.finished, load.aborted) == (7.0, 99.0, 6.0, 2.0)
    assert (load.rejected, load.failed) == (3.0, 1.0)


@pytest.mark.parametrize(
    "page", [b"", b"\xff\x00", PAGE.replace(b"kv_cache", b"other"), PAGE.replace(b"3.0", b"x")]
)
def test_gauges_that_are_missing_or_no_numbers_give_no_reading(page):
    assert read_page(page, 0.0).load is None


async def test_a_fake_engine_reports_its_load(fake_engine):
    client = HttpClient(fake_engine.base_url)
    load, whole = (await fetch_page(client)).load, await fetch_metrics(client)
    client.close()
    assert (load.running, load.waiting) == (
        whole.gauge("num_requests_running"),
        whole.gauge("num_requests_waiting"),
    )
