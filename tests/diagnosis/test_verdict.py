"""Planted evidence leads to the planted cause, and healthy evidence to none."""

from dataclasses import replace

import orjson
import pytest

from phasewise.core.prefixes import prefix_marks
from phasewise.core.slo import Slo
from phasewise.core.steps import StepLog
from phasewise.core.timeline import Outcome, Part, Source
from phasewise.diagnosis.advice.choose import advise
from phasewise.diagnosis.analysis.attribution import readings_of
from phasewise.diagnosis.analysis.engine_load import EngineSurroundings, SeenBy
from phasewise.diagnosis.analysis.prefix_use import prefix_use
from phasewise.diagnosis.analysis.standstill import Standstill
from phasewise.diagnosis.analysis.streams import stream_summary
from phasewise.diagnosis.analysis.token_ledger import TokenLedger
from phasewise.diagnosis.analysis.ttft import start_summary
from phasewise.diagnosis.analysis.window_summary import (
    Trust,
    WindowSummary,
    outcome_counts,
    rejections,
    workload_shape,
)
from phasewise.diagnosis.analysis.workload_profile import distribution, workload_profile
from phasewise.diagnosis.finding import Cause, Confidence, Phase
from phasewise.diagnosis.verdict import (
    MIN_FINISHED_TO_BE_HEALTHY,
    VERDICT_VERSION,
    Ruling,
    judge,
    verdict_record,
)
from phasewise.report.diagnosis import words
from tests.builders import EPOCH_S, make_attempt, make_span, make_step, make_timeline
from tests.diagnosis.summaries import make_engine, make_engine_load

SLO = Slo(ttft_s=1.0, tpot_s=0.1)


def stream(first_s, gap_s=0.05, tokens=30):
    return tuple(first_s + gap_s * index for index in range(tokens))


def summary_of(timelines, logs=None):
    logs = logs or {}
    return WindowSummary(
        window_s=20.0,
        seen_by=SeenBy.GATEWAY,
        start=start_summary(timelines, SLO, {}),
        stream=stream_summary(timelines, SLO, readings_of(logs)),
        workload=workload_shape(workload_profile(timelines, 20.0, prefix_use(timelines)), ()),
        outcomes=outcome_counts(timelines),
        rejections=rejections(timelines),
    )


def requests(count=10, *, queue_s=0.0, prefill_s=0.1, first_s=None, **fields):
    engine = [make_span(Part.ENGINE_QUEUE, queue_s), make_span(Part.PREFILL, prefill_s)]
    first_s = queue_s + prefill_s + 0.01 if first_s is None else first_s
    return [
        make_timeline(
            stream(first_s, fields.get("gap_s", 0.05)),
            request_id=f"r{index}",
            started_unix_s=EPOCH_S + index,
            engine_spans=engine,
            **{key: value for key, value in fields.items() if key != "gap_s"},
        )
        for index in range(count)
    ]


def test_requests_within_both_objectives_are_healthy():
    verdict = judge(summary_of(requests()), SLO)
    assert verdict.ruling is Ruling.HEALTHY
    assert verdict.findings == ()


def test_a_long_queue_is_overload():
    verdict = judge(summary_of(requests(queue_s=4.0, prefill_s=0.2)), SLO)
    assert verdict.ruling is Ruling.SLOW_TO_START
    assert verdict.top.cause is Cause.OVERLOAD


def test_a_long_prefill_of_own_tokens_is_long_prompts():
    verdict = judge(summary_of(requests(prefill_s=3.0, prompt_tokens=3000)), SLO)
    assert verdict.top.cause is Cause.LONG_PROMPTS


def test_a_long_prefill_of_shared_tokens_is_missing_reuse():
    marks = prefix_marks(b"s" * 8400, b"key")
    verdict = judge(
        summary_of(requests(prefill_s=3.0, prompt_tokens=2100, prompt_bytes=8400, prefix_marks=marks)), SLO
    )
    assert verdict.top.cause is Cause.PREFIX_SALTED


def test_shared_tokens_that_were_cached_are_not_missing_reuse():
    marks = prefix_marks(b"s" * 8400, b"key")
    cached = requests(
        prefill_s=3.0, prompt_tokens=2100, cached_tokens=2000, prompt_bytes=8400, prefix_marks=marks
    )
    assert judge(summary_of(cached), SLO).top.cause is Cause.LONG_PROMPTS


