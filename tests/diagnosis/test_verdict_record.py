"""A record leaves out nothing that changes how its numbers are to be read."""

from phasewise.diagnosis.verdict import judge
from phasewise.diagnosis.verdict_record import verdict_record
from tests.diagnosis.pictures import SLO, make_picture, make_start, make_stream


def test_a_record_says_which_quantiles_are_only_at_least_that_and_how_many_streams_broke_off():
    start = make_start(engine_queue_s=4.0, ttft_p90_at_least=True)
    picture = make_picture(start=start, stream=make_stream(broken_off=3))
    record = verdict_record(judge(picture, SLO))
    assert (record["start"]["ttft_p50_at_least"], record["start"]["ttft_p90_at_least"]) == (False, True)
    assert record["stream"]["broken_off"] == 3
