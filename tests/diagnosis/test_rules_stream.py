"""Each rule of slow streaming finds its cause, and leaves a summary alone that only looks like it."""

import pytest

from phasewise.core.steps import TimedStep
from phasewise.diagnosis.analysis.engine_load import Drafts, SeenBy
from phasewise.diagnosis.analysis.stall_causes import GuiltyPrompt, StallCause
from phasewise.diagnosis.analysis.token_ledger import TokenLedger
from phasewise.diagnosis.analysis.window_summary import Trust
from phasewise.diagnosis.finding import Cause, Confidence, FactSource
from tests.benchmark.calibrate.builders import make_fit
from tests.builders import make_step
from tests.diagnosis.summaries import (
    SLO,
    causes,
    make_engine,
    make_engine_load,
    make_stall,
    make_start,
    make_steps,
    make_stream,
    make_summary,
    make_workload,
    the_finding,
)


def streaming(ledger=None, stalls=(), engines=(), **fields):
    return make_summary(stream=make_stream(ledger, stalls), engines=engines, **fields)


def split(floor_s=0.05, batch_s=0.0, kv_read_s=0.0, **parts):
    return TokenLedger(floor_s + batch_s + kv_read_s, floor_s, batch_s, kv_read_s, **parts)


def running(count, **fields):
    return make_engine(engine_load=make_engine_load(running_mean=count), **fields)


@pytest.mark.parametrize(
    ("cause", "part", "stall"),
    [
        (Cause.SLOW_CLIENT, "client_s", StallCause.CLIENT),
        (Cause.KV_EXHAUSTED, "preempted_s", StallCause.PREEMPTION),
        (Cause.ENGINE_PAUSES, "paused_s", StallCause.PAUSE),
        (Cause.COLD_START, "cold_s", StallCause.COLD_STEP),
        (Cause.CHUNKS_STALL, "prompts_s", StallCause.PREFILL_CHUNK),
    ],
)
def test_a_part_of_the_mean_token_and_stalls_of_its_kind_are_one_cause(cause, part, stall):
    by_token = streaming(TokenLedger(step_s=0.05, **{part: 0.2}))
    by_stalls = streaming(TokenLedger(step_s=0.05, **{part: 0.01}), [make_stall(stall)] * 8)
    assert causes(by_token) == causes(by_stalls) == [cause]


@pytest.mark.parametrize("part", ["client_s", "preempted_s", "paused_s", "prompts_s", "cold_s"])
def test_a_small_part_of_a_slow_token_is_not_its_cause(part):
    assert causes(streaming(TokenLedger(step_s=0.4, **{part: 0.02}))) == [Cause.DECODE_FLOOR]


def test_stalls_that_an_average_hides_are_lost_in_full():
    """200 tokens at 50 ms hide one pause of 3 s in the mean, and the reader does not."""
    stream = make_stream(split(prompts_s=0.015), [make_stall()] * 20, tokens=200)
    finding = the_finding(make_summary(stream=stream), Cause.CHUNKS_STALL)
    assert finding.lost_s == pytest.approx(stream.lost_s)
    assert finding.share == pytest.approx(0.015 / 0.065)


def test_a_floor_within_the_objective_is_not_what_is_lost():
    """65 ms would do; it is the prompts' 50 ms that the reader waits for."""
    assert causes(streaming(split(floor_s=0.065, prompts_s=0.05))) == [Cause.CHUNKS_STALL]


def test_stalls_name_the_steps_and_whose_prompts_they_computed():
    steps = (TimedStep(make_step(10, 3.5, prompt=2047, decode=4), None),)
    guilty = (GuiltyPrompt("chatcmpl-long", 3000, 0), GuiltyPrompt("chatcmpl-short", 90, 0))
    summary = streaming(stalls=[make_stall(steps=steps, guilty=guilty)] * 8)
    words = " ".join(fact.words for fact in the_finding(summary, Cause.CHUNKS_STALL).facts)
    assert "8 streams stalled" in words
    assert "step 10 (2047 prompt + 4 decode tokens" in words
    assert words.index("chatcmpl-long (3000 tokens)") < words.index("chatcmpl-short")


def test_stalls_of_unknown_cause_are_a_guess_and_say_so():
    finding = the_finding(streaming(stalls=[make_stall(StallCause.UNKNOWN)] * 8), Cause.CHUNKS_STALL)
    assert finding.confidence is Confidence.LOW
    assert any("likely cause" in fact.words for fact in finding.facts)


def test_stalls_of_unknown_cause_are_not_laid_to_prompts_too_short_to_stall_anybody():
    short = make_workload(prompt_p90_tokens=20.0)
    summary = streaming(stalls=[make_stall(StallCause.UNKNOWN)] * 8, workload=short)
    assert Cause.CHUNKS_STALL not in causes(summary)


def test_stalls_that_nobody_saw_leave_prompts_unsure_though_some_are_known_to_take_time():
    summary = streaming(split(prompts_s=0.001), [make_stall(StallCause.UNKNOWN)] * 8)
    assert the_finding(summary, Cause.CHUNKS_STALL).confidence is Confidence.LOW


