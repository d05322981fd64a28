"""A silent fall-back between engines ends as a finding of the diagnosis; KV transfers that work never do."""

import pytest

from phasewise.core.slo import Slo
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import evidence_of
from phasewise.diagnosis.finding import Cause
from phasewise.diagnosis.gather.target import identify
from phasewise.diagnosis.gather.watch import Watch
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.simulator.requests import PRESETS
from tests.gateway.harness import ADMIN_KEY
from tests.gateway.pairs import LONG_TEXT, QUICK, running_pair

LIKE_A_CPU = FakeEngineConfig(cost=PRESETS["cpu-demo"])
STRICT = Slo(ttft_s=0.2, tpot_s=5.0)
"""Nothing that reads so long a prompt on such an engine keeps it, once or twice."""


@pytest.mark.parametrize("connector", [QUICK, None], ids=["transferred", "computed again"])
async def test_prompts_computed_twice_are_a_finding(connector):
    async with running_pair(
        config=LIKE_A_CPU, decode_connector=connector, kv_transfer={"timeout_s": 15, "lease_s": 30}
    ) as pair:
        watch = Watch(await identify(pair.gateway.url, ADMIN_KEY), ADMIN_KEY)
        try:
            await watch.begin()
            for number in range(3):
                reply = await pair.gateway.chat(f"{number} {LONG_TEXT}", stream=True)
                assert reply.status == 200
            evidence = evidence_of(await watch.end())
        finally:
            watch.close()
    verdict = diagnose(evidence, STRICT, Known())
    found = {it.cause: it for it in verdict.findings}
    assert (Cause.KV_NOT_TRANSFERRED in found) == (connector is None)
    if connector is None:
        words = " ".join(fact.words for fact in found[Cause.KV_NOT_TRANSFERRED].facts)
        assert "3 requests" in words
        assert "d0" in words