def test_time_that_no_engine_clock_saw_lies_on_the_way():
    verdict = judge(summary_of(requests(prefill_s=0.1, first_s=3.0)), SLO)
    assert verdict.top.cause is Cause.NETWORK_OR_PROXY


def test_every_token_slow_is_the_decode_step():
    verdict = judge(summary_of(requests(gap_s=0.2)), SLO)
    assert verdict.ruling is Ruling.SLOW_TO_STREAM
    assert verdict.top.cause is Cause.DECODE_FLOOR


def stalled(index):
    before, after = stream(0.2, 0.05, 10), stream(3.5, 0.05, 20)
    return make_timeline(before + after, request_id=f"r{index}", output_tokens=30, prompt_tokens=900)


def test_stalls_in_steps_with_prompt_tokens_name_the_steps():
    steps = [make_step(index, 0.2 + 0.05 * index) for index in range(10)]
    steps.append(make_step(10, 3.5, prompt=2047, decode=4))
    steps += [make_step(11 + index, 3.55 + 0.05 * index) for index in range(20)]
    verdict = judge(summary_of([stalled(index) for index in range(8)], {"w0": (StepLog(steps),)}), SLO)
    assert verdict.ruling is Ruling.SLOW_TO_STREAM
    assert verdict.top.cause is Cause.CHUNKS_STALL
    assert verdict.top.confidence is Confidence.HIGH
    assert any("step 10 (2047 prompt + 4 decode tokens" in fact.words for fact in verdict.top.facts)


def test_stalls_without_a_step_record_are_a_guess_and_say_so():
    verdict = judge(summary_of([stalled(index) for index in range(8)]), SLO)
    assert verdict.top.cause is Cause.CHUNKS_STALL
    assert verdict.top.confidence is Confidence.LOW


def test_the_phase_that_costs_users_more_time_decides():
    late = requests(4, queue_s=2.0)
    verdict = judge(summary_of(late + [stalled(index) for index in range(10, 18)]), SLO)
    assert verdict.ruling is Ruling.SLOW_TO_STREAM
    assert verdict.also_slow == "slow_to_start"


def test_failed_requests_are_part_of_the_summary():
    failed = make_timeline((), outcome=Outcome.FAILED)
    summary = summary_of([*requests(3), failed])
    assert dict(summary.outcomes) == {"succeeded": 3, "failed": 1}


def test_requests_that_never_answered_are_late_not_left_out():
    """40 quick answers do not make up for 60 clients that gave up after 30 s."""
    gone = [
        make_timeline((), request_id=f"gone{index}", outcome=Outcome.CANCELLED, ended_s=30.0)
        for index in range(60)
    ]
    verdict = judge(summary_of(requests(40) + gone), SLO)
    assert verdict.ruling is Ruling.SLOW_TO_START
    assert verdict.summary.start.unanswered == 60


def test_requests_that_fail_at_once_are_not_called_healthy():
    failed = [
        make_timeline((), request_id=f"f{index}", outcome=Outcome.FAILED, ended_s=0.01) for index in range(5)
    ]
    assert judge(summary_of(requests(10) + failed), SLO).ruling is Ruling.FAILING


def timed_out(count=5, ended_s=60.0, **fields):
    return [
        make_timeline((), request_id=f"t{index}", outcome=Outcome.TIMED_OUT, ended_s=ended_s, **fields)
        for index in range(count)
    ]


def test_what_answered_requests_did_does_not_explain_those_that_never_were():
    """30 answers within the objective, of prefill mostly, and 5 that waited a minute for nothing."""
    verdict = judge(summary_of(requests(30, prefill_s=0.25) + timed_out()), SLO)
    assert (verdict.ruling, verdict.findings) == (Ruling.FAILING, ())
    assert verdict.unexplained_share == pytest.approx(1.0)
    assert "100%" in words.unexplained(verdict)


def test_where_nobody_is_answered_requests_fail():
    verdict = judge(summary_of(timed_out()), SLO)
    assert (verdict.ruling, verdict.top) == (Ruling.FAILING, None)
    assert "answered requests were fast" not in words.what_next(verdict)
    plain = judge(summary_of(timed_out(streamed=False)), SLO)
    assert plain.ruling is Ruling.FAILING


