"""Tokens that an engine should have fetched and did not are reported once, and never invented."""

from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.worker import WorkerRef
from phasewise.scheduling.kv_proofs import KvBalance

D = WorkerRef("d-0", "boot-1")


def watched(moved=0.0, hits=0.0):
    """A balance that has seen where the worker's counters stand."""
    balance = KvBalance()
    balance.counted(D, moved, hits)
    return balance


def looked_twice(balance, moved, hits=0.0):
    """What had ended at one look is judged at the next."""
    return sum(balance.counted(D, moved, hits).recomputed_tokens for _ in range(2))


def test_kv_that_came_balances():
    balance = watched()
    balance.transferred(D, 1_500)
    assert looked_twice(balance, 1_500) == 0
    assert not balance.is_due(D)


def test_kv_that_did_not_come_is_reported_once():
    balance = watched()
    balance.transferred(D, 1_500)
    assert looked_twice(balance, 0) == 1_500
    assert looked_twice(balance, 0) == 0
    assert balance.recomputed_tokens("d-0") == 1_500


def test_what_had_been_counted_before_does_not_hide_a_shortfall():
    balance = watched(10_000, 500)
    balance.transferred(D, 1_500)
    assert looked_twice(balance, 10_000, 500) == 1_500


def test_kv_that_belongs_to_no_request_gives_no_credit():
    balance = watched()
    balance.counted(D, 100_000, 0)
    balance.transferred(D, 1_500)
    balance.transferred(D, 1_500)
    assert looked_twice(balance, 100_000) == 3_000


def test_thousands_of_good_kv_transfers_do_not_buy_tolerance():
    balance, moved = watched(), 0
    for _ in range(2_000):
        balance.transferred(D, 1_500)
        moved += 1_500
        assert balance.counted(D, moved, 0).recomputed_tokens == 0
    balance.transferred(D, 1_500)
    assert looked_twice(balance, moved) == 1_500


def test_kv_that_came_long_before_its_stream_ended_is_not_missed():
    balance = watched()
    for _ in range(5):
        balance.counted(D, 1_500, 0, under_way=1)
    balance.transferred(D, 1_500)
    assert looked_twice(balance, 1_500) == 0


def test_a_request_whose_end_is_reported_a_moment_after_it_left_the_worker_is_not_missed():
    balance = watched()
    balance.counted(D, 1_500, 0, under_way=1)
    balance.counted(D, 1_500, 0, under_way=0)
    balance.transferred(D, 1_500)
    assert looked_twice(balance, 1_500) == 0


def test_an_incarnation_whose_beginning_was_not_seen_is_judged_from_the_first_quiet_look_on():
    balance = KvBalance()
    assert balance.is_due(D)
    balance.counted(D, 9_000, 0, under_way=1)
    balance.transferred(D, 1_500)
    assert looked_twice(balance, 9_000) == 0
    balance.transferred(D, 700)
    assert looked_twice(balance, 9_000) == 700


def test_sums_that_hold_are_sound():
    balance = watched()
    balance.transferred(D, 1_500)
    assert not balance.counted(D, 1_500, 0).sound
    balance.transferred(D, 1_500)
    assert balance.counted(D, 3_000, 0).sound


def test_one_kv_transfer_alone_is_sound():
    balance = watched()
    balance.transferred(D, 1_500)
    balance.counted(D, 1_500, 0)
    assert balance.counted(D, 1_500, 0).sound


def test_what_came_for_later_requests_proves_nothing_of_earlier_ones():
    balance = watched()
    balance.transferred(D, 300)  # whose KV does not come
    balance.transferred(D, 1_000)
    balance.counted(D, 1_000, 0)
    balance.transferred(D, 1_000)
    assert not balance.counted(D, 2_000, 0).sound
    assert balance.counted(D, 2_000, 0).recomputed_tokens == 300


def test_sums_with_others_kv_transfers_among_them_prove_nothing():
    balance = watched()
    balance.transferred(D, 1_500)
    balance.counted(D, 0, 0)
    verdict = balance.counted(D, 9_000, 0)
    assert verdict.recomputed_tokens == 0
    assert not verdict.sound


def test_a_prefix_that_the_worker_had_need_not_come_and_proves_nothing():
    balance = watched()
    balance.transferred(D, 1_500)
    balance.counted(D, 0, 0)
    verdict = balance.counted(D, 0, 1_500)
    assert verdict.recomputed_tokens == 0
    assert not verdict.sound


def test_the_rest_of_a_prefix_that_the_worker_had_balances():
    balance = watched()
    balance.transferred(D, 1_500)
    assert looked_twice(balance, 92, hits=1_408) == 0


def test_hits_of_requests_served_whole_hide_no_shortfall():
    balance = watched()
    balance.served_whole(D, 1_408)
    balance.transferred(D, 1_500)
    assert looked_twice(balance, 0, hits=1_408) == 1_500


def test_hits_that_were_not_counted_are_no_fall_back():
    balance = watched()
    balance.served_whole(D, 1_408)
    assert looked_twice(balance, 0) == 0


def test_a_last_block_computed_again_is_no_fall_back():
    balance = watched()
    balance.transferred(D, 1_500)
    assert looked_twice(balance, 1_450) == 0


def test_what_a_former_incarnation_computed_again_stays_known():
    balance = watched()
    balance.transferred(D, 1_000)
    assert looked_twice(balance, 0) == 1_000
    reborn = WorkerRef("d-0", "boot-2")
    balance.transferred(reborn, 300)
    assert balance.counted(reborn, 300, 0).recomputed_tokens == 0
    assert balance.counted(reborn, 300, 0).recomputed_tokens == 0
    assert balance.recomputed_tokens("d-0") == 1_000


@given(
    st.lists(st.tuples(st.integers(1, 4_000), st.booleans(), st.integers(0, 4)), max_size=30),
    st.integers(0, 10_000),
)
def test_never_more_is_reported_than_was_computed_again(prompts, counted_before):
    """Prompts whose KV comes, or not, at once, and whose streams last for some looks more."""
    balance = watched(counted_before)
    open_streams = []
    moved = lost = reported = 0
    for tokens, came, looks in [*prompts, *[(0, True, 0)] * 7]:
        open_streams.append((tokens, looks))
        moved, lost = moved + tokens * came, lost + tokens * (not came)
        for ended in [it for it in open_streams if it[1] == 0]:
            balance.transferred(D, ended[0])
        open_streams = [(size, left - 1) for size, left in open_streams if left]
        reported += balance.counted(D, counted_before + moved, 0, len(open_streams)).recomputed_tokens
        assert reported <= lost
    assert reported == balance.recomputed_tokens("d-0")
