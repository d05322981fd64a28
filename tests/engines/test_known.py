"""What a reply says of its request, in the words of any kind of engine and of any endpoint."""

from __future__ import annotations

import pytest

from phasewise.core.timeline import EngineAccount, Part, Source, Span
from phasewise.engines.known import read_account

METRICS = {
    "time_to_first_token_ms": 80.0,
    "generation_time_ms": 900.5,
    "queue_time_ms": 0.25,
    "mean_itl_ms": 60.0,
    "tokens_per_second": 16.3,
}


def test_reported_durations_are_spans_of_the_engines_clock():
    account = read_account({"metrics": METRICS})
    assert account == EngineAccount(queue_s=0.00025, prefill_s=0.08, decode_s=0.9005)
    assert account.spans == (
        Span(Part.ENGINE_QUEUE, Source.ENGINE_REPORT, 0.00025),
        Span(Part.PREFILL, Source.ENGINE_REPORT, 0.08),
        Span(Part.DECODE, Source.ENGINE_REPORT, 0.9005),
    )


def test_llama_cpp_times_no_queue():
    timings = {"cache_n": 0, "prompt_n": 6, "prompt_ms": 60.0, "predicted_ms": 250}
    account = read_account({"timings": timings})
    assert account == EngineAccount(prefill_s=0.06, decode_s=0.25)
    assert [span.part for span in account.spans] == [Part.PREFILL, Part.DECODE]


def test_counts_come_from_usage():
    usage = {
        "prompt_tokens": 30,
        "completion_tokens": 8,
        "total_tokens": 38,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    assert read_account({"usage": usage}) == EngineAccount(
        prompt_tokens=30, cached_tokens=16, output_tokens=8
    )


@pytest.mark.parametrize("reply", [{}, {"usage": None, "metrics": None}, {"usage": {}, "timings": {}}])
def test_a_reply_without_counts_and_times_says_nothing(reply):
    assert read_account(reply) is None


def test_what_the_engine_did_not_say_is_unknown_not_zero():
    usage = {"prompt_tokens": 3, "prompt_tokens_details": None}
    timings = {"queue_time_ms": None, "generation_time_ms": 5}
    account = read_account({"usage": usage, "metrics": timings})
    assert account == EngineAccount(prompt_tokens=3, decode_s=0.005)


@pytest.mark.parametrize("nonsense", [-1.0, float("nan"), float("inf"), "5", True, [5]])
def test_nonsense_is_neither_a_duration_nor_a_count(nonsense):
    account = read_account({"usage": {"prompt_tokens": nonsense}, "metrics": {"queue_time_ms": nonsense}})
    assert account == EngineAccount()