def test_without_steps_stalls_beside_as_many_preemptions_are_laid_to_those():
    stream = make_stream(stalls=[make_stall(StallCause.UNKNOWN)] * 8, step_timed=0)
    summary = make_summary(stream=stream, workload=make_workload(preemptions=500, kv_usage_max=1.0))
    assert causes(summary)[0] is Cause.KV_EXHAUSTED
    assert the_finding(summary, Cause.KV_EXHAUSTED).confidence is Confidence.LOW


@pytest.mark.parametrize(
    ("seen_by", "source"), [(SeenBy.COUNTERS, FactSource.COUNTERS), (SeenBy.PROBE, FactSource.CLIENT)]
)
def test_a_usual_gap_is_reported_by_who_saw_it_and_not_called_an_empty_step(seen_by, source):
    stream = make_stream(
        step_timed=0, step_s=None, gap_p50_s=0.15, tpot_mean_s=0.15, lost_s=40.0, slow=20, ledger=None
    )
    finding = the_finding(make_summary(stream=stream, seen_by=seen_by), Cause.DECODE_FLOOR)
    assert finding.facts[0].source is source
    assert "even at batch 1" not in finding.facts[0].words


def test_steps_that_wait_for_a_core_are_starved():
    starved = make_engine(cpu_wait_share=0.7)
    assert causes(streaming(split(floor_s=0.25), engines=[starved]))[0] is Cause.ENGINE_STARVED


def test_long_pauses_are_not_made_by_a_core_that_is_shared():
    shared = make_engine(cpu_wait_share=0.4)
    pauses = streaming(TokenLedger(step_s=0.06, paused_s=0.03), [make_stall(StallCause.PAUSE)] * 8, [shared])
    assert causes(pauses)[0] is Cause.ENGINE_PAUSES


def test_steps_that_do_not_wait_for_a_core_are_slow_by_themselves():
    fed = make_engine(cpu_wait_share=0.05)
    assert causes(streaming(split(floor_s=0.25), engines=[fed])) == [Cause.DECODE_FLOOR]


def drafting(accepted, running_mean=16.0):
    drafts = Drafts(drafts=100, drafted_tokens=500, accepted_tokens=accepted)
    return running(running_mean, drafts=drafts)


def test_guesses_that_cost_more_than_they_bring_do_not_pay():
    ledger = TokenLedger(step_s=0.3)
    assert causes(streaming(ledger, engines=[drafting(20)], fit=make_fit()))[0] is Cause.SPECULATION_UNPAID


def test_guesses_that_bring_tokens_sooner_than_without_pay():
    plain_s = make_fit().cost.floor_s + 16 * (1.1e-3 + 525 * 2.2e-6)
    stalls = [make_stall()] * 8
    ledger = TokenLedger(step_s=plain_s * 0.9)
    assert Cause.SPECULATION_UNPAID not in causes(
        streaming(ledger, stalls, engines=[drafting(400)], fit=make_fit())
    )


def test_without_a_fit_only_poor_guesses_are_blamed_and_cautiously():
    ledger = TokenLedger(step_s=0.3)
    poor = streaming(ledger, engines=[drafting(20)])
    assert the_finding(poor, Cause.SPECULATION_UNPAID).confidence is Confidence.LOW
    assert Cause.SPECULATION_UNPAID not in causes(streaming(ledger, engines=[drafting(300)]))


def test_steps_full_of_wrong_guesses_are_not_blamed_on_how_many_run():
    ledger = TokenLedger(step_s=0.18)
    assert causes(streaming(ledger, engines=[drafting(5, running_mean=40.0)])) == [Cause.SPECULATION_UNPAID]


def test_a_step_that_is_mostly_its_batch_has_too_many_in_it():
    ledger = split(floor_s=0.05, batch_s=0.15)
    assert causes(streaming(ledger, engines=[running(64)])) == [Cause.BATCH_CAP_HIGH]


def test_short_contexts_of_very_many_are_the_batchs_and_long_ones_are_reads():
    ledger = split(floor_s=0.04, batch_s=0.03, kv_read_s=0.1)
    assert causes(streaming(ledger, engines=[running(90)])) == [Cause.BATCH_CAP_HIGH]
    assert causes(streaming(ledger, engines=[running(6)])) == [Cause.DECODE_KV_READS]


def test_a_mean_token_that_is_nearly_all_floor_is_slow_by_its_floor():
    """A few streams miss the objective that the mean meets: 4 ms of prompts are not why."""
    stream = make_stream(split(floor_s=0.09, prompts_s=0.004), slow=5, lost_s=1.0)
    assert causes(make_summary(stream=stream)) == [Cause.DECODE_FLOOR]


def test_a_batch_that_costs_less_than_the_floor_is_not_too_large():
    ledger = split(floor_s=0.2, batch_s=0.05)
    assert causes(streaming(ledger, engines=[running(64)])) == [Cause.DECODE_FLOOR]


