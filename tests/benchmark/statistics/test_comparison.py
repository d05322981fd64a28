from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.benchmark.statistics.comparison import (
    Comparison,
    Control,
    Kind,
    Metric,
    MetricVerdict,
    Pair,
    Quotient,
    Scale,
    compare,
    pairs_needed,
)

TTFT = Metric("ttft_p50", "TTFT p50", Kind.QUANTILE, higher_is_better=False, share=0.5)
TTFT_P90 = Metric("ttft_p90", "TTFT p90", Kind.QUANTILE, higher_is_better=False, share=0.9, decides=False)
TPOT = Metric("tpot_p50", "TPOT p50", Kind.QUANTILE, higher_is_better=False, share=0.5)
E2E = Metric("e2e_p50", "E2E p50", Kind.QUANTILE, higher_is_better=False, share=0.5)
THROUGHPUT = Metric("tokens_per_s", "throughput", Kind.RATE, higher_is_better=True)
GOODPUT = Metric("goodput", "goodput", Kind.SHARE, higher_is_better=True)
NEVER_S = 3600.0
ALL = (TTFT, TTFT_P90, TPOT, E2E, THROUGHPUT, GOODPUT)


def make_pairs(
    rng: np.random.Generator, count: int, *, factor: float = 1.0, requests: int = 30, modes: bool = False
) -> list[Pair]:
    """Pairs with the same requests in both blocks, a drift that both share and one that each has alone.

    B takes `factor` times as long. With modes, requests either find their prefix cached or do not.
    """

    def block(asked: np.ndarray, tokens: np.ndarray, drift: float, slower: float):
        alone = drift + 0.03 * rng.standard_normal()
        ttft_s = 0.2 * slower * np.exp(asked + alone + 0.15 * rng.standard_normal(requests))
        tpot_s = 0.02 * slower * np.exp(alone + 0.1 * rng.standard_normal(requests))
        e2e_s = ttft_s + tpot_s * tokens
        return {
            "ttft_p50": ttft_s,
            "ttft_p90": ttft_s,
            "tpot_p50": tpot_s,
            "e2e_p50": e2e_s,
            "tokens_per_s": Quotient(tokens.sum(), e2e_s.sum()),
            "goodput": Quotient(float((ttft_s < 0.3).sum()), requests),
        }

    pairs = []
    for _ in range(count):
        hits = rng.random(requests) < 0.45
        asked = np.where(hits, 0.0, 1.2) if modes else 0.4 * rng.standard_normal(requests)
        tokens = np.round(np.exp(4 + 0.4 * rng.standard_normal(requests)))
        drift = 0.1 * rng.standard_normal()
        pairs.append(Pair(block(asked, tokens, drift, 1.0), block(asked, tokens, drift, factor)))
    return pairs


def one(pairs: list[Pair], metric: Metric, **options) -> Comparison:
    return compare(pairs, [metric], np.random.default_rng(1), **options)[0]


def quotients(metric: Metric, rows: list[tuple[float, float, float, float]]) -> list[Pair]:
    return [Pair({metric.name: Quotient(a, b)}, {metric.name: Quotient(c, d)}) for a, b, c, d in rows]


@pytest.mark.parametrize("modes", [False, True])
@pytest.mark.parametrize("count", [4, 8, 16])
def test_equal_arms_are_called_different_no_more_often_than_allowed(count, modes):
    rng = np.random.default_rng(41)
    runs = 80
    false = sum(
        any(
            each.verdict in (MetricVerdict.BETTER, MetricVerdict.WORSE)
            for each in compare(make_pairs(rng, count, modes=modes), ALL, rng, resamples=300)
        )
        for _ in range(runs)
    )
    # 5% of 80 is 4; more than 9 would come about once in 100 choices of the seed.
    assert false <= 9


@pytest.mark.parametrize("count", [4, 8, 16])
def test_intervals_hold_a_true_change_of_ten_percent(count):
    rng = np.random.default_rng(42)
    held, runs = 0, 80
    for _ in range(runs):
        found = compare(make_pairs(rng, count, factor=1.1), ALL, rng, resamples=300)
        truths = [0.1, 0.1, 0.1, 0.1, 1 / 1.1 - 1]
        held += all(
            each.interval.low <= true <= each.interval.high
            for each, true in zip(found[:5], truths, strict=True)
        )
    assert held >= 0.89 * runs


