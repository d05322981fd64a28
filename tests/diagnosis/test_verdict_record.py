"""A record leaves out nothing that changes how its numbers are to be read."""

import pytest

from phasewise.diagnosis.verdict import judge, verdict_record
from tests.diagnosis.summaries import SLO, make_start, make_stream, make_summary


def test_a_record_says_which_quantiles_are_only_at_least_that_and_how_many_streams_broke_off():
    start = make_start(engine_queue_s=4.0, ttft_p90_at_least=True)
    summary = make_summary(start=start, stream=make_stream(broken_off=3))
    record = verdict_record(judge(summary, SLO))
    assert (record["start"]["ttft_p50_at_least"], record["start"]["ttft_p90_at_least"]) == (False, True)
    assert record["stream"]["broken_off"] == 3


@pytest.mark.parametrize("synthetic", [True, False])
def test_a_record_says_whether_the_traffic_was_synthetic(synthetic):
    assert verdict_record(judge(make_summary(synthetic=synthetic), SLO))["synthetic"] is synthetic