def test_without_a_fit_a_lone_step_reports_the_batch_from_the_floor():
    full = running(64, steps=make_steps(lone_step_s=0.05))
    alone = running(64, steps=make_steps(lone_step_s=0.2))
    assert causes(streaming(TokenLedger(step_s=0.25), engines=[full])) == [Cause.BATCH_CAP_HIGH]
    assert causes(streaming(TokenLedger(step_s=0.25), engines=[alone])) == [Cause.DECODE_FLOOR]


def test_with_neither_many_running_are_the_batch_and_few_the_floor():
    ledger = TokenLedger(step_s=0.25)
    assert causes(streaming(ledger, workload=make_workload(running_mean=40.0))) == [Cause.BATCH_CAP_HIGH]
    assert causes(streaming(ledger, workload=make_workload(running_mean=1.5))) == [Cause.DECODE_FLOOR]


def test_long_contexts_that_are_read_for_every_token_bind_decode():
    assert causes(streaming(split(floor_s=0.05, kv_read_s=0.2))) == [Cause.DECODE_KV_READS]
    assert Cause.DECODE_KV_READS not in causes(streaming(split(floor_s=0.25, kv_read_s=0.02)))


@pytest.mark.parametrize(
    ("weights_read_s", "cause"),
    [
        (0.18, Cause.DECODE_WEIGHTS),
        (0.02, Cause.DECODE_OVERHEAD),
        (None, Cause.DECODE_FLOOR),
        # Nobody reads the weights more slowly than a whole step takes: that figure is of another machine.
        (0.5, Cause.DECODE_FLOOR),
    ],
)
def test_the_floor_is_weights_or_overhead_by_how_fast_the_machine_reads(weights_read_s, cause):
    engine = make_engine(weights_read_s=weights_read_s)
    assert causes(streaming(split(floor_s=0.2), engines=[engine])) == [cause]


def test_tokens_that_came_late_from_a_busy_front_end_are_the_front_ends():
    late = TokenLedger(step_s=0.05, unexplained_s=0.2)
    busy, calm = make_engine(front_end_cores=0.95), make_engine(front_end_cores=0.1)
    assert causes(streaming(late, engines=[busy])) == [Cause.FRONT_END_BUSY]
    assert causes(streaming(late, engines=[calm])) == [Cause.NETWORK_OR_PROXY]


def test_tokens_that_came_late_with_nothing_known_of_the_host_stay_unexplained():
    assert causes(streaming(TokenLedger(step_s=0.05, unexplained_s=0.2))) == []


def test_a_generator_that_is_later_than_a_token_cannot_time_tokens():
    late = TokenLedger(step_s=0.05, unexplained_s=0.2)
    lagging = streaming(late, trust=Trust(lag_mean_s=0.3, lag_p90_s=0.9))
    in_time = streaming(late, trust=Trust(lag_mean_s=0.001, lag_p90_s=SLO.tpot_s / 4))
    assert Cause.GENERATOR_LAG in causes(lagging)
    assert Cause.GENERATOR_LAG not in causes(in_time)


def test_causes_are_searched_in_the_slow_streams():
    """On average a token is within the objective; of the slow streams, most is lost to cold steps."""
    mean, slow = split(0.05, cold_s=0.01), split(0.05, cold_s=0.2)
    stream = make_stream(mean, slow_ledger=slow, slow=5, lost_s=10.0)
    assert causes(make_summary(stream=stream)) == [Cause.COLD_START]


def test_prompts_that_stall_nobody_slow_streams_by_their_number():
    ledger = split(0.05, prompts_s=0.1)
    short, long = (
        make_summary(
            make_start(prefill_s=each), make_stream(ledger), engines=[running(6.0, steps=make_steps())]
        )
        for each in (0.2, 0.9)
    )
    assert causes(short) == [Cause.OVERLOAD]
    assert causes(long) == [Cause.CHUNKS_STALL]


def test_batching_is_the_cause_if_a_stream_alone_would_be_fast_enough():
    beside = streaming(split(0.08, 0.05), engines=[running(4.0)])
    assert causes(beside) == [Cause.BATCH_CAP_HIGH]
    alone_too_slow = streaming(split(0.2, 0.05), engines=[running(4.0)])
    assert causes(alone_too_slow) == [Cause.DECODE_FLOOR]


def test_more_threads_than_cores_wait_for_each_other_in_every_step():
    slow = split(floor_s=0.25)
    crowd = make_engine(settings={"threads": 16}, cores=2, cpu_wait_share=0.4)
    finding = the_finding(streaming(slow, engines=[crowd]), Cause.THREADS_HIGH)
    assert "16 threads and has 2 cores" in finding.facts[0].words
    assert finding.share == pytest.approx(0.69, abs=0.01)
    assert Cause.ENGINE_STARVED not in causes(streaming(slow, engines=[crowd]))
    fits = make_engine(settings={"threads": 2}, cores=2)
    assert Cause.THREADS_HIGH not in causes(streaming(slow, engines=[fits]))
