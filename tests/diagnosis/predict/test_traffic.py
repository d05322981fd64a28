"""A window's timelines become requests that can be replayed, and the figures that were measured."""

import pytest

from phasewise.core.timeline import Outcome, Part, Source
from phasewise.diagnosis.advice.fix import Figure
from phasewise.diagnosis.predict.traffic import recorded_traffic
from tests.builders import EPOCH_S, make_span, make_timeline


def test_arrivals_count_from_the_first_request_that_can_be_replayed():
    late = make_timeline(request_id="b", started_unix_s=EPOCH_S + 7.5)
    unknown = make_timeline(request_id="c", started_unix_s=EPOCH_S - 3.0, prompt_tokens=None)
    traffic = recorded_traffic([late, make_timeline(request_id="a"), unknown])
    assert [request.came_s for request in traffic.requests] == [0.0, 7.5]
    assert traffic.unusable == 1


def test_requests_of_one_name_stay_apart():
    traffic = recorded_traffic([make_timeline(), make_timeline()])
    assert len({request.request_id for request in traffic.requests}) == 2


def test_figures_are_those_of_the_timelines_that_count():
    cold = make_timeline((9.0, 9.1, 9.2))
    warm = make_timeline((0.5, 0.6, 0.7), started_unix_s=EPOCH_S + 20)
    failed = make_timeline((5.0,), started_unix_s=EPOCH_S + 30, outcome=Outcome.FAILED)
    traffic = recorded_traffic([cold, warm, failed], warm_up=1)
    assert traffic.measured[Figure.TTFT_P50] == 0.5
    assert traffic.measured[Figure.TPOT_P50] == pytest.approx(0.1)
    assert len(traffic.requests) == 3


def test_what_lies_outside_the_engine_is_taken_from_requests_whose_steps_are_known():
    by_steps = (
        make_span(Part.ENGINE_QUEUE, 0.1),
        make_span(Part.PREFILL, 0.25, Source.STEP_RECORD),
    )
    lag = (make_span(Part.GATEWAY_WAIT, 0.05, Source.GATEWAY_CLOCK),)
    reply = make_timeline((0.5, 0.6), spans=lag, engine_spans=by_steps)
    reported = make_timeline((0.9, 1.0), engine_spans=(make_span(Part.PREFILL, 0.25),))
    assert recorded_traffic([reply, reported]).outside_s == pytest.approx(0.15)
    assert recorded_traffic([make_timeline()]).outside_s == 0.0


def test_an_empty_window_has_no_figures():
    traffic = recorded_traffic([])
    assert (traffic.requests, traffic.measured, traffic.longest_tokens) == ((), {}, 0)
