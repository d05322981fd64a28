"""Engines of a prefill and a decode pool, started as planned, hand KV over without computing it twice."""

import json
import urllib.request

import pytest

pytestmark = pytest.mark.real

KEEP_FOR_ANOTHER = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
PROMPT_TOKENS = 300


def completion(engine, model, kv_transfer_params, max_tokens, seed):
    prompt = [1_000 + (seed * 7_919 + place * 104_729) % 30_000 for place in range(PROMPT_TOKENS)]
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    body["kv_transfer_params"] = kv_transfer_params
    request = urllib.request.Request(
        f"{engine.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)


def pulled_tokens(engine):
    return engine.counters().counter("prompt_tokens_by_source_total", source="external_kv_transfer") or 0


def test_planned_engines_kv_transfer_and_the_ticket_names_the_planned_side_channel(real_pair):
    before = pulled_tokens(real_pair.decode)
    ticket = completion(real_pair.prefill, real_pair.model, KEEP_FOR_ANOTHER, 1, seed=1)["kv_transfer_params"]
    assert (ticket["remote_host"], ticket["remote_port"]) == ("127.0.0.1", real_pair.prefill.side_port)
    answer = completion(real_pair.decode, real_pair.model, ticket, 4, seed=1)
    assert answer["usage"]["completion_tokens"] == 4
    assert pulled_tokens(real_pair.decode) - before >= PROMPT_TOKENS - 1
