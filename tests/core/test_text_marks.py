"""Marks of a text are found again behind another head, and in no other text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.benchmark.workload.prompts import WORDS, stream
from phasewise.core.prefixes import TEXT_FROM_BYTES, TEXT_LIMIT_BYTES, TEXT_MARKS, text_marks

KEY = b"k" * 32


def prose(seed, sentences=60):
    rng = stream(seed)
    return " ".join(
        " ".join(rng.choices(WORDS, k=rng.randint(8, 20))) + "." for _ in range(sentences)
    ).encode()


def word_list(seed, words=900):
    return " ".join(stream(seed).choices(WORDS, k=words)).encode()


def scripture(seed):
    """Text without spaces, whose full stop is three bytes."""
    rng = stream(seed)
    sentences = ["".join(chr(rng.randint(0x4E00, 0x9FFF)) for _ in range(30)) for _ in range(60)]
    return "。".join(sentences).encode()


def digits(seed):
    return stream(seed).randbytes(3000).hex().encode()


TEXTS = [prose, word_list, scripture, digits]
"""What prompts are made of; each maker is handed a seed."""


@pytest.mark.parametrize("text", TEXTS)
@given(seed=st.integers(0, 50), heads=st.tuples(st.binary(max_size=70), st.binary(max_size=70)))
def test_the_same_text_behind_another_head_has_most_of_its_marks(text, seed, heads):
    body = text(seed)
    one, other = (text_marks(head + body, KEY) for head in heads)
    # A head of 70 bytes is at most two pieces of its own, and one more that it shares with the text.
    assert len(set(one) & set(other)) >= TEXT_MARKS - 6
    assert len(one) == len(other) == TEXT_MARKS


@pytest.mark.parametrize("text", TEXTS)
@given(seeds=st.lists(st.integers(0, 10_000), min_size=2, max_size=2, unique=True))
def test_another_text_has_none_of_them(text, seeds):
    one, other = (text_marks(text(seed), KEY) for seed in seeds)
    assert set(one).isdisjoint(other)


def test_marks_of_a_part_are_found_in_the_whole_as_far_as_its_sketch_reaches():
    part, rest = prose(1, 40), prose(2, 120)
    small, large = text_marks(part, KEY), text_marks(rest + b"\n" + part, KEY)
    comparable = [mark for mark in small if mark <= large[-1]]
    assert comparable
    assert set(comparable) <= set(large)


def test_a_short_prompt_is_not_marked():
    assert text_marks(prose(1)[: TEXT_FROM_BYTES - 1], KEY) == ()
    assert text_marks(prose(1)[:TEXT_FROM_BYTES], KEY) != ()


def test_text_far_behind_is_not_looked_at():
    far = b"x" * TEXT_LIMIT_BYTES
    assert text_marks(far + prose(1), KEY) == text_marks(far + prose(2), KEY)


def test_turns_of_phrase_do_not_count():
    assert text_marks(b"Yes, of course. " * 200, KEY) == ()


def test_another_key_makes_other_marks_in_another_order():
    one, other = text_marks(prose(1), KEY), text_marks(prose(1), b"other")
    assert set(one).isdisjoint(other)
    assert list(one) == sorted(one)