def test_a_change_of_ten_percent_is_found_with_eight_pairs_and_its_direction_named():
    rng = np.random.default_rng(43)
    slower = [compare(make_pairs(rng, 8, factor=1.1), ALL, rng, resamples=300) for _ in range(30)]
    assert sum(found[2].verdict is MetricVerdict.WORSE for found in slower) >= 20
    assert sum(found[4].verdict is MetricVerdict.WORSE for found in slower) >= 20
    faster = compare(make_pairs(rng, 12, factor=0.7), ALL, rng)
    assert {each.verdict for each in faster} == {MetricVerdict.BETTER}


def test_equal_arms_become_equivalent_with_enough_pairs():
    rng = np.random.default_rng(44)
    found = compare(make_pairs(rng, 60), (TPOT, THROUGHPUT), rng)
    assert [each.verdict for each in found] == [MetricVerdict.EQUIVALENT] * 2


def test_a_rate_that_rose_in_every_pair_is_better():
    rows = [(100.0, 10.0, 104.0, 10.0), (100.0, 10.0, 110.0, 10.0), (100.0, 10.0, 107.0, 10.0)] * 2
    found = one(quotients(THROUGHPUT, rows), THROUGHPUT)
    assert found.a == 10.0
    assert found.change == pytest.approx(0.07)
    assert found.verdict is MetricVerdict.BETTER


def test_more_metrics_make_every_interval_wider():
    pairs = make_pairs(np.random.default_rng(45), 8)
    alone = one(pairs, TTFT)
    among = compare(pairs, ALL, np.random.default_rng(1))[0]
    assert alone.interval is not None
    assert among.interval is not None
    assert among.interval.confidence == pytest.approx(1 - 0.05 / 6)
    assert among.interval.high > alone.interval.high
    assert among.interval.low < alone.interval.low


def test_a_known_difference_within_the_margin_is_equivalent():
    pairs = quotients(THROUGHPUT, [(100.0, 10.0, 102.0, 10.0)] * 6)
    assert one(pairs, THROUGHPUT, margin=0.05).verdict is MetricVerdict.EQUIVALENT
    assert one(pairs, THROUGHPUT, margin=0.01).verdict is MetricVerdict.BETTER


def test_what_is_inconclusive_says_how_many_more_pairs_would_likely_decide():
    rng = np.random.default_rng(46)
    found = one(make_pairs(rng, 5, factor=1.08), TTFT)
    assert found.verdict is MetricVerdict.INCONCLUSIVE
    assert found.more_pairs is not None
    assert 1 <= found.more_pairs <= 200
    decided = [
        one(make_pairs(rng, 5 + found.more_pairs, factor=1 + found.change), TTFT).verdict for _ in range(20)
    ]
    assert sum(verdict is not MetricVerdict.INCONCLUSIVE for verdict in decided) >= 10


def test_no_change_under_a_wide_spread_has_no_number_of_pairs_that_would_do():
    wild = [(100.0, 10.0, 100.0 * factor, 10.0) for factor in (0.5, 1.5, 0.5, 1.5)]
    found = one(quotients(THROUGHPUT, wild), THROUGHPUT, margin=0.001)
    assert (found.verdict, found.more_pairs) == (MetricVerdict.INCONCLUSIVE, None)


def test_shares_in_the_middle_are_compared_by_their_ratio():
    found = one(make_pairs(np.random.default_rng(47), 8), GOODPUT)
    assert found.scale is Scale.RELATIVE


@pytest.mark.parametrize(("a", "b"), [(30.0, 30.0), (0.0, 0.0), (30.0, 0.0)])
def test_shares_of_all_or_none_are_compared_in_points(a, b):
    found = one(quotients(GOODPUT, [(a, 30.0, b, 30.0)] * 12), GOODPUT)
    assert found.scale is Scale.POINTS
    assert found.change == pytest.approx((b - a) / 30)
    assert found.verdict is (MetricVerdict.EQUIVALENT if a == b else MetricVerdict.WORSE)


def test_a_few_perfect_requests_do_not_prove_two_arms_equivalent():
    found = one(quotients(GOODPUT, [(3.0, 3.0, 3.0, 3.0)] * 4), GOODPUT)
    assert found.verdict is MetricVerdict.INCONCLUSIVE
    assert found.interval is not None
    assert found.interval.low < -0.05 < 0.05 < found.interval.high


def test_identical_pairs_are_equivalent_without_any_spread():
    pairs = [Pair({"ttft_p50": [1.0, 2.0, 3.0]}, {"ttft_p50": [1.0, 2.0, 3.0]})] * 4
    found = one(pairs, TTFT)
    assert (found.verdict, found.change, found.standard_error) == (MetricVerdict.EQUIVALENT, 0.0, 0.0)


