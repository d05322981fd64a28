"""Marks tell shared beginnings and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.prefixes import MARK_SIZES_BYTES, prefix_marks

KEY = b"k" * 16


@given(st.binary(max_size=3000), st.binary(max_size=3000), st.binary(max_size=3000))
def test_marks_agree_exactly_where_the_beginnings_do(shared, one, other):
    first, second = prefix_marks(shared + one, KEY), prefix_marks(shared + other, KEY)
    for size, mine, theirs in zip(MARK_SIZES_BYTES, first, second, strict=False):
        assert (mine == theirs) == ((shared + one)[:size] == (shared + other)[:size])


def test_a_short_prompt_has_no_marks():
    assert prefix_marks(b"hello", KEY) == ()


def test_another_key_makes_other_marks():
    assert prefix_marks(b"x" * 600, KEY) != prefix_marks(b"x" * 600, b"other")
