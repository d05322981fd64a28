"""The counters of the decode engine prove a KV transfer between two real engines."""

import pytest

from phasewise.clients.http_client import Timeouts
from phasewise.fleet.check import gather
from phasewise.fleet.check.facts import SideChannel
from phasewise.fleet.check.gather import gather_facts
from phasewise.fleet.check.judgement import judge

pytestmark = pytest.mark.real


async def test_a_real_pair_is_proven_and_would_not_hide_a_failure(real_pair, monkeypatch):
    # A check must end within 10 s; on a busy machine the engines themselves take longer.
    for name in ("QUICK", "ANSWER_WITHIN"):
        monkeypatch.setattr(gather, name, Timeouts(connect_s=60.0, head_s=60.0, idle_s=60.0))
    facts = await gather_facts(real_pair.workers, within_s=300.0)
    assert judge(facts) == ()
    (trial,) = facts.trials
    assert trial.moved_tokens == trial.prompt_tokens
    assert trial.computed_tokens == 0
    assert trial.same_text
    assert trial.side_channel is SideChannel.ANSWERS
    assert trial.bytes_per_s > 0
    prefill, decode = facts.engines
    assert prefill.has_connector
    assert prefill.block_tokens == decode.block_tokens
    assert decode.recomputes_on_failure is False