@pytest.mark.parametrize(
    ("pairs", "metric", "why"),
    [
        ([], TTFT, "0 of 0 pairs"),
        ([Pair({"ttft_p50": [1.0]}, {"ttft_p50": [1.0]})] * 3, TTFT, "3 of 3 pairs"),
        ([Pair({"ttft_p50": [1.0]}, {"ttft_p50": []})] * 9, TTFT, "0 of 9 pairs"),
        ([Pair({"tpot_p50": [1.0]}, {})] * 9, TTFT, "0 of 9 pairs"),
        ([Pair({"ttft_p50": [0.0]}, {"ttft_p50": [1.0]})] * 4, TTFT, "so there is no ratio"),
        ([Pair({"ttft_p90": [1.0]}, {"ttft_p90": [1.0]})] * 4, TTFT_P90, "4 readings in an arm"),
        (quotients(THROUGHPUT, [(0.0, 1.0, 1.0, 1.0)] * 4), THROUGHPUT, "so there is no ratio"),
        (quotients(THROUGHPUT, [(1.0, 0.0, 1.0, 1.0)] * 4), THROUGHPUT, "0 of 4 pairs"),
        (quotients(GOODPUT, [(0.0, 0.0, 0.0, 0.0)] * 4), GOODPUT, "0 of 4 pairs"),
        (quotients(GOODPUT, [(0.0, 30.0, 0.0, 0.0)] * 9), GOODPUT, "0 of 9 pairs"),
        ([Pair({"ttft_p50": [1.0]}, {"ttft_p50": [float("inf")]})] * 4, TTFT, "not a finite number"),
    ],
)
def test_what_cannot_be_computed_is_unknown_and_says_why(pairs, metric, why):
    found = one(pairs, metric)
    assert found.verdict is MetricVerdict.UNKNOWN
    assert why in found.reason


def test_readings_of_the_wrong_kind_are_rejected():
    with pytest.raises(TypeError, match="ttft_p50 is a quantile"):
        one([Pair({"ttft_p50": Quotient(1, 1)}, {"ttft_p50": Quotient(1, 1)})] * 4, TTFT)
    with pytest.raises(TypeError, match="goodput is a share"):
        one([Pair({"goodput": [1.0]}, {"goodput": [1.0]})] * 4, GOODPUT)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(4, 10), st.floats(0.7, 1.4))
def test_swapping_the_arms_turns_the_verdict_and_the_unit_changes_nothing(seed, count, factor):
    pairs = make_pairs(np.random.default_rng(seed), count, factor=factor, requests=20)
    found = one(pairs, TTFT, resamples=200)
    swapped = one([Pair(pair.b, pair.a) for pair in pairs], TTFT, resamples=200)
    turned = {MetricVerdict.BETTER: MetricVerdict.WORSE, MetricVerdict.WORSE: MetricVerdict.BETTER}
    if MetricVerdict.EQUIVALENT not in (found.verdict, swapped.verdict):
        assert swapped.verdict is turned.get(found.verdict, found.verdict)
    assert swapped.standard_error == pytest.approx(found.standard_error)
    assert np.log1p(swapped.change) == pytest.approx(-np.log1p(found.change), abs=1e-9)
    in_ms = [Pair({"ttft_p50": 1000 * p.a["ttft_p50"]}, {"ttft_p50": 1000 * p.b["ttft_p50"]}) for p in pairs]
    assert one(in_ms, TTFT, resamples=200).change == pytest.approx(found.change)


def test_a_control_with_a_slower_second_slot_is_found_out():
    rng = np.random.default_rng(48)
    assert Control.of(compare(make_pairs(rng, 8), ALL, rng)).alike
    skewed = Control.of(compare(make_pairs(rng, 12, factor=1.3), ALL, rng))
    assert not skewed.alike
    assert "tpot_p50" in skewed.differing


def test_a_control_that_compared_nothing_is_not_alike():
    unknown = Comparison(TTFT, MetricVerdict.UNKNOWN, 0, reason="no readings")
    shown_only = Comparison(TTFT_P90, MetricVerdict.INCONCLUSIVE, 8)
    for comparisons in ((), (unknown,), (unknown, shown_only)):
        nothing = Control(comparisons, ())
        assert not nothing.alike
    one_known = Control((unknown, Comparison(TPOT, MetricVerdict.INCONCLUSIVE, 8)), ())
    assert one_known.alike
    differs = Control((unknown, replace(shown_only, verdict=MetricVerdict.WORSE)), ("ttft_p90",))
    assert not differs.alike


def with_failures(
    rng: np.random.Generator, a: float, b: float, *, count: int = 8, factor: float = 1.0
) -> list[Pair]:
    """Pairs in which these shares of requests were never answered."""

    def fail(block: dict, share: float) -> dict:
        failed = rng.random(len(block["ttft_p90"])) < share
        return {"ttft_p90": np.where(failed, NEVER_S, block["ttft_p90"])}

    return [
        Pair(fail(pair.a, a), fail(pair.b, b)) for pair in make_pairs(rng, count, factor=factor, requests=40)
    ]


