# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from phasewise.benchmark.workload.prompts import (
    TEMPLATE_TOKENS,
    WORDS,
    opened,
    resized,
    word_count,
    write_messages,
    write_opening,
    write_text,
)


def test_no_word_stands_twice_in_the_list():
    assert len(set(WORDS)) == len(WORDS)


@given(st.integers(1, 500), st.integers(-600, 600), st.integers())
def test_a_text_changes_by_as_many_words_as_asked_but_never_vanishes(tokens, by_tokens, seed):
    rng = Random(seed)
    text = write_text(tokens, rng)
    changed = resized(text, by_tokens, rng)
    assert len(changed.split()) == max(tokens + by_tokens, 1)
    assert changed.startswith(text) or text.startswith(changed)


def test_texts_share_no_beginning():
    rng = Random(1)
    openings = {tuple(write_text(100, rng).split()[:6]) for _ in range(1000)}
    assert len(openings) == 1000


def test_a_shared_prefix_is_the_system_prompt_and_counts_as_prompt():
    shared = write_text(30, Random(0))
    system, user = write_messages(100, shared, Random(1))
    assert (system.role, system.content, user.role) == ("system", shared, "user")
    assert len(user.content.split()) == 100 - 30 - TEMPLATE_TOKENS


@given(st.integers(1, 40), st.integers())
def test_an_opening_takes_the_place_of_words_and_adds_none(tokens, seed):
    rng = Random(seed)
    text, opening = write_text(tokens, rng), write_opening(rng)
    assert opened(text, opening).split() == opening.split()[:tokens] + text.split()[6:]
    assert opened(text, "") == text


def test_openings_of_runs_differ():
    assert len({write_opening(Random(seed)) for seed in range(1000)}) == 1000


@given(st.integers(1, 60), st.integers(0, 60), st.integers(-100, 100), st.integers())
def test_words_to_be_kept_stay(tokens, kept, by_tokens, seed):
    rng = Random(seed)
    text = write_text(tokens, rng)
    kept = min(kept, tokens)
    assert resized(text, by_tokens, rng, kept).split()[:kept] == text.split()[:kept]


@given(st.integers(1, 60))
def test_words_are_counted(tokens):
    assert word_count(write_text(tokens, Random(0))) == tokens
    assert word_count("") == 0