def test_silent_requests_waited_for_the_same_as_those_that_waited_as_long():
    """A queue of 4 s: who left after 3 s stood in it; who left after 6 s lost 2 s to nobody knows what."""
    queued = requests(30, queue_s=4.0)
    (attempt,) = queued[0].attempts
    left = replace(
        queued[0],
        content_times_s=(),
        outcome=Outcome.CANCELLED,
        ended_s=3.0,
        attempts=(replace(attempt, spans=()),),
    )
    longest_s = max(it.content_times_s[0] for it in queued)
    short = judge(summary_of([*queued, left]), SLO)
    long = judge(summary_of([*queued, replace(left, ended_s=longest_s + 2.0)]), SLO)
    assert short.summary.start.silent_lost_s == 0.0
    assert long.summary.start.silent_lost_s == pytest.approx(2.0)
    assert short.top.cause is long.top.cause is Cause.OVERLOAD
    assert short.unexplained_share < long.unexplained_share


def test_what_the_gateway_held_back_from_silent_requests_is_the_gateways():
    held = [make_span(Part.GATEWAY_WAIT, 55.0, Source.GATEWAY_CLOCK, start_s=0.0)]
    answered = [
        replace(it, spans=(make_span(Part.GATEWAY_WAIT, 0.01, Source.GATEWAY_CLOCK),)) for it in requests(40)
    ]
    gone = [replace(it, outcome=Outcome.CANCELLED) for it in timed_out(spans=held)]
    for seen in (answered + gone, gone):
        top = judge(summary_of(seen), SLO).top
        assert top.cause is Cause.GATEWAY
        assert top.lost_s == pytest.approx(5 * 55.0, rel=0.1)


def test_requests_without_engine_timings_do_not_make_the_engine_innocent():
    """Half of the engines do not report their phases: what they hide is not time outside the engine."""
    silent = [make_timeline(stream(3.2), request_id=f"s{index}") for index in range(10)]
    verdict = judge(summary_of(requests(10, queue_s=3.0, prefill_s=0.2) + silent), SLO)
    assert verdict.top.cause is Cause.OVERLOAD
    assert verdict.summary.start.timed == 10


def test_without_any_engine_timing_no_cause_is_made_up():
    silent = [make_timeline(stream(3.2), request_id=f"s{index}") for index in range(10)]
    verdict = judge(summary_of(silent), SLO)
    assert verdict.ruling is Ruling.SLOW_TO_START
    assert verdict.top is None


def test_the_headline_never_names_a_cause_of_the_other_phase():
    """Stalls that no rule explains, and some queueing: slow to stream, cause not found."""
    steps = [make_step(index, 0.2 + 0.05 * index) for index in range(200)]
    passed_over = [stalled(index) for index in range(10, 18)]
    verdict = judge(summary_of(requests(2, queue_s=2.0) + passed_over, {"w0": (StepLog(steps),)}), SLO)
    assert verdict.ruling is Ruling.SLOW_TO_STREAM
    assert verdict.top is None


def test_stalls_by_preemption_are_a_matter_of_kv_memory():
    steps = [make_step(index, 0.2 + 0.05 * index) for index in range(10)]
    steps.append(make_step(10, 3.5, decode=4, preempted=1))
    steps += [make_step(11 + index, 3.55 + 0.05 * index) for index in range(20)]
    verdict = judge(summary_of([stalled(index) for index in range(8)], {"w0": (StepLog(steps),)}), SLO)
    assert verdict.top.cause is Cause.KV_EXHAUSTED


def test_not_enough_traffic_is_not_called_healthy():
    assert judge(summary_of(requests(2)), SLO).ruling is Ruling.NOT_ENOUGH_TRAFFIC
    assert (
        judge(summary_of(requests(MIN_FINISHED_TO_BE_HEALTHY - 1)), SLO).ruling is Ruling.NOT_ENOUGH_TRAFFIC
    )
    assert judge(summary_of(requests(MIN_FINISHED_TO_BE_HEALTHY)), SLO).ruling is Ruling.HEALTHY


def test_requests_that_did_not_finish_do_not_make_a_server_healthy():
    finished = requests(MIN_FINISHED_TO_BE_HEALTHY - 1)
    open_ones, cancelled = (
        requests(number, outcome=outcome)
        for number, outcome in ((9, Outcome.UNFINISHED), (3, Outcome.CANCELLED))
    )
    assert judge(summary_of(finished + open_ones), SLO).ruling is Ruling.NOT_ENOUGH_TRAFFIC
    assert judge(summary_of(finished + cancelled), SLO).ruling is Ruling.NOT_ENOUGH_TRAFFIC


def test_if_most_clients_leave_that_is_the_verdict():
    verdict = judge(summary_of(requests(6) + requests(9, outcome=Outcome.CANCELLED)), SLO)
    assert verdict.ruling is Ruling.FAILING
    assert verdict.top.cause is Cause.CLIENTS_CANCEL
    assert "60% of 15 requests" in verdict.top.facts[0].words


