"""Claims are weighed by what a replay loses without each: shares still add up to what rules claimed."""

import pytest

from phasewise.diagnosis.analysis.window_summary import Removals
from phasewise.diagnosis.finding import Cause, Fact, FactSource, Phase
from phasewise.diagnosis.rules.case import Claim, Taken
from phasewise.diagnosis.rules.removed import weigh


def claim(cause, rival=None):
    return Claim(cause, Taken(1.0), (Fact("seen", FactSource.DERIVED),), "", rival=rival)


def removals(shares, measured_s=10.0, lost_s=10.0, untested=()):
    return Removals(
        {Phase.START: measured_s}, {Phase.START: lost_s}, {Phase.START: shares}, frozenset(untested)
    )


CLAIMS = [claim(Cause.BATCH_CAP_LOW), claim(Cause.OVERLOAD), claim(Cause.ENGINE_PAUSES)]
SHARES = [0.7, 0.1, 0.2]


def weighed(found, claims=CLAIMS, shares=SHARES):
    result = weigh(claims, shares, found, Phase.START)
    return {it.cause: share for it, share in zip(result.claims, result.shares, strict=True)}, result


def test_a_cap_whose_removal_spares_nothing_leaves_its_share_to_the_load():
    shares, _ = weighed(removals({}))
    assert shares[Cause.BATCH_CAP_LOW] == 0.0
    assert shares[Cause.OVERLOAD] == pytest.approx(0.8)
    assert shares[Cause.ENGINE_PAUSES] == 0.2, "what is not replayed keeps what it claimed"


def test_a_cause_that_no_rule_claimed_is_added_with_the_replay_as_its_fact():
    shares, result = weighed(removals({Cause.CHUNKS_SMALL: 0.9}))
    assert shares[Cause.CHUNKS_SMALL] == pytest.approx(0.72)
    added = next(it for it in result.claims if it.cause is Cause.CHUNKS_SMALL)
    assert "with larger chunks, a replay of the window loses 90% less" in added.facts[-1].words


@pytest.mark.parametrize("found", [None, removals({}, lost_s=3.1), removals({}, measured_s=1.0)])
def test_a_replay_that_is_far_from_the_measurement_shows_nothing(found):
    shares, result = weighed(found)
    assert list(shares.values()) == SHARES
    assert result.unknown == 0.0


def test_what_has_no_name_is_taken_from_every_claim_that_was_replayed():
    shares, result = weighed(removals({None: 0.75}))
    assert result.unknown == pytest.approx(0.6)
    assert sum(shares.values()) + result.unknown == pytest.approx(1.0)


def test_a_cause_that_could_not_be_replayed_keeps_its_claim():
    claims = [claim(Cause.CHUNKS_SMALL), claim(Cause.OVERLOAD)]
    shares, _ = weighed(removals({}, measured_s=25.0, untested=(Cause.CHUNKS_SMALL,)), claims, [0.6, 0.4])
    assert shares == {Cause.CHUNKS_SMALL: 0.6, Cause.OVERLOAD: pytest.approx(0.4)}


def test_prompts_that_may_repeat_each_other_stay_suspects():
    claims = [claim(Cause.CHUNKS_STALL, rival=Cause.PREFIX_SALTED)]
    shares, _ = weighed(removals({}), claims, [1.0])
    assert shares == {Cause.CHUNKS_STALL: pytest.approx(1.0)}


def test_it_is_not_the_load_if_the_same_requests_start_in_time_in_the_replay():
    shares, result = weighed(
        removals({}, lost_s=0.5), [claim(Cause.OVERLOAD), claim(Cause.ENGINE_PAUSES)], [0.7, 0.3]
    )
    assert shares == {Cause.OVERLOAD: 0.0, Cause.ENGINE_PAUSES: 0.3}
    assert result.unknown == pytest.approx(0.7)


STARVED_CLAIMS = [claim(Cause.ENGINE_STARVED), claim(Cause.OVERLOAD)]


def test_what_is_not_the_load_is_the_starved_core_that_would_spare_much():
    found = removals({Cause.ENGINE_STARVED: 1.0}, lost_s=0.5)
    shares, result = weighed(found, STARVED_CLAIMS, [0.4, 0.6])
    assert shares == {Cause.ENGINE_STARVED: pytest.approx(1.0), Cause.OVERLOAD: 0.0}
    assert result.unknown == 0.0
    shares, result = weighed(found, STARVED_CLAIMS, [0.1, 0.9])
    assert result.unknown == pytest.approx(0.9)


def test_a_starved_core_takes_what_cores_of_its_own_would_have_spared():
    shares, _ = weighed(removals({Cause.ENGINE_STARVED: 0.9}), STARVED_CLAIMS, [0.3, 0.7])
    assert shares == {Cause.ENGINE_STARVED: pytest.approx(0.9), Cause.OVERLOAD: pytest.approx(0.1)}


def test_a_starved_core_keeps_its_claim_where_there_is_too_much_load_even_without_it():
    shares, _ = weighed(removals({Cause.ENGINE_STARVED: 0.3}), STARVED_CLAIMS, [0.3, 0.7])
    assert shares == {Cause.ENGINE_STARVED: 0.3, Cause.OVERLOAD: pytest.approx(0.7)}
    shares, _ = weighed(removals({Cause.ENGINE_STARVED: 0.6}), STARVED_CLAIMS, [0.1, 0.9])
    assert shares == {Cause.ENGINE_STARVED: 0.1, Cause.OVERLOAD: pytest.approx(0.9)}


def test_a_starved_core_that_claims_much_and_would_have_spared_much_is_weighed_beside_the_load():
    shares, _ = weighed(removals({Cause.ENGINE_STARVED: 0.45}), STARVED_CLAIMS, [0.3, 0.7])
    assert shares == {Cause.ENGINE_STARVED: pytest.approx(0.45), Cause.OVERLOAD: pytest.approx(0.55)}


def test_a_kv_cache_that_nobody_saw_full_is_not_named_by_a_replay():
    shares, _ = weighed(removals({Cause.KV_EXHAUSTED: 0.9}))
    assert Cause.KV_EXHAUSTED not in shares


def test_steps_that_take_longer_in_stretches_are_no_matter_of_the_batch_though_nothing_was_replayed():
    found = Removals({Phase.STREAM: 9.0}, {Phase.STREAM: 0.1}, {Phase.STREAM: {}}, in_stretches=0.3)
    claims = [claim(Cause.BATCH_CAP_HIGH), claim(Cause.SLOW_CLIENT)]
    result = weigh(claims, [0.7, 0.3], found, Phase.STREAM)
    assert (result.shares, result.unknown) == ((0.0, 0.3), pytest.approx(0.7))
