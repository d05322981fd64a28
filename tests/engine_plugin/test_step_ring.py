"""The ring keeps the newest steps under their numbers and never hands out a wrong one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phasewise_engine_plugin.ring import StepRing
from vllm_stand_ins import make_step


def seqs(ring, since=0, limit=1_000_000):
    return [seq for seq, _ in ring.since(since, limit)]


def test_empty_ring_has_nothing_and_starts_at_zero():
    ring = StepRing(4)
    assert (ring.oldest_seq, ring.next_seq, seqs(ring)) == (0, 0, [])


def test_full_ring_forgets_the_oldest():
    ring = StepRing(3)
    for at in range(5):
        ring.append(make_step(at=float(at)))
    assert (ring.oldest_seq, ring.next_seq) == (2, 5)
    assert [(seq, step[0]) for seq, step in ring.since(0, 10)] == [(2, 2.0), (3, 3.0), (4, 4.0)]


def test_step_overwritten_while_reading_is_left_out():
    ring = StepRing(2)
    ring.append(make_step(at=0.0))
    ring.append(make_step(at=1.0))
    reader = ring.since(0, 10)
    assert next(reader)[0] == 0
    ring.append(make_step(at=2.0))
    ring.append(make_step(at=3.0))
    assert list(reader) == []


def test_asking_beyond_the_end_gives_nothing():
    ring = StepRing(2)
    ring.append(make_step())
    assert seqs(ring, since=99) == []


def test_ring_without_capacity_is_rejected():
    with pytest.raises(ValueError, match="at least 1"):
        StepRing(0)


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 70), st.integers(0, 30))
def test_what_comes_out_is_the_held_range_cut_to_the_limit(capacity, appended, since, limit):
    ring = StepRing(capacity)
    for at in range(appended):
        ring.append(make_step(at=float(at)))
    held = range(max(0, appended - capacity), appended)
    assert seqs(ring, since, limit) == [seq for seq in held if seq >= since][:limit]


@given(st.integers(1, 20), st.integers(0, 60), st.integers(-1, 130))
def test_the_first_step_at_a_time_is_found_among_those_held(capacity, appended, half_s):
    ring = StepRing(capacity)
    for at in range(appended):
        # Two steps share every end, as those of two data-parallel engines do.
        ring.append(make_step(at=float(at // 2)))
    held = range(max(0, appended - capacity), appended)
    later = [seq for seq in held if seq // 2 >= half_s / 2]
    assert ring.first_seq_at(half_s / 2) == (later[0] if later else appended)


def test_a_step_overwritten_while_looking_for_a_time_counts_as_earlier():
    ring = StepRing(4)
    for at in range(4):
        ring.append(make_step(at=float(at)))
    ring._slots[0] = (4, make_step(at=4.0))
    assert ring.first_seq_at(0.0) == 1
