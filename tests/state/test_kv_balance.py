"""Tokens that an engine should have fetched and did not are told once, and never made up."""

from hypothesis import given
from hypothesis import strategies as st

from phasewise.model.worker import WorkerRef
from phasewise.state.kv_balance import KvBalance

D = WorkerRef("d-0", "boot-1")


def looked_twice(balance, moved, hits=0.0):
    """What had ended at one look is judged at the next."""
    return balance.counted(D, moved, hits) + balance.counted(D, moved, hits)


def test_kv_that_came_balances():
    balance = KvBalance()
    balance.handed_over(D, 1_500)
    assert looked_twice(balance, 1_500) == 0
    assert not balance.is_due(D.name)


def test_kv_that_did_not_come_is_told_once():
    balance = KvBalance()
    balance.handed_over(D, 1_500)
    assert looked_twice(balance, 0) == 1_500
    assert looked_twice(balance, 0) == 0
    assert balance.recomputed_tokens("d-0") == 1_500


def test_what_had_been_counted_before_does_not_hide_a_shortfall():
    balance = KvBalance()
    balance.begin(D, 10_000, 500)
    balance.handed_over(D, 1_500)
    assert looked_twice(balance, 10_000, 500) == 1_500


def test_a_prefix_that_the_worker_had_need_not_come():
    balance = KvBalance()
    balance.handed_over(D, 1_500)
    assert looked_twice(balance, 92, hits=1_408) == 0


def test_hits_of_requests_served_whole_hide_no_shortfall():
    balance = KvBalance()
    balance.served_whole(D, 1_408)
    balance.handed_over(D, 1_500)
    assert looked_twice(balance, 0, hits=1_408) == 1_500


def test_a_last_block_computed_again_is_no_fall_back():
    balance = KvBalance()
    balance.handed_over(D, 1_500)
    assert looked_twice(balance, 1_450) == 0


def test_a_restarted_engine_counts_from_nothing_and_what_was_lost_stays_known():
    balance = KvBalance()
    balance.handed_over(D, 1_000)
    assert looked_twice(balance, 0) == 1_000
    reborn = WorkerRef("d-0", "boot-2")
    balance.handed_over(reborn, 300)
    assert balance.counted(reborn, 300, 0) + balance.counted(reborn, 300, 0) == 0
    assert balance.recomputed_tokens("d-0") == 1_000


@given(
    st.lists(st.tuples(st.integers(1, 4_000), st.booleans()), max_size=30),
    st.integers(0, 10_000),
)
def test_never_more_is_told_than_was_computed_again(prompts, counted_before):
    balance = KvBalance()
    balance.begin(D, counted_before, 0)
    moved = lost = told = 0
    for tokens, came in prompts:
        balance.handed_over(D, tokens)
        moved, lost = moved + tokens * came, lost + tokens * (not came)
        told += balance.counted(D, counted_before + moved, 0)
        assert told <= lost
    told += balance.counted(D, counted_before + moved, 0)
    assert told <= lost
    assert told == balance.recomputed_tokens("d-0")
