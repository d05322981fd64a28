"""The pieces of benchmarks/bench_power.py: the truth it holds comparisons against, and how it counts."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from benchmarks.bench_power import (
    COST,
    COSTS,
    DECODE,
    FULL,
    PREFILL,
    QUICK,
    SAME,
    Case,
    Made,
    Setup,
    Truth,
    find_truths,
    pooled,
    tally,
    virtual_block,
    virtual_readings,
)
from phasewise.benchmark.compare.verdict import METRICS
from phasewise.benchmark.statistics.comparison import Comparison, MetricVerdict, Pair, Scale, compare
from phasewise.benchmark.workload.arrivals import OpenLoop
from phasewise.benchmark.workload.plan import make_plan
from phasewise.core import latency
from phasewise.core.statistics import Interval

BY_NAME = {metric.name: metric for metric in METRICS}
ALONE = replace(FULL.plan, load=OpenLoop(0.01))
"""So rare that no request meets another."""


def make_comparison(
    name="ttft_p50", verdict=MetricVerdict.EQUIVALENT, change=0.0, within=0.01, scale=Scale.RELATIVE
):
    interval = None if within is None else Interval(change - within, change + within, 0.999)
    return Comparison(
        BY_NAME[name], verdict, 12, scale, a=1.0, b=1.0 + change, change=change, interval=interval
    )


def make_made(planted, *comparisons, number=0, **fields):
    return Made(Case(number, planted, QUICK), tuple(comparisons), **{"pairs": 12, **fields})


def make_truths(**changes):
    """Every metric is 1 in A; it is unchanged in B by default."""
    return {
        planted: {name: Truth(1.0, 1.0 + changes.get(planted, {}).get(name, 0.0)) for name in BY_NAME}
        for planted in COSTS
    }


# --- the truth --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("planted", "ttft", "tpot"), [(PREFILL, 1.1, 1.0), (DECODE, 1.0, 1.1)])
def test_requests_that_meet_no_other_are_slower_by_what_was_planted(planted, ttft, tpot):
    base, slower = (virtual_block(COSTS[kind], ALONE, 3, None).timelines for kind in (SAME, planted))
    for before, after in zip(base, slower, strict=True):
        assert latency.ttft_s(after) == pytest.approx(ttft * latency.ttft_s(before))
        assert latency.tpot_s(after) == pytest.approx(tpot * latency.tpot_s(before))


def test_a_virtual_block_has_the_plans_times_and_lengths():
    run = virtual_block(COST, FULL.plan, 5, None)
    planned = make_plan(FULL.plan, Random(5)).requests  # noqa: S311 - no secret
    assert [timeline.started_unix_s for timeline in run.timelines] == [request.at_s for request in planned]
    assert [timeline.output_tokens for timeline in run.timelines] == [
        request.max_tokens for request in planned
    ]


def test_the_truth_is_the_statistic_that_comparisons_state():
    arms = [virtual_readings(kind, FULL.plan, range(12)) for kind in (SAME, PREFILL)]
    pairs = [Pair(a, b) for a, b in zip(*arms, strict=True)]
    for found in compare(pairs, METRICS, np.random.default_rng(1)):
        assert [found.a, found.b] == pytest.approx([pooled(blocks, found.metric) for blocks in arms])


def test_each_phase_moves_its_own_metric_and_the_slo_is_met_by_some():
    with ThreadPoolExecutor(1) as pool:
        truths = find_truths(pool, Setup(FULL.plan, most_pairs=4, truth_blocks=150))
    assert all(truth.change(Scale.RELATIVE) == 0 for truth in truths[SAME].values())
    assert truths[PREFILL]["ttft_p50"].change(Scale.RELATIVE) > 0.08
    assert abs(truths[PREFILL]["itl_p50"].change(Scale.RELATIVE)) < 0.01
    assert truths[DECODE]["tpot_p50"].change(Scale.RELATIVE) > 0.08
    assert 0.4 < truths[SAME]["goodput"].a < 0.9


# --- counting ---------------------------------------------------------------------------------------------


def test_only_better_and_worse_are_false_where_nothing_differs():
    alike = [make_made(SAME, make_comparison(verdict=verdict)) for verdict in MetricVerdict]
    result = tally(alike, make_truths())
    assert (result["aa_runs"], result["aa_false"], result["planted_runs"]) == (len(MetricVerdict), 2, 0)


def test_a_comparison_with_two_false_verdicts_is_false_once():
    twice = make_made(SAME, *(make_comparison(name, MetricVerdict.WORSE) for name in ("ttft_p50", "e2e_p50")))
    assert tally([twice], make_truths())["aa_false"] == 1


def test_an_interval_covers_the_true_change_in_its_own_scale():
    truths = make_truths(prefill={"ttft_p50": 0.1})
    truths[PREFILL]["goodput"] = Truth(0.5, 0.4)
    made = [
        make_made(PREFILL, make_comparison(change=0.105)),
        make_made(PREFILL, make_comparison(change=0.12)),
        make_made(PREFILL, make_comparison("goodput", change=-0.2)),
        make_made(PREFILL, make_comparison("goodput", change=-0.2, scale=Scale.POINTS)),
        make_made(PREFILL, make_comparison("goodput", change=-0.1, scale=Scale.POINTS)),
    ]
    result = tally(made, truths)
    assert result["covered"] == 0.6
    assert result["covered_by_metric"]["ttft_p50"] == 0.5
    assert result["covered_by_metric"]["e2e_p50"] is None


def test_a_metric_without_an_interval_covers_nothing():
    unknown = make_comparison(verdict=MetricVerdict.UNKNOWN, within=None)
    assert tally([make_made(DECODE, unknown)], make_truths())["covered"] == 0.0


def test_a_phase_is_called_by_its_own_metric_alone():
    own, other = (
        make_comparison("tpot_p50", MetricVerdict.WORSE),
        make_comparison("e2e_p50", MetricVerdict.WORSE),
    )
    result = tally([make_made(DECODE, own, other), make_made(DECODE, other)], make_truths())
    assert result["called"] == {PREFILL: None, DECODE: 0.5}


def test_what_was_given_up_is_counted_apart():
    made = [make_made(SAME, given_up="3 of 3 pairs were void", pairs=0), make_made(SAME, make_comparison())]
    result = tally(made, make_truths())
    assert (result["aa_runs"], result["given_up"], result["pairs"]["least"]) == (1, 1, 12)
