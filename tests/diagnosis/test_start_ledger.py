"""Every second of a start is attributed, and no waiting request is left out."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.core.latency import ttft_breakdown
from phasewise.core.slo import Slo
from phasewise.core.statistics import quantile, wait_quantile
from phasewise.core.steps import StepLog
from phasewise.core.timeline import Outcome, Part
from phasewise.costs.fit.step import prefilling
from phasewise.diagnosis.analysis.attribution import readings_of
from phasewise.diagnosis.analysis.ttft import start_summary
from tests.benchmark.calibrate.builders import make_fit
from tests.builders import make_attempt, make_span, make_timeline
from tests.diagnosis.virtual_traffic import COST, WAY_BACK_S, ask, play
from tests.strategies import timelines as any_timelines

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
FIT = make_fit(COST)


@given(any_timelines)
def test_parts_and_unexplained_are_the_ttft_of_any_timeline(timeline):
    found = ttft_breakdown(timeline)
    if found is not None:
        assert sum(entry.seconds for entry in found.parts) + found.unexplained_s == pytest.approx(
            found.ttft_s
        )
        assert all(entry.seconds >= 0 for entry in found.parts)


@settings(max_examples=25)
@given(
    wanted=st.lists(
        st.tuples(st.floats(0, 3), st.integers(1, 3000), st.integers(1, 20)), min_size=1, max_size=12
    ),
    known=st.booleans(),
    max_num_seqs=st.integers(1, 8),
)
def test_starts_leave_nothing_unexplained_but_the_way_back(wanted, known, max_num_seqs):
    """What the engine does is all on record: the unexplained part is what we added ourselves."""
    fit = FIT if known else None
    asked = [ask(index, *each) for index, each in enumerate(wanted)]
    traffic = play(asked, fit=fit, max_num_seqs=max_num_seqs)
    for timeline in traffic.timelines:
        found = ttft_breakdown(timeline)
        assert found.unexplained_s == pytest.approx(WAY_BACK_S, abs=1e-5)
        assert all(entry.seconds >= 0 for entry in found.parts)
    start = start_summary(traffic.timelines, SLO, readings_of(traffic.logs, fit))
    parts_s = sum(entry.seconds for entry in start.parts)
    assert parts_s + start.unexplained_s == pytest.approx(start.parts_mean_s)


def shared_prefill(fit, *prompts):
    """Prompts that come at once while a stream runs, and are computed in its next step."""
    asked = [ask(0, 0.0, output_tokens=60)]
    asked += [
        ask(index, 1.0, prompt_tokens=tokens, output_tokens=1) for index, tokens in enumerate(prompts, 1)
    ]
    traffic = play(asked, fit=fit)
    return {it.request_id: ttft_breakdown(it) for it in traffic.timelines}


def test_with_costs_a_prompts_own_share_is_what_it_takes_and_its_part_of_the_floor():
    """1,000 tokens beside one stream: nearly all of the step is the prompt's own."""
    found = shared_prefill(FIT, 1000)["r1"]
    alone_s = COST(prefilling(1000))
    assert found.seconds(Part.PREFILL) == pytest.approx(alone_s, rel=0.01)
    assert found.seconds(Part.PREFILL_OTHERS) < 0.01


def test_a_short_prompt_beside_a_long_one_pays_for_its_own_tokens():
    """50 tokens in a step with 1,500 of another: a thirtieth is its own, by costs as by tokens."""
    by_cost = shared_prefill(FIT, 50, 1500)["r1"]
    by_tokens = shared_prefill(None, 50, 1500)["r1"]
    whole_s = by_cost.seconds(Part.PREFILL) + by_cost.seconds(Part.PREFILL_OTHERS)
    assert by_cost.seconds(Part.PREFILL) == pytest.approx(whole_s / 31, rel=0.3)
    assert by_tokens.seconds(Part.PREFILL) == pytest.approx(whole_s / 31, rel=0.1)


def test_shares_of_prompts_in_one_step_do_not_exceed_it():
    found = shared_prefill(FIT, 300, 700, 900)
    own = [found[name].seconds(Part.PREFILL) for name in ("r1", "r2", "r3")]
    whole_s = own[0] + found["r1"].seconds(Part.PREFILL_OTHERS)
    assert own == sorted(own)
    assert sum(own) == pytest.approx(whole_s, rel=0.05)


def test_a_part_inside_a_shorter_one_is_never_negative():
    """The transfer took longer by one clock than the queue that contains it by another."""
    queue = make_span(Part.ENGINE_QUEUE, 0.1)
    inner = make_span(Part.KV_TRANSFER, 0.3, within=Part.ENGINE_QUEUE)
    found = ttft_breakdown(make_timeline((0.5,), engine_spans=[queue, inner]))
    assert found.seconds(Part.ENGINE_QUEUE) == 0.0
    assert found.unexplained_s == pytest.approx(0.2)


def answered(ttft_s, name="a", worker="w0", queue_s=0.0):
    spans = [make_span(Part.ENGINE_QUEUE, queue_s), make_span(Part.PREFILL, ttft_s - queue_s)]
    attempt = make_attempt(spans, worker=worker)
    return make_timeline((ttft_s, ttft_s + 0.1), request_id=name, attempts=(attempt,))


def silent(waited_s, outcome=Outcome.CANCELLED, name="s", worker="w0"):
    attempt = make_attempt(outcome=outcome, worker=worker)
    return make_timeline((), request_id=name, outcome=outcome, ended_s=waited_s, attempts=(attempt,))


