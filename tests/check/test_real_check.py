"""Two real engines are proven to hand over, by the counters of the one that fetched."""

import pytest

from phasewise.check.facts import SideChannel
from phasewise.check.gather import gather_facts
from phasewise.check.judgement import judge

pytestmark = pytest.mark.real


async def test_a_real_pair_is_proven_and_would_not_hide_a_failure(real_pair):
    facts = await gather_facts(real_pair.workers)
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
