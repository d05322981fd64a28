"""What follows from a gateway's configuration where several processes serve it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from phasewise.fleet.config import GatewayConfig, WorkerConfig
from phasewise.gateway.settings import workers_of

LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent")


@pytest.mark.parametrize(("slots", "shares"), [(16, [4, 4, 4, 4]), (7, [2, 2, 2, 1]), (2, [1, 1, 1, 1])])
def test_an_engines_slots_are_split_over_processes_and_each_has_one(slots, shares):
    config = WorkerConfig(name="w0", url="http://127.0.0.1:1", model="m", slots=slots)
    assert [workers_of([config], process, 4)[0].slots for process in range(4)] == shares
    assert workers_of([config])[0].slots == slots


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_of_several_processes_need_redis(limit):
    keys = [{"sha256": "a" * 64}, {"sha256": "b" * 64, limit: 5}]
    with pytest.raises(ValidationError) as caught:
        GatewayConfig(api_keys=keys, processes=4)
    said = str(caught.value)
    assert "api_keys[1] has limits, which 4 processes" in said
    assert "add redis, or set processes to 1" in said
    assert GatewayConfig(api_keys=keys, processes=1)
    assert GatewayConfig(api_keys=keys, processes=4, redis={})
    assert GatewayConfig(api_keys=keys[:1], processes=4)
