"""A window's traffic can be replayed: its times, lengths and shared beginnings, and none of its text."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.benchmark.workload.traces import Trace, mooncake_lines, read_trace
from phasewise.benchmark.workload.window_trace import trace_of
from phasewise.core.errors import ConfigError
from phasewise.core.prefixes import MARK_SIZES_BYTES, prefix_marks
from phasewise.core.timeline import Outcome
from tests.builders import EPOCH_S, make_timeline

BYTES_PER_TOKEN = 4


def asked(text: bytes, at_s=0.0, **fields):
    return make_timeline(
        started_unix_s=EPOCH_S + at_s,
        **{
            "prompt_tokens": len(text) // BYTES_PER_TOKEN,
            "prompt_bytes": len(text),
            "prefix_marks": prefix_marks(text, b"key"),
            **fields,
        },
    )


def text(seed: str, size: int) -> bytes:
    return (seed.encode() * size)[:size]


def test_times_and_lengths_are_kept_in_the_order_of_arrival():
    found = trace_of([asked(text("b", 800), 2.5, output_tokens=9), asked(text("a", 400), 1.0)])
    assert [(r.at_s, r.prompt_tokens, r.output_tokens) for r in found.trace.requests] == [
        (0.0, 100, 3),
        (1.5, 200, 9),
    ]
    assert found.estimated == found.left_out == 0


def test_what_prompts_share_they_share_in_the_trace_and_no_more():
    shared = text("system", 3000)
    one, two, other = trace_of(
        [
            asked(shared + text("x", 3000), 0.0),
            asked(shared + text("y", 3000), 1.0),
            asked(text("z", 3000), 2.0),
        ]
    ).trace.requests
    same = [a == b for a, b in zip(one.block_ids, two.block_ids, strict=True)]
    marked_bytes = max(size for size in MARK_SIZES_BYTES if size <= len(shared))
    assert sum(same) == same.index(False) == marked_bytes // 4 // 32
    assert not set(other.block_ids) & {*one.block_ids, *two.block_ids}


@given(shared=st.integers(0, 9000), own=st.lists(st.integers(1, 6000), min_size=2, max_size=6))
def test_a_trace_never_shares_more_than_the_traffic_did(shared, own):
    prompts = [text("s", shared) + text(chr(97 + i), size) for i, size in enumerate(own)]
    found = trace_of([asked(prompt, float(i)) for i, prompt in enumerate(prompts) if len(prompt) >= 4])
    seen = set()
    for request in found.trace.requests:
        again = sum(block in seen for block in request.block_ids)
        assert again * found.trace.block_tokens * BYTES_PER_TOKEN <= shared + 32 * BYTES_PER_TOKEN
        seen |= {*request.block_ids}


def test_requests_that_were_cut_off_are_part_of_the_load():
    whole = asked(text("a", 400), 0.0, output_tokens=20)
    silent = asked(text("b", 800), 1.0, prompt_tokens=None, output_tokens=None, outcome=Outcome.CANCELLED)
    silent = replace(silent, content_times_s=())
    nameless = replace(silent, prompt_bytes=None, prefix_marks=())
    found = trace_of([whole, silent, nameless])
    assert [(r.prompt_tokens, r.output_tokens) for r in found.trace.requests] == [(100, 20), (200, 20)]
    assert (found.estimated, found.left_out) == (1, 1)


def test_without_marks_nothing_is_said_of_prefixes():
    (request,) = trace_of([make_timeline()]).trace.requests
    assert request.block_ids == ()


def test_what_is_written_is_read_back(tmp_path):
    shared = text("system", 3000)
    timelines = [asked(shared + text(own, 900), at_s) for own, at_s in (("x", 0.0), ("y", 0.25))]
    trace = trace_of(timelines).trace
    file = tmp_path / "window.jsonl"
    file.write_bytes(b"".join(mooncake_lines(trace)))
    assert read_trace(file) == trace
    assert b"system" not in file.read_bytes()


def test_a_trace_in_mooncakes_own_blocks_says_nothing_of_their_size(tmp_path):
    line = next(mooncake_lines(Trace("t", trace_of([make_timeline()]).trace.requests)))
    assert b"block_tokens" not in line


@pytest.mark.parametrize("second", ['"block_tokens": 64', '"other": 1'])
def test_blocks_of_two_sizes_in_one_file_are_rejected(tmp_path, second):
    head = '"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [1]'
    file = tmp_path / "trace.jsonl"
    file.write_text(f'{{{head}, "block_tokens": 32}}\n{{{head}, {second}}}\n')
    with pytest.raises(ConfigError, match="line 2: block_tokens is"):
        read_trace(file)
