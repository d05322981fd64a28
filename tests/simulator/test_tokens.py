"""Tokens are exact both ways, and a context decides all that follows."""

from hypothesis import given
from hypothesis import strategies as st

from phasewise.fake_engine.wire_requests import render_chat
from phasewise.simulator.tokens import END_ID, WORD_COUNT, ContextHash, decode, encode

word_ids = st.lists(st.integers(0, WORD_COUNT - 1), max_size=20)


@given(st.text())
def test_text_survives_encoding(text):
    assert decode(encode(text)) == text


@given(st.text(), word_ids)
def test_generated_words_are_read_back_as_the_tokens_they_were(prompt, words):
    assert encode(prompt + decode(words)) == encode(prompt) + words


def test_a_token_is_about_four_bytes():
    assert len(encode("x" * 400)) == 100
    assert len(encode("x" * 401)) == 101


def test_the_end_has_no_text():
    assert decode([END_ID]) == ""


@given(word_ids, word_ids)
def test_a_context_hashes_alike_however_it_grew(before, after):
    grown = ContextHash(before)
    grown.extend(after)
    assert grown.next_word() == ContextHash(before + after).next_word()


def continuation(ids, count):
    context, words = ContextHash(ids), []
    for _ in range(count):
        words.append(context.next_word())
        context.extend(words[-1:])
    return words


def test_a_lost_or_doubled_token_changes_all_that_follows():
    ids = encode("a prompt of some length")
    intact = continuation(ids, 20)
    lost, doubled = continuation(ids[:3] + ids[4:], 20), continuation(ids[:3] + ids[2:], 20)
    assert not any(a == b for a, b in zip(intact, lost, strict=True))
    assert not any(a == b for a, b in zip(intact, doubled, strict=True))


def test_an_answer_ends_once_in_so_many_contexts():
    ends = sum(ContextHash([number]).ends_here(10) for number in range(5000))
    assert 400 < ends < 600


def test_continuing_a_message_gives_the_tokens_of_having_written_it():
    asked = [{"role": "user", "content": "Tell me."}]
    written = continuation(encode(render_chat(asked, open_answer=True, continue_final=False)), 5)
    begun = [*asked, {"role": "assistant", "content": decode(written[:3])}]
    resumed = continuation(encode(render_chat(begun, open_answer=False, continue_final=True)), 2)
    assert resumed == written[3:]


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    rendered = render_chat([{"role": "user", "content": parts}], open_answer=False, continue_final=False)
    assert rendered == "<|im_start|>user\none\ntwo<|im_end|>\n"
