"""llama.cpp's own words, as its server sends them."""

import orjson

from phasewise.core.engine_metrics import EngineSeries
from phasewise.engines import llama_cpp
from phasewise.engines.known import engine_of

METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 300
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 100
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 50
# TYPE llamacpp:n_decode_total counter
llamacpp:n_decode_total 60
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 3
"""
SLOT = {
    "id": 0,
    "n_ctx": 2048,
    "is_processing": True,
    "id_task": 7,
    "n_prompt_tokens": 45,
    "n_prompt_tokens_processed": 30,
    "n_prompt_tokens_cache": 10,
    "next_token": [{"n_decoded": 5, "n_remain": 20}],
}


def test_it_is_known_by_its_metrics_and_by_its_name():
    assert engine_of(METRICS.encode()) is llama_cpp
    assert engine_of(b'{"error": {}}', [(b"Server", b"llama.cpp")]) is llama_cpp
    assert engine_of(b"", [(b"server", b"uvicorn")]) is None


def test_its_load():
    load = llama_cpp.read_page(METRICS.encode(), 5.0).load
    assert (load.running, load.waiting, load.steps, load.kv_usage) == (2, 3, 60.0, None)
    assert llama_cpp.read_page(b"llamacpp:requests_processing x", 5.0).load is None


def test_cached_tokens_were_asked_for_too():
    found = llama_cpp.parse_metrics(METRICS, 5.0)
    assert found.counter(EngineSeries.PREFIX_QUERIES) == 400
    assert found.counter(EngineSeries.PREFIX_HITS) == 100
    assert found.gauge(EngineSeries.WAITING) == 3


def test_its_decodes_show_progress():
    (rank,) = llama_cpp.read_page(METRICS.encode(), 5.0).ranks.values()
    assert rank.running
    assert 60.0 in rank.signs
    assert llama_cpp.read_page(b"go_goroutines 8", 5.0).ranks == {}


def test_its_slots():
    idle = {"id": 1, "n_ctx": 2048, "is_processing": False, "id_task": 3, "n_prompt_tokens": 99}
    listing = llama_cpp.parse_listing(orjson.dumps([SLOT, idle]))
    (only,) = listing.requests
    assert (only.number, only.prompt_tokens, only.cached_tokens, only.output_tokens) == (7, 40, 10, 5)
    assert listing.context_tokens == 4096
    assert llama_cpp.parse_listing(b'{"error": {"code": 501}}') is None
    assert llama_cpp.parse_listing(b"<html>") is None


def test_its_flags():
    assert llama_cpp.flags("max_num_seqs", 4) == ("-np", "4")
    assert llama_cpp.flags("max_num_batched_tokens", 512) == ("-ub", "512", "-b", "512")
    assert llama_cpp.flags("prefix_cache", True) == ("--cache-prompt",)
    assert llama_cpp.flags("kv_dtype", "fp8") is None


def test_its_command_line():
    command = ["llama-server", "-m", "x.gguf", "-t", "8", "--ubatch-size", "32", "--no-cache-prompt"]
    assert llama_cpp.settings_of(command) == {"threads": 8, "max_num_batched_tokens": 32, "prefix_cache": 0}
    assert llama_cpp.settings_of(["stress", "-t", "8"]) == {}
