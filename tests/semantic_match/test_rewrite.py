"""How two wordings differ: the sort of change, and parts that come back wherever the same is reworded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.semantic_match.rewrite import LONGEST_APART, MOST_PARTS, Change, may_turn, rewrite
from phasewise.semantic_match.words import words

texts = st.text(alphabet="ab cde.?", max_size=40)


def change_of(question, stored, domain="d"):
    return rewrite(words(question), words(stored), domain)


@pytest.mark.parametrize(
    ("question", "stored", "change"),
    [
        ("How do I reset it?", "how do i reset it", Change.SAME),
        ("Please, how do I reset it?", "How do I reset it?", Change.SAME),
        ("What's the fee?", "What is the fee?", Change.SAME),
        ("How can I reset it?", "How do I reset it?", Change.FUNCTION),
        ("How are bags packed?", "How is a bag packed?", Change.FUNCTION),
        ("Is it late?", "Was it late?", Change.FUNCTION),
        ("In May, is it open?", "Is it open in May?", Change.REORDERED),
        ("Did Kyle steal the house?", "Was the house stolen by Kyle?", Change.REORDERED),
        ("Is she an actress?", "Is she a good actress?", Change.ADDED),
        ("Where do I buy it?", "Where do I purchase it?", Change.SWAPPED),
    ],
)
def test_a_change_is_named_by_the_words_that_differ(question, stored, change):
    assert change_of(question, stored).change is change


def test_only_words_of_content_make_a_change_of_content():
    assert [change for change in Change if change.of_content] == [Change.ADDED, Change.SWAPPED]


@given(one=texts, other=texts)
def test_a_change_is_the_same_in_both_directions(one, other):
    assert change_of(one, other) == change_of(other, one)


@given(text=st.text(max_size=60))
def test_a_text_differs_from_itself_in_nothing(text):
    assert change_of(text, text).parts == ()
    assert change_of(text, text).change is Change.SAME


def test_the_same_rewording_of_other_questions_is_the_same_change():
    assert change_of("How do I reset my router?", "How can I reset my router?") == change_of(
        "How do I bake bread?", "How can I bake bread?"
    )
    assert change_of("Did Kyle steal the house?", "Was the house stolen by Kyle?") == change_of(
        "Did Mary Ann sell the boat?", "Was the boat sold by Mary Ann?"
    )


def test_rewordings_at_several_places_are_parts_of_their_own():
    one = change_of("How do I buy bread?", "How can I buy bread?")
    other = change_of("Where can I buy bread?", "Where can I purchase bread?")
    both = change_of("How do I buy bread?", "How can I purchase bread?")
    assert set(both.parts) == {*one.parts, *other.parts}


def test_who_moved_where_is_told_by_the_order():
    right = change_of("Does Ann owe Bob money?", "Is money owed to Bob by Ann?")
    turned = change_of("Does Ann owe Bob money?", "Is money owed to Ann by Bob?")
    assert right.parts != turned.parts


def test_words_that_merely_changed_places_are_told():
    assert change_of("a flight from Rome to Oslo", "a flight from Oslo to Rome").exchanges
    assert not change_of("Did Kyle steal the house?", "Was the house stolen by Kyle?").exchanges
    assert not change_of("Is it late?", "Was it late?").exchanges


def test_an_ending_is_part_of_the_change_though_the_stem_is_the_same():
    plural = change_of("Can I take my bag?", "Can I take my bags?")
    assert plural.parts
    assert plural == change_of("Where is the bag?", "Where is the bags?")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("Where is my key?", "Where are my keys?"), ("What is the custom?", "What are the customs?")),
        (("Is it good to run?", "Is running good?"), ("Is it good to build?", "Is building good?")),
        (
            ("How late is the walk in May?", "In May, how late is the walking?"),
            ("How long is the train in Rome?", "In Rome, how long is the training?"),
        ),
        (
            ("Is it my customer bill?", "Is it my customer's bill?"),
            ("Is it my cat bill?", "Is it my cat's bill?"),
        ),
    ],
)
def test_what_an_ending_does_to_one_word_says_nothing_of_others(one, other):
    first, second = change_of(*one), change_of(*other)
    assert set(second.parts) - set(first.parts)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("clean up the room", "clean the room"), ("call up the meeting", "call the meeting")),
        (("switch off the fan", "switch the fan"), ("call off the meeting", "call the meeting")),
        (("send back the parcel", "send the parcel"), ("give back the parcel", "give the parcel")),
        (("tidy up the room", "tidy the room up"), ("run up the room", "run the room up")),
        (("the price of tools", "the price for tools"), ("the hatred of tools", "the hatred for tools")),
        (("Is it open?", "Does it open?"), ("Is it change?", "Does it change?")),
        (("I listen to him", "I listen him"), ("I talk to him", "I talk him")),
        (("We move to school", "We move the school"), ("We lead to ruin", "We lead the ruin")),
    ],
)
def test_what_hangs_on_the_words_around_it_says_nothing_of_others(one, other):
    assert not set(change_of(*one).parts) & set(change_of(*other).parts)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("How to reset it?", "How do I reset it?"), ("How to bake bread?", "How do I bake bread?")),
        (("In Oslo, is it hot?", "Is it hot in Oslo?"), ("In Rome, is it wet?", "Is it wet in Rome?")),
        (("Can I call off it?", "Can I cancel it?"), ("Can I call off a trip?", "Can I cancel a trip?")),
    ],
)
def test_words_that_bring_what_they_belong_to_are_the_same_change_elsewhere(one, other):
    assert set(change_of(*one).parts) & set(change_of(*other).parts)


def test_only_other_words_in_place_of_some_may_turn_with_the_world():
    swapped, added = "Is the portal online?", "Is the portal really free?"
    assert may_turn(change_of("Is the portal free?", swapped).signature)
    assert not may_turn(change_of("Is the portal always free?", added).signature)
    assert not may_turn(change_of("Was the portal free?", added).signature)
    both = change_of("Was the portal free?", swapped).parts
    assert sorted(map(may_turn, both)) == [False, True]


def test_two_domains_changes_cannot_be_compared():
    here, there = (change_of("Where do I buy it?", "Where do I purchase it?", domain) for domain in "ab")
    assert not set(here.parts) & set(there.parts)


def test_a_change_of_many_parts_is_known_as_a_whole_only():
    stored = " ".join(f"keep{place} old{place}" for place in range(MOST_PARTS + 1))
    assert len(change_of(stored.replace("old", "new"), stored).parts) == 1


def test_the_longest_questions_are_told_apart_too():
    long = " ".join(f"word{place}" for place in range(20 * LONGEST_APART))
    changed = change_of(long, " ".join(reversed(long.split())))
    assert len(changed.parts) == 1
    assert changed.exchanges
