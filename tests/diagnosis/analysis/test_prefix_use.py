"""What prompts share is read from their marks: anywhere, on one engine, and while its cache can hold it."""

from dataclasses import replace

import pytest

from phasewise.core.prefixes import MARK_SIZES_BYTES, TEXT_LIMIT_BYTES, TEXT_MARKS, prefix_marks
from phasewise.core.steps import logs_by_rank
from phasewise.diagnosis.analysis.prefix_use import prefix_use, warm_share
from tests.builders import EPOCH_S, make_attempt, make_finished, make_step, make_timeline

KEY = b"k" * 16


def prompt(index, text, *, worker="w0", cached=0, text_marks=(), output_tokens=10, model="m"):
    """One token per four bytes."""
    return make_timeline(
        (0.5, 0.6),
        request_id=f"r{index}",
        started_unix_s=EPOCH_S + index,
        model=model,
        attempts=(make_attempt(worker=worker, engine_request_id=f"e{index}"),),
        prompt_tokens=len(text) // 4,
        cached_tokens=cached,
        output_tokens=output_tokens,
        prompt_bytes=len(text),
        prefix_marks=prefix_marks(text, KEY),
        text_marks=text_marks,
    )


HEAD_BYTES = MARK_SIZES_BYTES[3]
HEAD_TOKENS = HEAD_BYTES // 4
HEAD = b"h" * HEAD_BYTES
BODIES = [bytes([letter]) * HEAD_BYTES for letter in b"abcd"]


def test_a_common_head_is_shared_from_the_second_prompt_on():
    use = prefix_use([prompt(index, HEAD + body) for index, body in enumerate(BODIES)])
    assert use.shared == pytest.approx(3 / 4 / 2, rel=0.01)
    assert use.shared_here == use.kept == use.shared
    assert use.cached == 0.0


def test_prompts_that_share_nothing_share_nothing():
    use = prefix_use([prompt(index, body * 2) for index, body in enumerate(BODIES)])
    assert use.shared == use.shared_here == use.kept == 0.0


def test_an_engine_shares_only_what_it_served_itself():
    """Two engines in turn: the third prompt is the first that an engine sees again."""
    asked = [prompt(index, HEAD + body, worker=f"w{index % 2}") for index, body in enumerate(BODIES)]
    use = prefix_use(asked)
    assert use.shared == pytest.approx(3 / 4 / 2, rel=0.01)
    assert use.shared_here == pytest.approx(2 / 4 / 2, rel=0.01)


def test_every_rank_has_a_cache_of_its_own():
    """Two ranks in turn, each with space for what it serves: much is scattered, and nothing evicted."""
    asked = [prompt(index, HEAD + body) for index, body in enumerate(BODIES)]
    ranks = logs_by_rank(
        make_step(index + 1, index + 1, engine_index=index % 2, finished=[make_finished(f"e{index}")])
        for index in range(4)
    )
    use = prefix_use(asked, {"w0": 3 * HEAD_TOKENS + 30}, {"w0": ranks})
    assert use.shared == pytest.approx(3 / 4 / 2, rel=0.01)
    assert use.shared_here == use.kept == pytest.approx(2 / 4 / 2, rel=0.01)
    assert prefix_use([*asked, prompt(9, HEAD)], None, {"w0": ranks}) == replace(use, kept=use.shared_here)


def test_what_the_cache_had_to_give_up_was_not_kept():
    """A head, then two strangers as long: a cache for two does not hold it any more."""
    asked = [prompt(index, text) for index, text in enumerate([HEAD, BODIES[0], BODIES[1], HEAD])]
    roomy, tight = prefix_use(asked, {"w0": 100_000}), prefix_use(asked, {"w0": 2 * HEAD_TOKENS + 30})
    assert roomy.kept == roomy.shared_here == tight.shared_here == pytest.approx(1 / 4)
    assert tight.kept == 0.0


def test_unmarked_requests_fill_the_cache_too():
    short = [
        make_timeline((0.5,), request_id=f"s{index}", started_unix_s=EPOCH_S + 1, prompt_tokens=900)
        for index in range(5)
    ]
    asked = [prompt(0, HEAD), *short, prompt(9, HEAD)]
    assert prefix_use(asked, {"w0": 4_000}).kept == 0.0
    assert prefix_use([asked[0], asked[-1]], {"w0": 4_000}).kept > 0


def test_using_a_head_again_keeps_it_fresh():
    asked = [prompt(index, HEAD + bytes([index]) * HEAD_BYTES) for index in range(10)]
    use = prefix_use(asked, {"w0": 4 * HEAD_TOKENS})
    assert use.kept == use.shared


def test_text_behind_a_varying_head_is_repeated_though_not_shared():
    asked = [
        prompt(index, bytes([index]) * 600 + HEAD, text_marks=("a", "b", "c", f"own{index}"))
        for index in range(4)
    ]
    use = prefix_use(asked)
    assert use.shared == 0.0
    assert use.repeated == pytest.approx(3 / 4 * 3 / 4)


def test_a_short_prompt_within_a_long_one_is_repeated_though_the_long_one_kept_few_of_its_marks():
    """A full sketch holds its smallest marks: of the short text's, only those can be looked for."""
    long_text = tuple(f"{number:04}" for number in range(TEXT_MARKS))
    short_text = (*long_text[::2], *(f"{number:04}" for number in range(100, 108)))
    use = prefix_use([prompt(0, HEAD, text_marks=long_text), prompt(1, BODIES[0], text_marks=short_text)])
    assert use.repeated == pytest.approx(1 / 2)


def test_a_sketch_says_nothing_of_what_stands_behind_its_limit():
    body = b"x" * (2 * TEXT_LIMIT_BYTES)
    asked = [prompt(index, body, text_marks=("a", "b", "c", "d")) for index in range(4)]
    assert prefix_use(asked).repeated == pytest.approx(3 / 4 / 2)


def test_the_same_prompts_to_another_model_share_nothing_with_it():
    asked = [prompt(0, HEAD, worker="w0", model="a"), prompt(1, HEAD, worker="w1", model="b", cached=300)]
    assert prefix_use(asked).shared == 0.0
    assert warm_share(asked) > 0


def test_without_sketches_repetition_is_unknown_and_without_marks_everything():
    assert prefix_use([prompt(0, HEAD)]).repeated is None
    assert prefix_use([make_timeline()]) is None
    assert prefix_use([]) is None


def test_tokens_that_came_from_the_cache_before_anybody_sent_them_were_warm():
    asked = [prompt(index, body, cached=HEAD_TOKENS) for index, body in enumerate(BODIES)]
    assert warm_share(asked) == pytest.approx(1 - MARK_SIZES_BYTES[0] / HEAD_BYTES)


def test_what_lies_between_two_marks_is_not_called_warm():
    """A little more than a mark in common: the cache had all of it, and that is no wonder."""
    common = HEAD + b"h" * 20
    cached = len(common) // 4
    asked = [prompt(index, common + body, cached=cached if index else 0) for index, body in enumerate(BODIES)]
    assert warm_share(asked) == 0.0


def test_an_answer_that_comes_back_in_the_next_turn_is_not_called_warm():
    """The engine computed it, and no prompt of the window held it before."""
    answer = b"a" * 6000
    first = prompt(0, HEAD, output_tokens=1500)
    second = prompt(1, HEAD + answer + b"q" * 600, cached=HEAD_TOKENS + 1500)
    assert warm_share([first, second]) == 0.0
    assert warm_share([second]) > 0.5


def test_warmth_is_unknown_without_marks():
    assert warm_share([make_timeline()]) is None
