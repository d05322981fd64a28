"""After a death: a pause that doubles up to half a minute, or no further try."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.fleet.local.member import (
    FIRST_PAUSE_S,
    HOPELESS_STARTS,
    LONGEST_PAUSE_S,
    STEADY_AFTER_S,
    Death,
    GiveUp,
    RestartAt,
    after_death,
)

histories = st.lists(
    st.builds(Death, st.floats(0, 1e6), st.none() | st.floats(0, 1e5), st.booleans()), min_size=1, max_size=30
)


def pause_s(*ready_for_s):
    deaths = [Death(100.0, ready) for ready in ready_for_s]
    decision = after_death(deaths, has_served=True)
    assert isinstance(decision, RestartAt)
    return decision.at_s - 100.0


def test_pauses_double_up_to_the_longest():
    assert [pause_s(*[5.0] * count) for count in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]


def test_long_service_starts_the_count_again():
    assert pause_s(5.0, 5.0, 5.0, STEADY_AFTER_S) == FIRST_PAUSE_S
    assert pause_s(5.0, 5.0, STEADY_AFTER_S, 5.0) == 2 * FIRST_PAUSE_S


@pytest.mark.parametrize("failures", [1, 2])
def test_first_failed_starts_are_tried_again(failures):
    assert isinstance(after_death([Death(1.0, None)] * failures, has_served=False), RestartAt)


def test_three_starts_that_never_served_are_enough():
    failures = [Death(1.0, None)] * HOPELESS_STARTS
    assert after_death(failures, has_served=False) == GiveUp(HOPELESS_STARTS)


def test_a_rejected_command_line_is_not_tried_again():
    assert after_death([Death(1.0, None, rejected=True)], has_served=False) == GiveUp(1)


@pytest.mark.parametrize("remembered", [[Death(1.0, 10.0)], []], ids=["remembered", "forgotten"])
def test_what_once_served_is_never_given_up(remembered):
    deaths = [*remembered, *[Death(2.0, None, rejected=True)] * 50]
    assert isinstance(after_death(deaths, has_served=True), RestartAt)


@given(histories, st.booleans())
def test_a_pause_is_never_shorter_or_longer_than_said(deaths, has_served):
    decision = after_death(deaths, has_served=has_served)
    if isinstance(decision, RestartAt):
        pause = decision.at_s - deaths[-1].at_s
        assert FIRST_PAUSE_S - 1e-6 <= pause <= LONGEST_PAUSE_S + 1e-6
