"""A key's class decides what its requests are held to, all the way to /metrics."""

from __future__ import annotations

from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, SloClass
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.harness import eventually, running_gateway

IMPOSSIBLE = SloClass(name="at-once", ttft_s=1e-6, tpot_s=1e-6)
PATIENT = SloClass(name="whenever", ttft_s=3_600.0, tpot_s=3_600.0)


async def test_requests_are_counted_by_whether_they_kept_their_classes_objectives():
    keys = tuple(
        ApiKey(sha256=key_sha256(f"key-{slo.name}"), slo_class=slo.name) for slo in (IMPOSSIBLE, PATIENT)
    )
    async with (
        running_engines(1) as engines,
        running_gateway(engines, api_keys=keys, slo_classes=(IMPOSSIBLE, PATIENT)) as gateway,
    ):
        for slo in (IMPOSSIBLE, PATIENT):
            bearer = [(b"authorization", f"Bearer key-{slo.name}".encode())]
            assert (await gateway.chat(stream=True, headers=bearer)).status == 200

        async def reported():
            text = (await gateway.fetch("GET", "/metrics")).body.decode()
            lines = [line for line in text.splitlines() if line.startswith("phasewise_slo_requests_total{")]
            return lines if sum(line.endswith(" 1") for line in lines) == 2 else None

        lines = await eventually(reported)
    kept = 'phasewise_slo_requests_total{model="fake-model",slo_class='
    assert f'{kept}"at-once",result="missed"}} 1' in lines
    assert f'{kept}"whenever",result="met"}} 1' in lines
