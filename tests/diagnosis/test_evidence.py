"""Counters stand in where no request shows its phases, and lose nothing that buckets hold."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.engine_metrics import ScrapedHistogram, delta
from phasewise.core.slo import Slo
from phasewise.core.timeline import Part
from phasewise.diagnosis.analysis.engine_counters import excess_over
from phasewise.diagnosis.analysis.engine_load import SeenBy
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import Evidence, evidence_of
from phasewise.diagnosis.observed.observation import Observed, TargetKind
from phasewise.diagnosis.verdict import Ruling, judge
from phasewise.engines.vllm import parse_metrics
from tests.builders import EPOCH_S, make_timeline

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
NAMES = {
    "queue": "request_queue_time_seconds",
    "ttft": "time_to_first_token_seconds",
    "itl": "inter_token_latency_seconds",
    "tpot": "request_time_per_output_token_seconds",
}


def page(**histograms):
    """An engine's counters: each histogram by its sum and how many lie within each bound."""
    lines = ["process_start_time_seconds 1.0"]
    for short, (total, within) in histograms.items():
        name = f"vllm:{NAMES[short]}"
        count = max(within.values(), default=0)
        lines += [f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{le="{bound}"}} {upto}' for bound, upto in within.items()]
        lines += [f"{name}_sum {total}", f"{name}_count {count}"]
    return parse_metrics("\n".join(lines) + "\n", EPOCH_S)


def seen(timelines=(), **histograms):
    before = page(**{name: (0.0, dict.fromkeys(within, 0)) for name, (_, within) in histograms.items()})
    metrics = (delta(before, page(**histograms)),) if histograms else ()
    return diagnose(
        Evidence(EPOCH_S, 20.0, SeenBy.GATEWAY, tuple(timelines), {}, metrics, ()), SLO, Known()
    ).summary


def test_plain_replies_alone_are_judged_by_what_the_engine_counted():
    plain = [make_timeline((), request_id=str(index), streamed=False) for index in range(10)]
    late = seen(plain, ttft=(30.0, {"1.0": 0, "5.0": 10, "+Inf": 10}))
    assert (late.seen_by, late.start.late, late.workload.requests) == (SeenBy.COUNTERS, 10, 10)
    assert judge(late, SLO).ruling is Ruling.SLOW_TO_START
    assert judge(seen(plain), SLO).ruling is Ruling.NOT_ENOUGH_TRAFFIC


def test_a_stream_among_plain_replies_speaks_for_itself():
    plain = [make_timeline((), request_id=str(index), streamed=False) for index in range(10)]
    mixed = seen([*plain, make_timeline()], ttft=(30.0, {"1.0": 0, "5.0": 10, "+Inf": 10}))
    assert (mixed.seen_by, mixed.start.requests) == ("the gateway", 1)
    assert mixed.start.ttft_p50_s == pytest.approx(0.5)


def test_a_probe_through_a_gateway_is_judged_by_its_own_requests_alone():
    ours = make_timeline(request_id="g1", client_request_id="probe-1-0")
    others = make_timeline(request_id="g2", client_request_id=None)
    observed = Observed("http://g", TargetKind.GATEWAY, EPOCH_S, EPOCH_S + 20, (), reported=(ours, others))
    assert evidence_of(observed).timelines == (ours, others)
    probed = replace(observed, synthetic=True, probed=(make_timeline(request_id="probe-1-0"),))
    assert evidence_of(probed).timelines == (ours,)


BOUNDS = (0.1, 0.5, 1.0, 2.5, 10.0, float("inf"))


@given(st.lists(st.floats(0.001, 60.0), min_size=1, max_size=30), st.sampled_from(BOUNDS[:-1]))
def test_what_exceeds_a_bucket_bound_is_off_by_no_more_than_the_buckets_below(values, bound):
    buckets = tuple((high, float(sum(value <= high for value in values))) for high in BOUNDS)
    found = excess_over(ScrapedHistogram(buckets, float(len(values)), sum(values)), bound)
    true = sum(max(0.0, value - bound) for value in values)
    below = sum(value <= bound for value in values)
    assert found == pytest.approx(true, abs=below * bound / 2 + 1e-6)
    assert (found > 0) <= any(value > bound for value in values)


def test_few_that_start_very_late_are_not_called_healthy():
    """10 of 100 requests wait 30 s; the p90 is within the objective."""
    late = seen(ttft=(90 * 0.25 + 10 * 30.0, {"0.5": 90, "1.0": 90, "10.0": 90, "+Inf": 100}))
    assert (late.start.late, late.start.lost_s) == (10, pytest.approx(290.0))
    assert judge(late, SLO).ruling is Ruling.SLOW_TO_START


def test_counted_stalls_are_one_of_their_mean_length_and_hit_some_streams_twice():
    """100 gaps of 3 s among 10,000, in 100 streams."""
    stalled = seen(
        ttft=(20.0, {"1.0": 100, "+Inf": 100}),
        tpot=(5.0, {"0.1": 100, "+Inf": 100}),
        itl=(9_900 * 0.02 + 100 * 3.0, {"0.04": 9_900, "1.0": 9_900, "5.0": 10_000, "+Inf": 10_000}),
    ).stream
    (stall,) = stalled.stalls
    assert (stall.count, stall.stall.duration_s) == (100, pytest.approx(3.0))
    assert stalled.lost_s == pytest.approx(100 * (3.0 - stall.stall.median_gap_s))
    assert stalled.slow == 63


@pytest.mark.parametrize(("counted", "known"), [(20, True), (50, False)])
def test_means_of_an_engine_stand_in_where_as_many_first_tokens_were_seen_as_it_counted(counted, known):
    """One request a second, of 30 s each: 50 are seen within 20 s, and 20 of them start there."""
    long = [
        make_timeline((0.5, 29.0), request_id=str(at_s), started_unix_s=EPOCH_S + at_s)
        for at_s in range(-30, 20)
    ]
    within = {"1.0": counted, "+Inf": counted}
    summary = seen(long, ttft=(0.5 * counted, within), queue=(0.3 * counted, within))
    assert summary.start.seconds(Part.ENGINE_QUEUE) == pytest.approx(0.3 if known else 0.0)