def test_requests_that_all_left_during_their_prefill_were_slow_by_their_prompts():
    """None was answered: how far each came is what there is to judge."""
    engine = [make_span(Part.PREFILL, 1.4, Source.STEP_RECORD), make_span(Part.ENGINE_QUEUE, 0.1)]
    left = {"engine_spans": engine, "outcome": Outcome.CANCELLED, "ended_s": 1.5, "prompt_tokens": None}
    summary = summary_of([make_timeline((), request_id=f"r{index}", **left) for index in range(7)])
    assert summary.start.seconds(Part.PREFILL) == pytest.approx(1.4)
    verdict = judge(summary, SLO)
    assert verdict.ruling is Ruling.SLOW_TO_START
    assert verdict.top.cause is Cause.LONG_PROMPTS
    assert Cause.CLIENTS_CANCEL in {it.cause for it in verdict.findings}


def test_an_engine_that_hangs_is_named_however_few_requests_were_seen():
    still = Standstill("a", 0.0, seconds=30.0, requests=2, lasts=True)
    verdict = judge(replace(summary_of(requests(1)), standstills=(still,)), SLO)
    assert (verdict.ruling, verdict.top.cause) == (Ruling.FAILING, Cause.ENGINE_HUNG)
    assert judge(summary_of(requests(1)), SLO).ruling is Ruling.NOT_ENOUGH_TRAFFIC


def test_rejected_requests_are_counted_by_their_reason():
    rejected = requests(4, outcome=Outcome.REJECTED)
    noted = [replace(it, attempts=(replace(it.attempts[0], note="HTTP 400"),)) for it in rejected]
    verdict = judge(summary_of(requests(6) + noted), SLO)
    assert verdict.ruling is Ruling.FAILING
    assert verdict.top.cause is Cause.REQUESTS_REJECTED
    assert "4 of 10 requests were rejected: HTTP 400 (4)" in verdict.top.facts[0].words


def test_an_engine_that_the_gateway_does_not_use_is_named_when_requests_fail():
    rejected = [replace(it, reason="no_healthy_worker") for it in requests(4, outcome=Outcome.REJECTED)]
    down = EngineSurroundings("a", 0, out_of_service="down for 24 seconds (Connection refused)")
    summary = replace(summary_of(requests(6) + rejected), engines=(down, EngineSurroundings("b", 6)))
    verdict = judge(summary, SLO)
    assert verdict.ruling is Ruling.FAILING
    assert verdict.top.cause is Cause.ENGINE_DOWN
    words = [fact.words for fact in verdict.top.facts]
    assert words[0] == "a is down for 24 seconds (Connection refused)"
    assert words[1].startswith("4 of 10 requests were not served")


def test_rejections_that_a_dead_engine_does_not_explain_are_counted_apart():
    noted = [replace(it, reason="bad_request") for it in requests(3, outcome=Outcome.REJECTED)]
    noted += [replace(it, reason="no_healthy_worker") for it in requests(4, outcome=Outcome.REJECTED)]
    noted = [replace(it, attempts=()) for it in noted]
    down = EngineSurroundings("a", 0, out_of_service="down")
    verdict = judge(replace(summary_of(requests(6) + noted), engines=(down,)), SLO)
    first, second = (found for found in verdict.findings if found.phase is Phase.FAILING)
    assert (first.cause, second.cause) == (Cause.ENGINE_DOWN, Cause.GATEWAY_REJECTS)
    assert second.facts[0].words == "3 of 13 requests were rejected by the gateway: bad_request (3)"


def rejected(**reasons):
    """Requests that the gateway rejected, so many for each reason."""
    each = [reason for reason, count in reasons.items() for _ in range(count)]
    timelines = requests(len(each), outcome=Outcome.REJECTED)
    return [replace(it, reason=why, attempts=()) for it, why in zip(timelines, each, strict=True)]


def test_a_limit_of_the_gateway_that_rejects_is_named_with_the_setting_that_changes_it():
    summary = summary_of(requests(216) + rejected(bodies_full=173))
    verdict = judge(summary, SLO)
    assert (verdict.ruling, verdict.top.cause) == (Ruling.FAILING, Cause.GATEWAY_REJECTS)
    counts, meaning = (fact.words for fact in verdict.top.facts)
    assert counts == "173 of 389 requests were rejected by the gateway: bodies_full (173)"
    assert meaning.startswith("bodies_full: a body waited too long for memory")
    assert "raise gateway.limits.bodies" in meaning
    advice = advise(verdict.top, summary)
    assert advice.fixes[0].what.startswith("raise gateway.limits.bodies")
    assert not any("more engines" in words for words in advice.would_not_help)
    assert Cause.REQUESTS_REJECTED not in {it.cause for it in verdict.findings}


