"""Prompts have as many hashes in common as they have blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.prefixes import BLOCK_BYTES, HASHED_BYTES, prefix_hashes

KEY = b"k" * 32


def make_prompt(blocks, rest=0, letter=b"a"):
    return letter * (blocks * BLOCK_BYTES + rest)


def test_there_is_one_hash_for_each_whole_block():
    assert prefix_hashes(b"m", make_prompt(0, rest=BLOCK_BYTES - 1), KEY) == ()
    assert len(prefix_hashes(b"m", make_prompt(3, rest=5), KEY)) == 3


def test_equal_blocks_have_unlike_hashes_because_each_covers_all_before_it():
    assert len(set(prefix_hashes(b"m", make_prompt(9), KEY))) == 9


def test_root_and_key_keep_equal_prompts_apart():
    prompt = make_prompt(3)
    known = set(prefix_hashes(b"m", prompt, KEY))
    assert known.isdisjoint(prefix_hashes(b"other", prompt, KEY))
    assert known.isdisjoint(prefix_hashes(b"m", prompt, b"o" * 32))


def test_no_part_of_the_root_can_be_moved_into_the_prompt():
    one = prefix_hashes(b"m", make_prompt(2), KEY)
    assert set(one).isdisjoint(prefix_hashes(b"m" + make_prompt(1), make_prompt(1), KEY))


def test_a_long_prompt_is_known_by_its_beginning():
    at_most = prefix_hashes(b"m", b"a" * HASHED_BYTES, KEY)
    assert prefix_hashes(b"m", b"a" * (2 * HASHED_BYTES), KEY) == at_most
    assert len(at_most) == HASHED_BYTES // BLOCK_BYTES


def test_hashes_fit_into_64_bits():
    assert all(0 <= it < 2**64 for it in prefix_hashes(b"m", make_prompt(50), KEY))


@given(common=st.integers(0, 2_000), first=st.integers(0, 2_000), second=st.integers(0, 2_000))
def test_as_many_hashes_are_in_common_as_blocks(common, first, second):
    one = prefix_hashes(b"m", b"a" * common + b"b" * first, KEY)
    other = prefix_hashes(b"m", b"a" * common + b"c" * second, KEY)
    alike = common // BLOCK_BYTES
    assert one[:alike] == other[:alike]
    assert set(one[alike:]).isdisjoint(other[alike:])
