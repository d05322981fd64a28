"""How two wordings differ: in parts that come back wherever the same is worded otherwise."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from phasewise.semantic_match.reading import read
from phasewise.semantic_match.rewrite import EXCHANGE_MARK, MOST_PARTS, PART_MARK, rewrite

wordings = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)
any_wordings = st.lists(st.sampled_from("abc"), max_size=6)
domains = st.text(max_size=5)


def parts(asked, stored, domain="t/n/m"):
    return rewrite(read(asked).words, read(stored).words, domain)


@given(wordings, wordings)
def test_a_change_is_the_same_in_both_directions(one, other):
    assert rewrite(one, other, "d") == rewrite(other, one, "d")


@given(any_wordings, any_wordings)
def test_only_equal_words_have_no_parts_and_no_part_can_be_taken_for_two(one, other):
    found = rewrite(one, other, "d")
    assert (found == ()) == (one == other)
    assert len(found) == len(set(found)) <= MOST_PARTS
    assert not any(PART_MARK in part or EXCHANGE_MARK in part[1:] for part in found)


@given(any_wordings, any_wordings, domains, domains)
def test_two_domains_have_no_part_in_common(one, other, here, there):
    assume(here != there)
    assert set(rewrite(one, other, here)).isdisjoint(rewrite(one, other, there))


@pytest.mark.parametrize(
    ("asked", "stored", "other_asked", "other_stored"),
    [
        ("how do I pay my bill", "how can I pay my bill", "how do I sell a car", "how can I sell a car"),
        ("please where is the key", "where is the key", "please when is lunch", "when is lunch"),
        ("wie zahle ich das", "wie bezahle ich das", "wann zahle ich die", "wann bezahle ich die"),
        ("we leave in may", "in may we leave", "you swim at noon", "at noon you swim"),
        ("did kyle steal it", "was it stolen by kyle", "did ann steal them", "was them stolen by ann"),
    ],
)
def test_the_same_rewording_of_another_subject_is_the_same_change(asked, stored, other_asked, other_stored):
    assert parts(asked, stored) == parts(other_asked, other_stored)


def test_rewordings_at_several_places_are_parts_of_their_own():
    one = parts("how do I buy bread", "how can I buy bread")
    other = parts("where can I buy bread", "where can I purchase bread")
    assert set(parts("how do I buy bread", "how can I purchase bread")) == {*one, *other}


def test_a_courtesy_before_a_reordered_question_is_a_part_of_its_own():
    courtesy = parts("please is it open", "is it open")
    turned = parts("is the shop in may open today", "is the shop open in may today")
    both = parts("please is the shop in may open today", "is the shop open in may today")
    assert set(both) == {*courtesy, *turned}


def test_words_put_for_others_are_marked_and_added_ones_are_not():
    assert [part[0] == EXCHANGE_MARK for part in parts("how do I pay", "how can I pay")] == [True]
    assert [part[0] == EXCHANGE_MARK for part in parts("how do I pay now", "how do I pay")] == [False]
    assert [part[0] == EXCHANGE_MARK for part in parts("may we leave", "we leave may")] == [True]


def test_who_moved_where_is_told():
    assert parts("does ann owe bob money", "is money owed to bob by ann") != parts(
        "does ann owe bob money", "is money owed to ann by bob"
    )


def test_another_sentence_is_one_change():
    one, other = (
        [word for pair in zip("abcdefghi", letters, strict=True) for word in pair]
        for letters in ("123456789", "jklmnopqr")
    )
    assert len(rewrite(one, other, "d")) == 1
