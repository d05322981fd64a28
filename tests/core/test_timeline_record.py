"""Records keep what matters, stay small, and reject versions they do not know."""

import pytest
from hypothesis import given

from phasewise.core.errors import ConfigError
from phasewise.core.timeline import GatewayTimes, Part, Source
from phasewise.core.timeline_record import UNIT_S, decode, encode, from_record, to_record
from tests.builders import make_span, make_timeline
from tests.strategies import timelines


@given(timelines)
def test_a_record_keeps_times_to_half_a_unit_and_the_rest_exactly(timeline):
    again = decode(encode(timeline))
    assert to_record(again) == to_record(timeline)
    for kept, given_s in zip(again.content_times_s, timeline.content_times_s, strict=True):
        assert abs(kept - given_s) <= UNIT_S / 2 + 1e-9
    assert again.prompt_tokens == timeline.prompt_tokens
    assert again.output_tokens == timeline.output_tokens
    assert (again.prefix_marks, again.text_marks) == (timeline.prefix_marks, timeline.text_marks)


@given(timelines)
def test_an_unknown_count_stays_unknown(timeline):
    again = decode(encode(timeline))
    for name in ("prompt_tokens", "cached_tokens", "output_tokens", "finish_reason", "client_blocked_s"):
        assert (getattr(again, name) is None) == (getattr(timeline, name) is None)


@given(timelines)
def test_what_a_request_had_of_the_cache_is_kept(timeline):
    again, note = decode(encode(timeline)).cache, timeline.cache
    assert (again is None) == (note is None)
    if again is not None:
        assert (again.result, again.reason, again.saved_tokens) == (
            note.result, note.reason, note.saved_tokens
        )  # fmt: skip
        for name in ("age_s", "embed_s", "saved_start_s", "saved_stream_s", "similarity"):
            assert (getattr(again, name) is None) == (getattr(note, name) is None)


def test_a_timeline_of_200_tokens_is_under_2_kb():
    times = tuple(0.412345 + 0.0671234 * index for index in range(200))
    engine = [
        make_span(Part.ENGINE_QUEUE, 0.01),
        make_span(Part.STEP_IN_FLIGHT, 0.05, Source.STEP_RECORD, start_s=0.01),
        make_span(Part.PREFILL, 0.3, Source.STEP_RECORD, start_s=0.06),
        make_span(Part.PREFILL_OTHERS, 0.04, Source.STEP_RECORD),
        make_span(Part.DECODE, 13.4),
    ]
    timeline = make_timeline(
        times,
        request_id="0123456789abcdef0123456789abcdef",
        spans=[make_span(Part.GATEWAY_WAIT, 0.001, Source.GATEWAY_CLOCK, start_s=0.0)],
        engine_spans=engine,
        finish_reason="length",
        prefix_marks=("0123456789",) * 3,
        text_marks=("0123456789",) * 16,
        client_blocked_s=0.0,
    )
    assert len(encode(timeline)) < 2048


def test_the_gateways_stages_are_kept_and_records_without_them_are_read():
    times = GatewayTimes(0.001, 0.25, 0.003, 1.5)
    assert decode(encode(make_timeline(in_gateway=times))).in_gateway == times
    for none in (None, GatewayTimes(parsing_s=0.00001)):
        record = to_record(make_timeline(in_gateway=none))
        assert "in_gateway" not in record
        assert from_record(record).in_gateway is None


def test_fields_of_a_newer_phasewise_are_passed_over():
    record = to_record(make_timeline())
    assert from_record({**record, "from_the_future": [1]}) == from_record(record)


def test_a_record_of_another_version_is_rejected_with_a_hint():
    record = to_record(make_timeline())
    with pytest.raises(ConfigError, match="version 99") as caught:
        from_record({**record, "v": 99})
    assert caught.value.hint