def test_without_an_engine_another_engine_helps_even_if_all_are_back_at_the_windows_end():
    found_none = rejected(no_healthy_worker=40)
    tried = make_attempt(outcome=Outcome.FAILED, note="connection_refused")
    found_none += [replace(it, attempts=(tried,)) for it in rejected(no_healthy_worker=10)]
    summary = replace(summary_of(requests(60) + found_none), engines=(EngineSurroundings("a", 60),))
    verdict = judge(summary, SLO)
    assert (verdict.ruling, verdict.top.cause) == (Ruling.FAILING, Cause.ENGINE_DOWN)
    assert verdict.top.facts[0].words == (
        "50 of 110 requests found no engine in service: no_healthy_worker (50)"
    )
    advice = advise(verdict.top, summary)
    assert any("add another engine" in fix.what for fix in advice.fixes)
    assert not any("engines" in words for words in advice.would_not_help)


def test_a_model_that_no_engine_serves_needs_an_engine_of_that_model():
    summary = summary_of(requests(6) + rejected(no_worker_for_model=4))
    verdict = judge(summary, SLO)
    assert verdict.top.cause is Cause.GATEWAY_REJECTS
    assert "add an engine of that model" in advise(verdict.top, summary).fixes[0].what


def test_rejections_of_the_gateway_and_of_its_engines_are_told_apart_and_few_are_left_out():
    by_engine = [
        replace(it, reason="engine_4xx", attempts=(replace(it.attempts[0], note="HTTP 400"),))
        for it in requests(20, outcome=Outcome.REJECTED)
    ]
    few = rejected(bodies_full=20, queue_full=1)
    verdict = judge(summary_of(requests(10) + by_engine + few), SLO)
    causes = [it.cause for it in verdict.findings if it.phase is Phase.FAILING]
    assert causes == [Cause.REQUESTS_REJECTED, Cause.GATEWAY_REJECTS]


@pytest.mark.parametrize("reason", ["queue_full", "queue_timeout"])
def test_requests_that_waited_in_vain_at_the_gateway_are_too_many_and_not_wrong(reason):
    noted = [replace(it, reason=reason, attempts=()) for it in requests(4, outcome=Outcome.REJECTED)]
    verdict = judge(summary_of(requests(6) + noted), SLO)
    assert (verdict.ruling, verdict.top.cause) == (Ruling.FAILING, Cause.OVERLOAD)
    assert verdict.top.facts[0].words == f"4 of 10 requests waited in vain at the gateway: {reason} (4)"
    assert Cause.REQUESTS_REJECTED not in {it.cause for it in verdict.findings}


def test_an_engine_that_is_out_of_service_is_no_cause_while_requests_are_served():
    down = EngineSurroundings("a", 0, out_of_service="down")
    verdict = judge(replace(summary_of(requests(9)), engines=(down,)), SLO)
    assert verdict.ruling is Ruling.HEALTHY
    assert not verdict.findings


def test_with_all_engines_out_of_service_requests_fail_however_slow_they_were():
    failed = requests(4, queue_s=4.0, outcome=Outcome.FAILED)
    down = tuple(EngineSurroundings(name, 0, out_of_service="down") for name in "ab")
    verdict = judge(replace(summary_of(failed), engines=down), SLO)
    assert (verdict.ruling, verdict.top.cause) == (Ruling.FAILING, Cause.ENGINE_DOWN)
    one_left = (down[0], EngineSurroundings("b", 4))
    assert judge(replace(summary_of(failed), engines=one_left), SLO).ruling is Ruling.SLOW_TO_START


def test_unanswered_requests_are_counted_once():
    """Two left, three still wait: one of these not long enough to be late."""
    left = [make_timeline((), request_id=f"l{it}", outcome=Outcome.CANCELLED, ended_s=3.0) for it in range(2)]
    waits = [
        make_timeline((), request_id=f"w{it}", outcome=Outcome.UNFINISHED, ended_s=float(it))
        for it in (0, 2, 3)
    ]
    start = summary_of(requests(5) + left + waits).start
    assert (start.unanswered, start.gave_up, start.unfinished) == (4, 2, 3)


