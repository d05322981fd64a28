from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
import orjson
import pytest
from rich.console import Console

from phasewise.benchmark.compare.verdict import (
    METRICS,
    ComparisonResult,
    Rules,
    RunPair,
    readings,
    remarks_on,
)
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.statistics.comparison import MetricVerdict
from phasewise.benchmark.target import Target
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.benchmark.workload.plan import Plan
from phasewise.clients.host import CpuTimes
from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome
from phasewise.report.compare import render
from tests.builders import EPOCH_S, make_timeline

RULES = Rules(Slo(ttft_s=1.0, tpot_s=0.2), warm_up_requests=2)


def make_block(rng: np.random.Generator, at_s: float, ttft_s: float = 0.3, gap_s: float = 0.05) -> BenchRun:
    """Twenty requests of five tokens, with some noise."""
    timelines = []
    for index in range(20):
        first_s = ttft_s * rng.lognormal(0.0, 0.05)
        times_s = first_s + np.cumsum([0.0, *(gap_s * rng.lognormal(0.0, 0.05, 4))])
        started = EPOCH_S + at_s + index
        timelines.append(make_timeline(tuple(map(float, times_s)), started_unix_s=started))
    plan = Plan.of_singles((), ClosedLoop(1))
    return BenchRun(
        Target("http://e", "m"), plan, tuple(timelines), wall_s=20.0, started_unix_s=EPOCH_S + at_s
    )


def make_pairs(count: int = 8, **b_fields) -> list[RunPair]:
    rng = np.random.default_rng(1)
    return [
        RunPair(make_block(rng, 40.0 * number), make_block(rng, 40.0 * number + 20, **b_fields))
        for number in range(count)
    ]


def verdicts(pairs: list[RunPair]) -> dict[str, MetricVerdict]:
    found = RULES.compare(pairs, np.random.default_rng(0))
    return {each.metric.name: each.verdict for each in found}


def make_result(pairs: list[RunPair], **fields) -> ComparisonResult:
    comparisons = RULES.compare(pairs, np.random.default_rng(0))
    return ComparisonResult("http://a", "http://b", comparisons, len(pairs), RULES, **fields)


def shown(result: ComparisonResult) -> str:
    console = Console(file=StringIO(), width=120, no_color=True)
    console.print(render(result))
    return console.file.getvalue()


def test_a_slower_start_is_worse_where_it_starts_and_nowhere_in_the_stream():
    found = verdicts(make_pairs(ttft_s=0.36))
    assert found["ttft_p50"] is found["ttft_p90"] is MetricVerdict.WORSE
    assert found["tpot_p50"] is found["itl_p50"] is MetricVerdict.EQUIVALENT


def test_a_faster_stream_is_better_where_it_streams_and_nowhere_at_the_start():
    found = verdicts(make_pairs(gap_s=0.04))
    assert found["tpot_p50"] is found["itl_p50"] is MetricVerdict.BETTER
    assert found["ttft_p50"] is MetricVerdict.EQUIVALENT


def test_an_arm_that_sheds_load_is_not_called_better_for_those_it_answers():
    failed = make_timeline((), outcome=Outcome.FAILED, output_tokens=None)
    pairs = [
        RunPair(pair.a, replace(pair.b, timelines=(*pair.b.timelines[:12], *[failed] * 8)))
        for pair in make_pairs(ttft_s=0.2)
    ]
    found = verdicts(pairs)
    assert found["ttft_p90"] is MetricVerdict.WORSE
    assert found["goodput"] is MetricVerdict.WORSE


def test_every_metric_is_read_from_a_block_without_its_warm_up():
    block = readings(make_block(np.random.default_rng(2), 0.0), RULES.slo, warm_up_requests=5)
    assert set(block) == {metric.name for metric in METRICS}
    assert len(block["ttft_p50"]) == 15
    assert len(block["itl_p50"]) == 15 * 4
    assert block["goodput"].denominator == 15
    assert block["throughput"].numerator == 75


def test_a_control_asks_for_more_pairs_the_tighter_the_margin():
    control = RULES.control(make_pairs(4), np.random.default_rng(0))
    assert control.alike
    few = RULES.needed(control)
    many = replace(RULES, margin=0.01).needed(control)
    assert few is not None
    assert many is None or many > few


def test_a_control_that_differs_from_itself_is_shouted():
    pairs = make_pairs(8, ttft_s=0.4)
    control = RULES.control(pairs, np.random.default_rng(0))
    assert "ttft_p50" in control.differing
    assert "CONTROL FAILED: A differs from itself in ttft_p50" in shown(make_result(pairs, control=control))


def test_an_inconclusive_control_is_not_taken_for_a_good_one():
    pairs = make_pairs(2)
    result = make_result(make_pairs(5), control=RULES.control(pairs, np.random.default_rng(0)))
    assert "The control is inconclusive" in shown(result)
    assert not result.trusted


def test_an_open_question_says_how_many_pairs_would_close_it():
    result = make_result(make_pairs(5, ttft_s=0.306))
    undecided = [each for each in result.comparisons if each.verdict is MetricVerdict.INCONCLUSIVE]
    for each in undecided:
        assert f"{each.metric.label}: " in shown(result)
    assert "probability that any of these 9 rows says better or worse is at most 5%" in shown(result).replace(
        "\n", " "
    )


def test_too_few_pairs_decide_nothing():
    found = verdicts(make_pairs(2))
    assert set(found.values()) == {MetricVerdict.UNKNOWN}
    assert "pairs have readings in both arms" in shown(make_result(make_pairs(2), cut_short=True))


def test_a_jump_of_the_whole_machine_is_remarked():
    rng = np.random.default_rng(1)
    pairs = [
        RunPair(make_block(rng, 40.0 * number, ttft), make_block(rng, 40.0 * number + 20, ttft))
        for number, ttft in enumerate([0.3] * 4 + [0.5] * 4)
    ]
    (remark,) = remarks_on(pairs, np.random.default_rng(0))
    assert "TTFT jumped 2.7 min after the first block, by +6" in remark
    assert remarks_on(make_pairs(), np.random.default_rng(0)) == ()


def test_stolen_time_and_failures_are_remarked():
    pair = make_pairs(1)[0]
    samples = (CpuTimes(0.0, 0.0, 0.0), CpuTimes(50.0, 10.0, 100.0))
    failed = make_timeline((), outcome=Outcome.FAILED, output_tokens=None)
    spoilt = replace(pair.b, cpu_samples=samples, timelines=(*pair.b.timelines, failed))
    remarks = " ".join(remarks_on([RunPair(pair.a, spoilt)], np.random.default_rng(0)))
    assert "took up to 10% of this machine's processor time" in remarks
    assert "A: 0 of 20, B: 1 of 21" in remarks


def test_the_result_is_json():
    pairs = make_pairs(4)
    result = make_result(pairs, control=RULES.control(pairs, np.random.default_rng(0)))
    facts = orjson.loads(orjson.dumps(result.to_dict()))
    assert facts["verdicts"].keys() == {metric.name for metric in METRICS}
    assert facts["comparisons"][0]["interval"]["low"] == pytest.approx(result.comparisons[0].interval.low)
