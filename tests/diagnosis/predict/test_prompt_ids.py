"""Invented prompts share what the recorded ones shared, and nothing else."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.prefixes import MARK_SIZES_BYTES, prefix_marks
from phasewise.diagnosis.predict.replay import cached_beforehand, invent_prompts
from tests.diagnosis.predict.traffic_builders import make_recorded

KEY = b"key"


def marked(index, text, **fields):
    """A request of four bytes per token."""
    return make_recorded(
        index, marks=prefix_marks(text, KEY), prompt_bytes=len(text), prompt_tokens=len(text) // 4, **fields
    )


def alike(first, second):
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(first.ids, second.ids, strict=False))))


@given(shared=st.integers(0, 9000), own=st.integers(1, 4000), beyond=st.floats(0, 1))
def test_prompts_share_at_least_what_marks_show_and_less_than_up_to_the_next_mark(shared, own, beyond):
    texts = [b"s" * shared + name * own for name in (b"a", b"b")]
    first, second = (marked(index, text) for index, text in enumerate(texts))
    common = alike(*invent_prompts([first, second], beyond))
    sizes = (0, *MARK_SIZES_BYTES)
    reached = max(size for size in sizes if size <= shared)
    longer = min(size for size in sizes if size > shared)
    assert reached // 4 - 1 <= common <= longer // 4 + 1
    if reached == 0:
        assert common == 0


def test_prompts_keep_their_lengths():
    requests = [marked(0, b"s" * 3000), marked(1, b"s" * 5000), make_recorded(2, prompt_tokens=7)]
    assert [len(prompt.ids) for prompt in invent_prompts(requests, 1.0)] == [750, 1250, 7]


def test_what_the_engine_found_cached_counts_more_than_marks():
    text = b"s" * 5000
    requests = [marked(0, text + b"a" * 1000), marked(1, text + b"b" * 1000, cached_tokens=1248)]
    assert alike(*invent_prompts(requests, 0.0)) == 1248


def test_what_no_request_of_the_window_put_into_the_cache_was_there_before():
    text = b"s" * 5000
    cold = [marked(0, text + b"a" * 99), marked(1, text + b"b" * 99, cached_tokens=1248)]
    assert cached_beforehand(cold, invent_prompts(cold, 0.5)) == ()
    warm = [marked(0, text + b"a" * 99, cached_tokens=1248), *cold[1:]]
    prompts = invent_prompts(warm, 0.5)
    assert cached_beforehand(warm, prompts) == (prompts[0].ids[:1248],)