def test_a_few_requests_are_enough_to_find_a_server_slow_or_failing():
    assert judge(summary_of(requests(3, queue_s=2.0)), SLO).ruling is Ruling.SLOW_TO_START
    assert judge(summary_of(requests(3, outcome=Outcome.FAILED)), SLO).ruling is Ruling.FAILING


@pytest.mark.parametrize("queue_s", [0.0, 2.0])
def test_an_interrupted_probe_is_not_judged_however_fast_it_was(queue_s):
    summary = replace(summary_of(requests(queue_s=queue_s)), probe_cut_short=True)
    assert judge(summary, SLO).ruling is Ruling.NOT_ENOUGH_TRAFFIC


@pytest.mark.parametrize(
    ("finished", "ruling"),
    [(None, Ruling.NOT_ENOUGH_TRAFFIC), (4, Ruling.NOT_ENOUGH_TRAFFIC), (5, Ruling.HEALTHY)],
)
def test_engine_counters_report_how_many_requests_finished_by_their_outputs(finished, ruling):
    summary = summary_of(requests())
    outputs = None if finished is None else distribution([30] * finished)
    profile = replace(workload_profile(requests(), 20.0), output_tokens=outputs)
    counted = replace(summary, seen_by=SeenBy.COUNTERS, outcomes=(("started", 10),), profile=profile)
    assert judge(counted, SLO).ruling is ruling


def test_replies_that_were_not_streamed_show_no_phase_and_are_not_called_healthy():
    plain = [make_timeline((), request_id=f"r{index}", output_tokens=20) for index in range(9)]
    assert judge(summary_of(plain), SLO).ruling is Ruling.NOT_ENOUGH_TRAFFIC


def test_a_caveat_is_said_of_a_healthy_window_and_is_not_its_cause():
    summary = replace(summary_of(requests()), trust=Trust(warm_share=0.8))
    verdict = judge(summary, SLO)
    assert verdict.ruling is Ruling.HEALTHY
    assert [found.cause for found in verdict.caveats] == [Cause.WARM_CACHE]
    assert verdict.top is None


def test_what_no_rule_claims_is_said_as_a_share():
    explained = judge(summary_of(requests(queue_s=4.0)), SLO)
    silent = [make_timeline(stream(3.2), request_id=f"s{index}") for index in range(10)]
    assert explained.unexplained_share == pytest.approx(0.0, abs=1e-9)
    assert judge(summary_of(silent), SLO).unexplained_share == pytest.approx(1.0)


def test_findings_of_the_heavier_phase_come_first_and_caveats_last():
    late, slow = requests(4, queue_s=2.0), [stalled(index) for index in range(10, 18)]
    summary = replace(summary_of(late + slow), trust=Trust(warm_share=0.8))
    phases = [found.phase for found in judge(summary, SLO).findings]
    assert phases == [Phase.STREAM, Phase.START, Phase.MEASUREMENT]


def test_of_two_phases_that_lost_as_much_no_verdict_is_sure():
    late, slow = requests(8, queue_s=3.6), [stalled(index) for index in range(10, 18)]
    verdict = judge(summary_of(late + slow), SLO)
    start, stream = verdict.summary.start, verdict.summary.stream
    assert 0.4 <= start.lost_s / (start.lost_s + stream.lost_s) <= 0.6
    assert verdict.top.confidence is not Confidence.HIGH


def test_a_verdict_is_written_down_with_who_says_each_fact():
    record = orjson.loads(orjson.dumps(verdict_record(judge(summary_of(requests(queue_s=4.0)), SLO))))
    assert record["v"] == VERDICT_VERSION
    assert record["cause"] == "overload"
    facts = record["findings"][0]["facts"]
    assert {"words", "source"} == set(facts[0])
    assert {"trust", "engines", "prefix", "unexplained_share"} <= set(record)


def test_a_written_verdict_holds_the_ledger_in_milliseconds():
    summary = replace(summary_of(requests(gap_s=0.2)), engines=(make_engine(engine_load=make_engine_load()),))
    ledger = TokenLedger(step_s=0.2, floor_s=0.15, batch_s=0.05, kv_read_s=0.0, unexplained_s=0.001)
    record = verdict_record(judge(replace(summary, stream=replace(summary.stream, ledger=ledger)), SLO))
    assert record["stream"]["ledger"]["floor_ms"] == 150.0
    assert record["engines"][0]["engine_load"]["waiting_max"] == 9
