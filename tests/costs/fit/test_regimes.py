"""What was seen of every regime is kept, whatever is seen of the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.costs.fit.observation import Observation, is_near, latest_of_each_regime, regime_of
from phasewise.costs.fit.step import StepWork, decoding, prefilling

works = st.builds(
    StepWork,
    prompt_tokens=st.integers(0, 10_000),
    decode_tokens=st.integers(0, 300),
    requests=st.integers(1, 300),
    attention_token_pairs=st.integers(0, 10**8),
    kv_read_tokens=st.integers(0, 10**6),
)


def seen(work, seconds=1.0):
    return Observation((work,), seconds)


def test_steady_traffic_does_not_erase_what_was_seen_before():
    rare = seen(prefilling(4000), 9.0)
    steady = (seen(decoding([200 + number % 50] * 4)) for number in range(1000))
    assert rare in latest_of_each_regime([rare, *steady], kept=10)


def test_of_one_regime_the_latest_are_kept():
    kept = latest_of_each_regime((seen(decoding([100]), float(number)) for number in range(30)), kept=4)
    assert [each.seconds for each in kept] == [26.0, 27.0, 28.0, 29.0]


@given(st.lists(works, max_size=200), st.integers(1, 5))
def test_what_is_kept_is_bounded_and_of_every_regime(seen_works, kept):
    found = latest_of_each_regime(map(seen, seen_works), kept=kept)
    regimes = {regime_of(work) for work in seen_works}
    assert len(found) <= kept * len(regimes)
    assert {regime_of(each.typical) for each in found} == regimes


@given(works)
def test_a_regime_is_near_itself(work):
    assert is_near(regime_of(work), frozenset([regime_of(work)]))


@pytest.mark.parametrize(
    ("work", "near"),
    [
        (prefilling(100), True),
        (prefilling(180), True),
        (prefilling(30), False),
        (prefilling(600), False),
        (prefilling(100, context_tokens=4000), False),
        (decoding([100]), False),
        (StepWork(100, 1, 2, 5050, 50), False),
    ],
)
def test_near_is_a_step_of_the_same_phases_at_most_one_magnitude_away(work, near):
    assert is_near(regime_of(work), frozenset([regime_of(prefilling(100))])) is near


def test_streams_alone_are_not_near_to_streams_with_a_prompt():
    with_prompt = regime_of(StepWork(1, 8, 9, 1, 800))
    assert not is_near(regime_of(decoding([100] * 8)), frozenset([with_prompt]))


def test_no_regime_is_near_when_none_was_seen():
    assert not is_near(regime_of(prefilling(100)), frozenset())