def test_cancelling_the_slow_half_does_not_make_the_p90_look_good():
    quick = [answered(0.2 + 0.01 * index) for index in range(10)]
    slow = [answered(20.0) for _ in range(10)]
    given_up = [silent(5.0) for _ in range(10)]
    honest = start_summary(quick + slow, SLO, {})
    cut = start_summary(quick + given_up, SLO, {})
    assert honest.ttft_p90_s == 20.0
    assert cut.ttft_p90_s == 5.0
    assert cut.ttft_p90_at_least
    assert cut.late == honest.late == 10


def test_one_who_left_at_once_hardly_moves_the_quantiles():
    values = [0.1 * index for index in range(1, 100)]
    found = wait_quantile(values, [0.01], 0.9)
    assert not found.at_least
    assert found.seconds == pytest.approx(quantile(values, 0.9), rel=0.02)


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=30),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=30),
    st.sampled_from([0.5, 0.9]),
)
def test_those_who_left_never_make_a_quantile_better(values, waits, share):
    """If each had been answered at the very moment it left, the quantile would be no higher."""
    found = wait_quantile(values, waits, share)
    at_best = sorted(values + waits)[ceil(share * (len(values) + len(waits)) - 1e-9) - 1]
    assert found.seconds >= at_best


def test_open_requests_are_late_once_they_are_older_than_the_objective_and_never_on_time():
    young = silent(0.4, Outcome.UNFINISHED)
    old = silent(1.5, Outcome.UNFINISHED)
    start = start_summary([answered(0.3), young, old], SLO, {})
    assert start.unfinished == 2
    assert start.late == 1
    assert start.requests == 2


def test_an_open_request_that_streams_is_an_answered_one():
    streaming = replace(answered(0.3), outcome=Outcome.UNFINISHED)
    start = start_summary([streaming], SLO, {})
    assert (start.requests, start.unfinished, start.unanswered) == (1, 0, 0)


def test_when_nobody_was_answered_the_whole_wait_is_unexplained():
    start = start_summary([silent(4.0), silent(6.0, Outcome.REJECTED)], SLO, {})
    assert start.late == 2
    assert start.parts_mean_s == start.unexplained_s == 5.0
    assert start.ttft_p50_at_least
    assert start.timed == 0


def test_engines_are_distinguished_and_silent_requests_count_with_their_wait():
    start = start_summary(
        [
            answered(0.2, worker="w0"),
            answered(3.0, worker="w1", queue_s=2.5),
            silent(9.0, worker="w1"),
        ],
        SLO,
        {},
    )
    first, second = start.by_engine
    assert (first.engine, first.requests, first.ttft_mean_s) == ("w0", 1, pytest.approx(0.2))
    assert (second.engine, second.requests, second.ttft_mean_s) == ("w1", 2, pytest.approx(6.0))
    assert second.queue_mean_s == pytest.approx(1.25)


def test_a_cold_first_step_is_counted_for_all_who_waited_for_it():
    """The first prompt's step takes 3 s more; one comes 1 s into it, others long after."""
    asked = [ask(index, at_s, output_tokens=2) for index, at_s in enumerate((0.0, 1.0, 5.0, 6.0, 7.0, 8.0))]
    traffic = play(asked, slowed={0: 3.0})
    start = start_summary(traffic.timelines, SLO, readings_of(traffic.logs))
    # The two late requests waited 3 s and 2 s in it; the first lost more, so it counts for more.
    assert start.cold_s == pytest.approx((3.0 * 3.0 + 2.0 * 2.0) / (3.0 + 2.0), rel=0.05)
    assert start.cold_from_its_start
    later = [replace(timed.step, seq=timed.step.seq + 5_000) for timed in traffic.log.steps]
    assert not start_summary(
        traffic.timelines, SLO, readings_of({"w0": (StepLog(later),)})
    ).cold_from_its_start


def test_with_costs_a_cold_step_without_later_like_is_seen_at_a_records_beginning():
    """Four prompts come at once and are computed in a first step of 5 s; later ones come one by one."""
    asked = [ask(index, 0.0, output_tokens=2) for index in range(4)]
    asked += [ask(index, 6.0 + index, output_tokens=20) for index in range(4, 8)]
    traffic = play(asked, slowed={0: 5.0})
    assert start_summary(traffic.timelines, SLO, readings_of(traffic.logs)).cold_s == 0.0
    assert start_summary(traffic.timelines, SLO, readings_of(traffic.logs, FIT)).cold_s * 4 == pytest.approx(
        20.0, rel=0.05
    )


def test_a_warm_engine_shows_no_cold_steps_and_an_unrecorded_one_nothing():
    traffic = play([ask(index, 1.0 * index, output_tokens=2) for index in range(6)])
    assert start_summary(traffic.timelines, SLO, readings_of(traffic.logs)).cold_s == 0.0
    assert start_summary(traffic.timelines, SLO, {}).cold_s is None


def test_nobody_waits_for_the_first_token_of_a_plain_reply():
    """Whole replies take long; an open or broken one says nothing about its first token."""
    plain = [
        make_timeline((), request_id=outcome.value, outcome=outcome, ended_s=4.5, streamed=False)
        for outcome in (Outcome.SUCCEEDED, Outcome.UNFINISHED, Outcome.TIMED_OUT)
    ]
    assert start_summary(plain, SLO, {}) is None
    start = start_summary([*plain, make_timeline((0.3, 0.4))], SLO, {})
    assert (start.requests, start.late, start.unfinished) == (1, 0, 0)
