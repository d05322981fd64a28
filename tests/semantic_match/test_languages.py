"""The word lists: a file of each language says what is counted and what planted pairs are made with."""

import pytest

from phasewise.semantic_match.languages import LANGUAGES
from phasewise.semantic_match.reading import read

each_language = pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)


def test_there_are_six_languages_and_english_is_first():
    assert [language.name for language in LANGUAGES] == ["en", "de", "es", "fr", "it", "pt"]


@each_language
def test_no_list_is_empty_and_none_repeats_itself(language):
    for words in (language.common, language.negations, language.joins, language.negate, language.opposites):
        assert words
    for words in (language.numbers, language.names, language.things, language.opposites, language.negate):
        assert len(words) == len(set(words)) >= 2


@each_language
def test_every_negation_is_counted_once(language):
    for word in language.negations:
        assert read(f"x {word} x").negations == 1, word


@each_language
def test_every_negated_phrase_has_more_negations_than_its_phrase(language):
    for phrase, negated in language.negate:
        assert read(negated).negations > read(phrase).negations, negated


@each_language
def test_no_number_is_a_negation_or_a_word_that_tells_a_language(language):
    numbers = set(language.numbers)
    assert numbers.isdisjoint(language.negations)
    assert numbers.isdisjoint(word for other in LANGUAGES for word in other.common)


@each_language
def test_no_guard_objects_to_a_thing_or_an_opposite(language):
    for word in (*language.things, *(word for pair in language.opposites for word in pair)):
        reading = read(f"x {word} x")
        assert (reading.numbers.total(), reading.negations, reading.verbatim) == (0, 0, ()), word


@each_language
def test_every_name_is_seen_as_one(language):
    for name in language.names:
        assert read(f"x {name}").names == {name.casefold()}
