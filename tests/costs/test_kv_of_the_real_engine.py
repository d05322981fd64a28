"""A token's KV cache is worked out to the byte: vLLM makes as many blocks of it."""

import time
import urllib.request

import pytest

from phasewise.engines.vllm import parse_metrics
from tests.costs.deployments import deploy
from tests.real_engine import computes_in_bfloat16


@pytest.mark.real
def test_a_gib_holds_as_many_tokens_as_vllm_says(real_engine):
    with urllib.request.urlopen(f"{real_engine.base_url}/metrics", timeout=60) as reply:
        snapshot = parse_metrics(reply.read().decode(), time.time())
    block_tokens = int(snapshot.infos["cache_config_info"]["block_size"])
    of_bfloat16 = deploy("smollm2-135m").architecture.kv_bytes(1)
    block_bytes = of_bfloat16 * (1 if computes_in_bfloat16() else 2) * block_tokens
    assert snapshot.kv_tokens == 2**30 // block_bytes * block_tokens
