"""Of several fits the first that has seen steps of a kind speaks of them."""

from dataclasses import replace

import pytest

from phasewise.costs.fit.observation import regime_of
from phasewise.costs.fit.step import StepKind, decoding, prefilling
from phasewise.diagnosis.predict.costs import KnownCosts
from tests.diagnosis.predict.traffic_builders import COST, ERRORS, make_fit

SLOW = replace(COST, floor_s=1.0)
DECODE, PREFILL = decoding([100]), prefilling(500)


def of(work):
    return frozenset({regime_of(work)})


def test_the_first_fit_that_has_been_near_speaks():
    known = KnownCosts([make_fit(seen=of(DECODE)), make_fit(SLOW)])
    assert known.of(DECODE).cost == COST
    assert known.of(PREFILL).cost == SLOW
    assert known.of(PREFILL).seen


def test_steps_that_no_fit_has_seen_are_said_to_be_unseen():
    known = KnownCosts([make_fit(seen=of(DECODE))])
    assert known.of(DECODE).seen
    assert not known.of(PREFILL).seen


def test_a_fit_of_few_steps_borrows_the_errors_of_another():
    few = replace(make_fit(SLOW, seen=of(PREFILL)), errors={StepKind.PREFILL: (0.0,)})
    known = KnownCosts([make_fit(seen=of(DECODE)), few]).of(PREFILL)
    assert (known.cost, known.errors, known.seen) == (SLOW, ERRORS, True)


def test_parts_that_were_seen_apart_are_believed_less():
    late_chunk = prefilling(64, context_tokens=900)
    known = KnownCosts([make_fit(seen=of(prefilling(64)) | of(prefilling(500)))]).of(late_chunk)
    assert known.seen
    assert known.errors == tuple(2 * error for error in ERRORS)
    short = KnownCosts([make_fit(seen=of(prefilling(64)))]).of(late_chunk)
    assert not short.seen
    streams = KnownCosts([make_fit(seen=of(decoding([1000] * 8)) | of(prefilling(500)))]).of(late_chunk)
    assert not streams.seen


def test_nothing_is_known_of_steps_whose_errors_nobody_can_report():
    assert not KnownCosts([replace(make_fit(), errors={})]).of(DECODE).seen


def test_costs_without_a_fit_are_no_costs():
    with pytest.raises(ValueError, match="one fit"):
        KnownCosts([])
