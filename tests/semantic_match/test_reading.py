"""What guards read of a question: its words, numbers, names, negations and what counts to the letter."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.semantic_match.reading import read

MOST_GROWTH = 5.0
"""For twice the text. Linear time grows by 2, quadratic by 4."""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("How do I pay?", "how do i pay"),
        ("¿Cómo pago  ESTO?", "cómo pago esto"),
        ("Python 3.11, re-sent.", "python 3.11 re-sent"),
        ("What's   up", "what s up"),
        ("Größe", "grösse"),
        ("我想退款。", "我 想 退 款"),
        ("ログイン", "ロ グ イ ン"),
        ("비밀 번호", "비 밀 번 호"),
        (" \n?!", ""),
    ],
)
def test_words_are_in_lower_case_and_a_character_is_one_where_no_spaces_are_written(text, words):
    assert read(text).words == tuple(words.split())


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Are 5 bags and two coats 5km too far?", ["5", "5km", "two"]),
        ("Zwei y cuatro, et cinq, o tre, ou sete", ["cinq", "cuatro", "sete", "tre", "zwei"]),
        ("version 3.11 of A4", ["3.11", "a4"]),
        ("one of them", []),
    ],
)
def test_numbers_are_words_with_digits_and_number_words_of_every_language(text, numbers):
    assert sorted(read(text).numbers.elements()) == numbers


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Does Anna know New York?", {"anna", "new", "york"}),
        ("Hello. Is it open? Yes, Is it: Now", set()),
        ("May I ask", set()),
        ("VPN or iPhone", {"vpn", "iphone"}),
        ("wo ist meine Karte", {"karte"}),
    ],
)
def test_names_are_written_with_a_capital_letter_where_no_sentence_begins(text, names):
    assert read(text).names == names


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("I can't, you cannot, we do not", 3),
        ("It isn’t", 1),
        ("Kann ich nicht ohne", 2),
        ("no puedo sin", 2),
        ("je ne peux pas", 2),
        ("non posso mai", 2),
        ("não sem", 2),
        ("a knot of nothingness", 0),
    ],
)
def test_negations_of_every_language_are_counted(text, count):
    assert read(text).negations == count


@pytest.mark.parametrize(
    ("text", "verbatim"),
    [
        ("run `ls -l` now", ["`ls -l`"]),
        (
            'say "Hi there", «oui» or „ja“ or “no” or 「是」',
            ['"Hi there"', "«oui»", "„ja“", "“no”", "「是」"],
        ),
        ("```\nx\n``` and ```y", ["```\nx\n```", "```y"]),
        ("mail a@b.org or see https://b.org/X then", ["a@b.org", "https://b.org/X"]),
        ("is my_name in /etc/hosts 5% of $5", ["my_name", "/etc/hosts", "5%", "$5"]),
        ('an open " is none', []),
    ],
)
def test_code_quoted_text_and_addresses_are_kept_to_the_letter(text, verbatim):
    assert sorted(read(text).verbatim) == sorted(verbatim)


def test_a_letter_is_the_same_however_its_accent_is_encoded():
    assert read("Cafe\u0301 non-stop") == read("Caf\u00e9 non-stop")


@given(st.text(max_size=80))
def test_any_text_can_be_read_and_everything_counted_stands_in_it(text):
    reading = read(text)
    assert reading.names <= set(reading.words)
    whole = unicodedata.normalize("NFC", text).replace("’", "'").casefold()
    assert all(number in whole for number in reading.numbers)
    assert reading == read(text)


@given(st.text(alphabet="ab 1Né", max_size=40))
def test_space_and_marks_of_a_sentence_add_nothing(text):
    assert read(f"  {text} ?!\n") == read(text)


@pytest.mark.parametrize(
    "run", ["`", "```", '"', "'", "“", "«", "„", "「", "?", "a.", "1-", "n't ", "A ", "我", '"`«', "=a "]
)
def test_twice_the_text_takes_no_more_than_some_four_times_as_long(run):
    def fastest_s(size):
        text, best_s = run * (size // len(run)), float("inf")
        for _ in range(5):
            begun_s = time.thread_time()
            read.__wrapped__(text)  # without its cache
            best_s = min(best_s, time.thread_time() - begun_s)
        return best_s

    # Measured again if need be: the machine may be crowded for a moment.
    assert any(fastest_s(2_000) <= MOST_GROWTH * fastest_s(1_000) for _ in range(3))