def test_an_arm_that_fails_often_is_never_better_however_fast_the_rest_is():
    rng = np.random.default_rng(71)
    verdicts = [
        one(with_failures(rng, 0.0, share, factor=0.5), TTFT_P90, resamples=300).verdict
        for share in (0.12, 0.2, 0.3, 1.0)
        for _ in range(15)
    ]
    assert MetricVerdict.BETTER not in verdicts
    assert set(verdicts[15:]) == {MetricVerdict.WORSE}


def test_failures_of_one_block_leave_the_verdict_open():
    pairs = make_pairs(np.random.default_rng(72), 8, factor=0.7)
    pairs[3] = Pair(pairs[3].a, {"ttft_p90": [NEVER_S] * 30})
    found = one(pairs, TTFT_P90)
    assert found.verdict is MetricVerdict.INCONCLUSIVE
    assert all(np.isfinite([found.change, found.interval.low, found.interval.high, found.standard_error]))


@pytest.mark.parametrize("share", [0.05, 0.1, 0.15])
def test_arms_that_fail_alike_are_called_different_no_more_often_than_allowed(share):
    rng = np.random.default_rng(73)
    found = [one(with_failures(rng, share, share), TTFT_P90, resamples=300).verdict for _ in range(60)]
    # 5% of 60 is 3; more than 8 would come about once in 200 choices of the seed.
    assert sum(verdict in (MetricVerdict.BETTER, MetricVerdict.WORSE) for verdict in found) <= 8


def test_a_quantile_that_neither_arm_reached_is_unknown():
    pairs = with_failures(np.random.default_rng(74), 0.3, 0.3)
    censored = replace(TTFT_P90, censored_at=NEVER_S)
    assert one(pairs, censored).reason.startswith("too many requests of both arms have no answer")
    only_b = with_failures(np.random.default_rng(75), 0.0, 0.3)
    assert one(only_b, censored).verdict is MetricVerdict.WORSE


@pytest.mark.parametrize("ratio", [1e-300, 1e300])
def test_readings_orders_of_magnitude_apart_do_not_overflow(ratio):
    rows = [(1e5, 1.0, 1e5 * ratio * (1 + 0.1 * at), 1.0) for at in range(5)]
    found = one(quotients(THROUGHPUT, rows), THROUGHPUT)
    assert found.verdict is (MetricVerdict.BETTER if ratio > 1 else MetricVerdict.WORSE)
    assert all(np.isfinite([found.change, found.interval.low, found.interval.high]))


def test_the_pairs_planned_for_are_enough_for_equal_arms():
    rng = np.random.default_rng(49)
    metrics = (TPOT, THROUGHPUT)
    equivalent = 0
    for _ in range(25):
        planned = pairs_needed(compare(make_pairs(rng, 6), metrics, rng, resamples=300))
        assert planned is not None
        found = compare(make_pairs(rng, planned), (TPOT,), rng, family_alpha=0.025, resamples=300)
        equivalent += found[0].verdict is MetricVerdict.EQUIVALENT
    assert equivalent >= 18


def test_the_worst_deciding_metric_sets_the_number_of_pairs():
    quiet = Comparison(TPOT, MetricVerdict.EQUIVALENT, 8, standard_error=0.002)
    noisy = Comparison(TTFT, MetricVerdict.INCONCLUSIVE, 8, standard_error=0.03)
    shown_only = replace(noisy, metric=TTFT_P90, standard_error=5.0)
    assert pairs_needed([quiet]) == 4
    alone = pairs_needed([quiet, noisy])
    assert alone is not None
    assert alone > 8
    assert pairs_needed([quiet, noisy, shown_only]) >= alone
    assert pairs_needed([quiet, noisy], margin=0.1) < alone
    assert pairs_needed([quiet, noisy], power=0.95) > alone


def test_a_control_that_measured_nothing_plans_nothing():
    assert pairs_needed([]) is None
    assert pairs_needed([Comparison(TTFT, MetricVerdict.UNKNOWN, 0, reason="no readings")]) is None
    assert pairs_needed([Comparison(TTFT, MetricVerdict.INCONCLUSIVE, 4, standard_error=50.0)]) is None


def test_the_same_seed_gives_the_same_comparison():
    pairs = make_pairs(np.random.default_rng(50), 6)
    assert compare(pairs, ALL, np.random.default_rng(2)) == compare(pairs, ALL, np.random.default_rng(2))
