from __future__ import annotations

import pytest

from phasewise.clients.engine_report import EngineReport, read_report
from phasewise.core.timeline import Part, Source, Span
from phasewise.engines.vllm import phase_spans

METRICS = {
    "time_to_first_token_ms": 80.0,
    "generation_time_ms": 900.5,
    "queue_time_ms": 0.25,
    "mean_itl_ms": 60.0,
    "tokens_per_second": 16.3,
}


def test_reported_durations_become_spans_of_the_engines_clock():
    assert phase_spans(METRICS) == (
        Span(Part.ENGINE_QUEUE, Source.ENGINE_REPORT, 0.00025),
        Span(Part.PREFILL, Source.ENGINE_REPORT, 0.08),
        Span(Part.DECODE, Source.ENGINE_REPORT, 0.9005),
    )


def test_counts_come_from_usage():
    usage = {
        "prompt_tokens": 30,
        "completion_tokens": 8,
        "total_tokens": 38,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    assert read_report(usage, None) == EngineReport(prompt_tokens=30, cached_tokens=16, output_tokens=8)


def test_what_the_engine_did_not_say_is_unknown_not_zero():
    assert read_report(None, None) == EngineReport()
    assert read_report({"prompt_tokens": 3, "prompt_tokens_details": None}, {}) == EngineReport(
        prompt_tokens=3
    )
    assert phase_spans({"queue_time_ms": None, "generation_time_ms": 5}) == (
        Span(Part.DECODE, Source.ENGINE_REPORT, 0.005),
    )


@pytest.mark.parametrize("nonsense", [-1.0, float("nan"), float("inf"), "5", True, [5]])
def test_nonsense_is_not_a_duration(nonsense):
    assert phase_spans({"queue_time_ms": nonsense}) == ()
    assert read_report({"prompt_tokens": nonsense}, None).prompt_tokens is None
