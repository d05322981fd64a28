"""Counters stand in where no request shows its phases, and lose nothing that buckets tell."""

import pytest

from phasewise.adapters.vllm_metrics import delta, parse_metrics
from phasewise.diagnosis.counter_picture import COUNTERS
from phasewise.diagnosis.verdict import Ruling, judge
from phasewise.model.slo import Slo
from phasewise.observe.evidence import Evidence, picture_of
from tests.builders import EPOCH_S, make_timeline

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
NAMES = {
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
    return picture_of(Evidence(EPOCH_S, 20.0, "the gateway", tuple(timelines), {}, metrics, ()), SLO)


def test_plain_replies_alone_are_judged_by_what_the_engine_counted():
    plain = [make_timeline((), request_id=str(index), streamed=False) for index in range(10)]
    late = seen(plain, ttft=(30.0, {"1.0": 0, "5.0": 10, "+Inf": 10}))
    assert (late.seen_by, late.start.late, late.workload.requests) == (COUNTERS, 10, 10)
    assert judge(late, SLO).ruling is Ruling.SLOW_TO_START
    assert judge(seen(plain), SLO).ruling is Ruling.TOO_LITTLE_SEEN


def test_a_stream_among_plain_replies_speaks_for_itself():
    plain = [make_timeline((), request_id=str(index), streamed=False) for index in range(10)]
    mixed = seen([*plain, make_timeline()], ttft=(30.0, {"1.0": 0, "5.0": 10, "+Inf": 10}))
    assert (mixed.seen_by, mixed.start.requests) == ("the gateway", 1)
    assert mixed.start.ttft_p50_s == pytest.approx(0.5)
