"""When a worker that answers counts as hung, and when it does not though it is slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.worker import Role, WorkerRef
from phasewise.scheduling.ledger import LoadLedger
from phasewise.scheduling.progress import (
    LONGEST_LOOK_S,
    NOT_FITTED_S,
    SOONEST_S,
    TIMES,
    Pace,
    PromptsBooked,
    WorkerProgress,
    may_take_out,
)
from tests.builders import make_worker

REF = WorkerRef("w0", "1")
USUAL = PromptsBooked(100, 100, 500, 500)


class Looks:
    """A worker that is looked at every second."""

    def __init__(self, fitted=True):
        self.progress = WorkerProgress(REF)
        self.now_s = 0.0
        self.steps = 0
        if fitted:
            for _ in range(20):
                self.after(1.0)

    def after(self, seconds, *, moves=True, works=True, every_s=1.0):
        """It takes so long until the next step, if it comes at all."""
        while seconds > 0:
            passed_s = min(every_s, seconds)
            self.now_s += passed_s
            seconds -= passed_s
            if moves and seconds <= 0:
                self.steps += 1
            self.progress.look(self.steps, works=works, now_s=self.now_s)
        return self

    def pace(self, prompts=USUAL):
        return self.progress.pace(prompts)


def test_a_worker_without_progress_is_suspect_first_and_then_hung():
    looks = Looks()
    assert looks.after(4.0, moves=False).pace() is Pace.MOVES
    assert looks.after(1.0, moves=False).pace() is Pace.SUSPECT
    assert looks.after(5.0, moves=False).pace() is Pace.HUNG
    assert looks.after(1.0).pace() is Pace.MOVES


def test_a_worker_with_nothing_to_do_never_hangs():
    assert Looks().after(600.0, moves=False, works=False).pace() is Pace.MOVES


def test_until_its_steps_are_known_a_worker_has_two_minutes():
    looks = Looks(fitted=False).after(1.0)
    assert looks.after(59.0, moves=False).pace() is Pace.MOVES
    assert looks.after(61.0, moves=False).pace() is Pace.HUNG


def test_a_worker_whose_steps_take_long_has_six_times_as_long():
    looks = Looks().after(12.0)
    assert looks.progress.limit_s(USUAL) == pytest.approx(TIMES * 12.0, rel=0.1)
    assert looks.after(20.0, moves=False).pace() is Pace.MOVES


@pytest.mark.parametrize(
    ("prompts", "limit_s"),
    [
        (PromptsBooked(500, 500, 500, 500), SOONEST_S),
        (PromptsBooked(1_500, 1_500, 500, 500), TIMES * 1.0 * 9),
        (PromptsBooked(50_000, 50_000, 500, 500), TIMES * 1.0 * 100),
        (PromptsBooked(600, 600, 0, 0), NOT_FITTED_S),
        (PromptsBooked(4_000, 2_500, 4_000, 500), NOT_FITTED_S),
    ],
)
def test_a_prompt_longer_than_any_before_it_is_given_time(prompts, limit_s):
    assert Looks().progress.limit_s(prompts) == pytest.approx(limit_s, rel=0.1)


def test_long_steps_with_long_prompts_do_not_count_while_there_are_none():
    looks = Looks()
    looks.progress.look(looks.steps, works=True, now_s=looks.now_s, unread=8_000)
    for _ in range(25):
        looks.now_s += 1.0
        looks.progress.look(looks.steps, works=True, now_s=looks.now_s, unread=8_000)
    looks.steps += 1
    looks.after(1.0)
    assert looks.progress.limit_s(PromptsBooked(0, 0, 8_000, 8_000)) == SOONEST_S
    assert looks.progress.limit_s(PromptsBooked(8_000, 400, 8_000, 8_000)) > TIMES * 20.0


def test_time_in_which_we_did_not_look_does_not_count():
    looks = Looks()
    looks.after(60.0, moves=False, every_s=30.0)
    assert looks.progress.silent_s == 2 * LONGEST_LOOK_S
    assert looks.pace() is Pace.MOVES


def test_a_long_silence_is_forgotten_in_time():
    looks = Looks().after(30.0)
    for _ in range(3_000):
        looks.after(1.0)
    assert looks.progress.limit_s(USUAL) == SOONEST_S


def test_a_worker_that_hung_and_recovered_is_not_given_minutes_the_next_time():
    looks = Looks()
    for _ in range(30):
        looks.after(1.0, moves=False).pace()
    looks.after(1.0)
    assert looks.progress.limit_s(USUAL) == pytest.approx(2 * SOONEST_S, rel=0.01)
    assert looks.after(21.0, moves=False).pace() is Pace.HUNG


@given(gaps_s=st.lists(st.floats(0.05, 30.0), min_size=10, max_size=60), drift=st.floats(0.3, 3.9))
def test_an_engine_that_becomes_slower_than_ever_by_less_than_four_times_is_not_hung(gaps_s, drift):
    looks = Looks(fitted=False)
    for gap_s in gaps_s:
        looks.after(gap_s)
    looks.after(max(gaps_s) * drift, moves=False)
    assert looks.pace() is not Pace.HUNG


# --- how many may be taken out ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "out", "may"),
    [(1, 0, False), (2, 0, True), (2, 1, False), (3, 0, True), (3, 1, False), (4, 1, True), (4, 2, False)],
)
def test_never_more_than_half_of_a_pool(workers, out, may):
    pool = [(make_worker(f"w{number}"), 0 < number <= out) for number in range(workers)]
    assert may_take_out(pool[0][0], pool) is may


def test_a_pool_is_of_one_model_and_one_role():
    lone = make_worker("w0", role=Role.DECODE)
    others = [make_worker("w1", role=Role.PREFILL), make_worker("w2", role=Role.DECODE, model="other")]
    assert not may_take_out(lone, [(it, False) for it in (lone, *others)])


# --- the prompts that are booked ----------------------------------------------------------------------------


def test_the_ledger_knows_the_longest_prompt_and_what_a_worker_got_through():
    ledger = LoadLedger()
    short, long = ledger.book(REF, 150, 100), ledger.book(REF, 900, 800)
    assert ledger.prompts(REF) == PromptsBooked(900, 800, 0, 0)
    ledger.answering(short)
    assert ledger.prompts(REF) == PromptsBooked(800, 800, 900, 100)
    ledger.answering(long)
    assert ledger.prompts(REF) == PromptsBooked(0, 0, 900, 800)


def test_a_prompt_that_was_given_up_was_not_got_through():
    ledger = LoadLedger()
    ledger.release(ledger.book(REF, 900, 800))
    assert ledger.prompts(REF) == PromptsBooked()
