"""Each rule of a slow start finds its cause, and leaves a summary alone that only looks like it."""

from dataclasses import replace

import pytest

from phasewise.core.timeline import Source
from phasewise.costs.fit.step import StepCost, decoding
from phasewise.diagnosis.analysis.engine_load import SeenBy
from phasewise.diagnosis.analysis.ttft import EngineStart
from phasewise.diagnosis.finding import Cause, Confidence
from phasewise.diagnosis.rules.case import prompt_work_share
from tests.benchmark.calibrate.builders import make_fit
from tests.diagnosis.summaries import (
    causes,
    make_engine,
    make_engine_load,
    make_prefix,
    make_start,
    make_steps,
    make_stream,
    make_summary,
    make_workload,
    the_finding,
)

QUEUE = make_start(engine_queue_s=4.0, prefill_s=0.2)
PREFILL = make_start(prefill_s=3.0)


def loaded(start=QUEUE, fit=None, steps=None, **engine_load):
    return make_summary(
        start, engines=[make_engine(engine_load=make_engine_load(**engine_load), steps=steps)], fit=fit
    )


def test_a_queue_before_a_full_kv_cache_is_the_caches():
    summary = loaded(kv_full_share=0.9, kv_usage_max=0.99)
    assert causes(summary) == [Cause.KV_EXHAUSTED]


def test_a_queue_before_a_kv_cache_with_space_is_not_the_caches():
    assert Cause.KV_EXHAUSTED not in causes(loaded(kv_full_share=0.1, kv_usage_max=0.99))


def test_without_a_load_lost_places_and_a_full_cache_are_a_weaker_sign():
    summary = make_summary(QUEUE, workload=make_workload(preemptions=3, kv_usage_max=0.97))
    assert the_finding(summary, Cause.KV_EXHAUSTED).confidence is Confidence.LOW
    roomy = make_summary(QUEUE, workload=make_workload(preemptions=3, kv_usage_max=0.5))
    assert Cause.KV_EXHAUSTED not in causes(roomy)


def test_a_cap_at_which_more_would_cost_little_is_too_low():
    summary = loaded(capped_share=0.95, running_max=2, fit=make_fit())
    assert causes(summary) == [Cause.BATCH_CAP_LOW]


def test_costs_that_were_fitted_to_one_batch_size_do_not_speak_of_larger_ones():
    """Of streams that always ran alone, nothing says what two take: all of the step seems to be one's."""
    all_per_request = StepCost(0.0, 96, 0.0, 0.0, 0.0, per_request_s=0.05)
    alone = make_fit(all_per_request, seen=[decoding([100])])
    summary = loaded(capped_share=0.95, running_max=1, fit=alone, steps=make_steps())
    assert causes(summary) == [Cause.BATCH_CAP_LOW]


def test_a_cap_at_which_more_would_cost_twice_as_much_is_overload():
    summary = loaded(capped_share=0.95, running_max=400, fit=make_fit(), steps=make_steps())
    assert causes(summary) == [Cause.OVERLOAD]


def test_a_cap_that_keeps_prompts_waiting_behind_prompts_is_overload():
    """Twice as many at once would not compute a single prompt sooner."""
    start = make_start(engine_queue_s=4.0, prefill_s=0.9)
    summary = loaded(start, capped_share=0.95, running_max=2, fit=make_fit(), steps=make_steps())
    assert causes(summary) == [Cause.OVERLOAD]


def test_without_a_fit_a_full_step_that_is_hardly_longer_than_a_lone_one_shows_a_low_cap():
    cheap = make_steps(lone_step_s=0.05, decode_step_p50_s=0.055)
    dear = make_steps(lone_step_s=0.05, decode_step_p50_s=0.1)
    assert causes(loaded(capped_share=0.95, running_max=16, steps=cheap)) == [Cause.BATCH_CAP_LOW]
    assert causes(loaded(capped_share=0.95, running_max=16, steps=dear)) == [Cause.OVERLOAD]


def test_with_nothing_to_compare_a_cap_of_a_few_is_low_and_one_of_many_is_not_said_to_be():
    one, few = (loaded(capped_share=0.95, running_max=most) for most in (1, 4))
    at_times = loaded(capped_share=0.6, running_max=4)
    assert the_finding(one, Cause.BATCH_CAP_LOW).confidence is Confidence.HIGH
    assert the_finding(few, Cause.BATCH_CAP_LOW).confidence is Confidence.HIGH
    assert the_finding(at_times, Cause.BATCH_CAP_LOW).confidence is Confidence.LOW
    assert Cause.BATCH_CAP_LOW not in causes(loaded(capped_share=0.95, running_max=64))


def test_without_steps_running_few_prompts_that_fill_the_window_is_no_low_cap():
    """20 prefills of 4 s in a window of 20 s: five ran at once because each took so long."""
    start = make_start(engine_queue_s=4.0, prefill_s=4.0)
    assert Cause.BATCH_CAP_LOW not in causes(loaded(start, capped_share=0.95, running_max=5))


def test_more_in_the_engine_at_the_end_than_at_the_beginning_is_overload():
    finding = the_finding(loaded(growth=12.0, steps=make_steps(busy_share=0.5)), Cause.OVERLOAD)
    # Nobody has replayed it, so that its rivals are not excluded.
    assert finding.confidence is Confidence.MEDIUM
    assert any("12 more" in fact.words for fact in finding.facts)


def test_waiting_at_an_engine_that_is_mostly_idle_is_called_bursts_and_not_sure():
    finding = the_finding(loaded(steps=make_steps(busy_share=0.4)), Cause.OVERLOAD)
    assert finding.confidence is Confidence.LOW
    assert any("bursts" in fact.words for fact in finding.facts)


def uneven(idle):
    full = make_engine(
        "w0", 15, engine_load=make_engine_load(running_mean=4, waiting_mean=3), steps=make_steps()
    )
    return make_summary(
        replace(QUEUE, by_engine=(EngineStart("w0", 15, 4.0, 3.8), EngineStart("w1", 5, 0.3, 0.0))),
        engines=[full, make_engine("w1", 5, engine_load=idle, steps=make_steps())],
    )


def test_waiting_at_one_engine_while_another_has_free_slots_is_uneven_load():
    idle = make_engine_load(running_mean=1.0, running_max=2, waiting_mean=0.0, waited_share=0.0)
    assert causes(uneven(idle)) == [Cause.UNEVEN_LOAD]


def test_engines_that_all_wait_are_overloaded_however_uneven():
    busy = make_engine_load(running_mean=2.0, running_max=2, waiting_mean=1.0, waited_share=0.6)
    assert causes(uneven(busy)) == [Cause.OVERLOAD]


def test_an_engine_of_another_model_has_no_free_slots():
    idle = make_engine_load(running_mean=1.0, running_max=2, waiting_mean=0.0, waited_share=0.0)
    summary = uneven(idle)
    full, other = summary.engines
    apart = replace(summary, engines=(replace(full, model="a"), replace(other, model="b")))
    assert Cause.UNEVEN_LOAD not in causes(apart)


def test_prompts_are_weighed_against_what_all_ranks_and_only_recorded_engines_computed():
    start = make_start(engine_queue_s=4.0, prefill_s=0.9)
    engine = make_engine(steps=make_steps(busy_share=0.9), ranks_busy_share=7.2)
    of_ranks = make_summary(start, engines=[engine])
    assert prompt_work_share(of_ranks) == pytest.approx(0.9 / 7.2)
    one = make_engine(steps=make_steps(busy_share=0.9), requests=2)
    one_recorder = make_summary(start, engines=[one, make_engine("w1", requests=18)])
    assert prompt_work_share(one_recorder) == pytest.approx(0.1)


def test_a_core_that_others_use_takes_its_share_of_all_the_engine_does():
    start = make_start(engine_queue_s=1.0, prefill_s=1.0, prefill_others_s=0.5)
    summary = make_summary(start, engines=[make_engine(cpu_wait_share=0.6)])
    finding = the_finding(summary, Cause.ENGINE_STARVED)
    assert causes(summary)[0] is Cause.ENGINE_STARVED
    assert finding.share == pytest.approx(0.6)


def test_a_core_that_is_nearly_the_engines_own_starves_nobody():
    start = make_start(engine_queue_s=1.0, prefill_s=1.0)
    assert Cause.ENGINE_STARVED not in causes(make_summary(start, engines=[make_engine(cpu_wait_share=0.1)]))


def test_a_queue_that_only_the_missing_core_makes_is_the_cores():
    full = make_engine(cpu_wait_share=0.5, steps=make_steps(busy_share=0.95))
    assert causes(make_summary(QUEUE, engines=[full])) == [Cause.ENGINE_STARVED]


def test_a_queue_at_a_low_cap_stays_the_caps_though_the_core_is_shared():
    engine_load = make_engine_load(running_max=1, waiting_mean=6.0, capped_share=1.0)
    full = make_engine(cpu_wait_share=0.3, steps=make_steps(busy_share=0.95), engine_load=engine_load)
    assert causes(make_summary(QUEUE, engines=[full])) == [Cause.BATCH_CAP_LOW, Cause.ENGINE_STARVED]


def test_first_steps_that_took_many_times_the_later_ones_are_a_cold_start():
    summary = make_summary(replace(PREFILL, cold_s=2.0), engines=[make_engine(age_s=9.0)])
    assert causes(summary)[0] is Cause.COLD_START
    assert any("9 s old" in fact.words for fact in the_finding(summary, Cause.COLD_START).facts)


def test_an_engine_that_has_lived_for_long_is_hardly_cold():
    old, young = (
        make_summary(replace(PREFILL, cold_s=2.0), engines=[make_engine(age_s=age_s)])
        for age_s in (7200.0, 60.0)
    )
    assert the_finding(old, Cause.COLD_START).confidence is Confidence.LOW
    assert the_finding(young, Cause.COLD_START).confidence is Confidence.HIGH


def test_waiting_for_a_cold_step_that_no_clock_of_the_engine_saw_is_the_cold_start_too():
    start = make_start(prefill_s=0.5, unexplained_s=0.9, cold_s=1.2)
    calm = make_engine(front_end_cores=0.1)
    assert causes(make_summary(start, engines=[calm])) == [Cause.COLD_START]


@pytest.mark.parametrize(
    ("age_s", "from_its_start", "sure"),
    [(9.0, False, True), (9_000.0, True, True), (9_000.0, False, False), (None, False, False)],
)
def test_what_is_new_in_the_record_of_an_old_engine_is_hardly_a_cold_start(age_s, from_its_start, sure):
    cold = replace(PREFILL, cold_s=2.0, cold_from_its_start=from_its_start)
    found = the_finding(make_summary(cold, engines=[make_engine(age_s=age_s)]), Cause.COLD_START)
    assert (found.confidence is not Confidence.LOW) is sure


def test_a_young_engine_alone_is_not_a_cold_start():
    assert causes(make_summary(PREFILL, engines=[make_engine(age_s=9.0)])) == [Cause.LONG_PROMPTS]


@pytest.mark.parametrize(
    ("use", "cause"),
    [
        ({"shared_here": 0.2, "kept": 0.2}, Cause.PREFIX_SCATTERED),
        ({"kept": 0.1}, Cause.PREFIX_EVICTED),
        ({}, Cause.PREFIX_SALTED),
        ({"shared": 0.0, "shared_here": 0.0, "kept": 0.0, "repeated": 0.9}, Cause.PREFIX_SALTED),
    ],
)
def test_reuse_is_lost_where_the_largest_gap_is(use, cause):
    assert causes(make_summary(PREFILL, prefix=make_prefix(**use)))[0] is cause


def test_a_cache_that_is_off_is_named_before_anything_else_that_loses_reuse():
    engines = [make_engine(prefix_cache_on=False)]
    assert (
        causes(make_summary(PREFILL, engines=engines, prefix=make_prefix(kept=0.1)))[0]
        is Cause.PREFIX_CACHE_OFF
    )


def test_a_cache_that_is_off_costs_nothing_where_nothing_is_shared():
    engines = [make_engine(prefix_cache_on=False)]
    alone = make_prefix(shared=0.0, shared_here=0.0, kept=0.0)
    assert causes(make_summary(PREFILL, engines=engines, prefix=alone)) == [Cause.LONG_PROMPTS]


def test_what_was_shared_and_cached_is_not_missing():
    assert causes(make_summary(PREFILL, prefix=make_prefix(cached=0.7))) == [Cause.LONG_PROMPTS]


def test_text_that_repeats_at_the_beginning_of_prompts_is_not_behind_another_head():
    """Marks round 90% down to 75%: what is missing was evicted, and what is cached is not missing."""
    evicted = make_prefix(shared=0.75, shared_here=0.75, kept=0.2, cached=0.2, repeated=0.93)
    assert causes(make_summary(PREFILL, prefix=evicted))[0] is Cause.PREFIX_EVICTED
    cached = make_prefix(shared=0.6, shared_here=0.6, kept=0.6, cached=0.8, repeated=0.9)
    assert causes(make_summary(PREFILL, prefix=cached)) == [Cause.LONG_PROMPTS]


def test_only_what_was_computed_again_can_be_saved():
    """Half of the prompts came from the cache: the missing 30% are most of what was computed."""
    finding = the_finding(make_summary(PREFILL, prefix=make_prefix(cached=0.5)), Cause.PREFIX_SALTED)
    assert finding.share == pytest.approx(0.6)


def test_without_the_whole_prefix_use_what_is_missing_is_still_seen_less_surely():
    off = make_workload(shared_share=0.8, cached_share=0.0, prefix_cache_on=False)
    finding = the_finding(make_summary(PREFILL, workload=off), Cause.PREFIX_CACHE_OFF)
    assert finding.confidence is Confidence.LOW


def chunked(budget, chunk, fit=None, start=PREFILL):
    steps = make_steps(budget_tokens=budget, chunk_p50_tokens=chunk)
    return make_summary(start, engines=[make_engine(steps=steps)], fit=fit)


def test_chunks_that_each_pay_for_a_whole_step_are_too_small():
    assert causes(chunked(32, 32.0, make_fit()))[0] is Cause.CHUNKS_SMALL


def test_chunks_beyond_the_knee_are_not_too_small():
    assert causes(chunked(2048, 2048.0, make_fit())) == [Cause.LONG_PROMPTS]


def test_a_budget_that_cuts_no_prompt_is_not_too_small():
    assert Cause.CHUNKS_SMALL not in causes(chunked(512, 60.0, make_fit()))


def test_without_a_fit_chunks_below_what_a_step_takes_anyway_are_too_small():
    short = make_start(prefill_s=1.2)
    assert causes(chunked(32, 32.0, start=short))[0] is Cause.CHUNKS_SMALL
    assert causes(chunked(256, 256.0, start=short)) == [Cause.LONG_PROMPTS]


def test_the_own_tokens_of_a_prompt_take_the_time():
    assert causes(make_summary(PREFILL)) == [Cause.LONG_PROMPTS]


def test_waiting_for_one_other_long_prompt_is_long_prompts_too():
    start = make_start(engine_queue_s=1.0, prefill_s=1.0, prefill_others_s=0.3)
    few = make_engine(engine_load=make_engine_load(waiting_mean=0.5, running_max=64), steps=make_steps())
    assert causes(make_summary(start, engines=[few])) == [Cause.LONG_PROMPTS]


def test_waiting_for_many_is_overload_though_prompts_are_long():
    start = make_start(engine_queue_s=8.0, prefill_s=1.0)
    many = make_engine(engine_load=make_engine_load(waiting_mean=12.0, running_max=64), steps=make_steps())
    assert causes(make_summary(start, engines=[many])) == [Cause.OVERLOAD]


def test_many_prompts_computed_beside_each_other_are_not_a_long_one():
    start = make_start(engine_queue_s=1.5, prefill_s=1.0, prefill_others_s=5.0)
    in_slots = make_engine(engine_load=make_engine_load(waiting_mean=0.5, running_max=64), steps=make_steps())
    assert causes(make_summary(start, engines=[in_slots]))[0] is Cause.OVERLOAD


def test_a_generator_that_sends_late_is_not_the_servers_fault():
    summary = make_summary(make_start(client_lag_s=1.5, prefill_s=0.2, unexplained_s=0.4))
    assert causes(summary) == [Cause.GENERATOR_LAG]


def test_a_generator_in_time_leaves_the_unexplained_to_others():
    summary = make_summary(make_start(client_lag_s=0.01, prefill_s=0.2, unexplained_s=2.0))
    assert Cause.GENERATOR_LAG not in causes(summary)


def test_a_unexplained_as_long_as_a_round_trip_is_the_network():
    start = make_start(prefill_s=0.2, unexplained_s=1.5)
    summary = make_summary(start, engines=[make_engine(round_trip_s=1.2)], seen_by=SeenBy.PROBE)
    assert the_finding(summary, Cause.NETWORK_OR_PROXY).confidence is Confidence.HIGH


def test_a_round_trip_from_here_proves_nothing_of_the_way_from_the_gateway():
    start = make_start(prefill_s=0.2, unexplained_s=1.5)
    far = make_engine(round_trip_s=1.2, front_end_cores=0.2)
    finding = the_finding(make_summary(start, engines=[far]), Cause.NETWORK_OR_PROXY)
    assert finding.confidence is Confidence.MEDIUM
    assert any("from here" in fact.words for fact in finding.facts)


@pytest.mark.parametrize("seen_by", [SeenBy.COUNTERS, SeenBy.STEP_RECORD])
def test_what_a_clock_within_the_engine_saw_was_not_on_the_way_to_it(seen_by):
    start = make_start(engine_queue_s=0.01, prefill_s=0.2, unexplained_s=1.8)
    calm = make_engine(round_trip_s=1.8, front_end_cores=0.3)
    summary = make_summary(start, engines=[calm], seen_by=seen_by)
    assert Cause.NETWORK_OR_PROXY not in causes(summary)


def test_a_unexplained_beside_a_calm_host_is_the_network_by_exclusion():
    start = make_start(prefill_s=0.2, unexplained_s=1.5)
    calm = make_engine(round_trip_s=0.001, front_end_cores=0.2, cpu_wait_share=0.01)
    assert the_finding(make_summary(start, engines=[calm]), Cause.NETWORK_OR_PROXY).confidence is (
        Confidence.MEDIUM
    )


def test_a_unexplained_beside_a_front_end_without_time_is_the_front_ends():
    start = make_start(prefill_s=0.2, unexplained_s=1.5)
    busy = make_engine(round_trip_s=0.001, front_end_cores=0.97)
    assert causes(make_summary(start, engines=[busy])) == [Cause.FRONT_END_BUSY]


def test_a_unexplained_without_any_engine_timing_is_nobodys():
    start = make_start(unexplained_s=3.0, timed=0, step_timed=0)
    assert causes(make_summary(start)) == []


def test_time_that_the_gateway_held_is_the_gateways():
    assert causes(make_summary(make_start(gateway_wait_s=1.5, prefill_s=0.2))) == [Cause.GATEWAY]


def test_engine_reports_alone_are_less_sure_than_steps():
    reported = make_start(prefill_s=3.0, source=Source.ENGINE_REPORT, step_timed=0)
    assert the_finding(make_summary(reported), Cause.LONG_PROMPTS).confidence is Confidence.MEDIUM
    assert the_finding(make_summary(PREFILL), Cause.LONG_PROMPTS).confidence is Confidence.HIGH


def test_a_cause_that_explains_less_than_what_nobody_explains_is_not_sure():
    less = make_start(gateway_wait_s=0.8, kv_transfer_s=1.2)
    more = make_start(gateway_wait_s=1.2, kv_transfer_s=0.8)
    most = make_start(gateway_wait_s=1.6, kv_transfer_s=0.4)
    assert the_finding(make_summary(less), Cause.GATEWAY).confidence is Confidence.LOW
    assert the_finding(make_summary(more), Cause.GATEWAY).confidence is Confidence.MEDIUM
    assert the_finding(make_summary(most), Cause.GATEWAY).confidence is Confidence.HIGH


def test_a_cause_with_a_rival_of_half_its_size_is_not_sure():
    rivals = make_start(gateway_wait_s=1.4, engine_queue_s=1.0)
    clear = make_start(gateway_wait_s=1.9, engine_queue_s=0.2)
    assert the_finding(make_summary(rivals), Cause.GATEWAY).confidence is Confidence.MEDIUM
    assert the_finding(make_summary(clear), Cause.GATEWAY).confidence is Confidence.HIGH


# --- What chance, other causes and more load would do.


def crowded(running_max, idle_share, requests=20):
    behind = make_start(prefill_others_s=3.0, prefill_s=0.2)
    engine_load = make_engine_load(
        running_mean=1.0, running_max=running_max, waiting_mean=0.0, waiting_max=0, idle_share=idle_share
    )
    workload = make_workload(requests=requests)
    return make_summary(behind, engines=[make_engine(engine_load=engine_load)], workload=workload)


def test_more_requests_at_once_than_chance_brings_are_a_burst():
    assert causes(crowded(running_max=10, idle_share=0.7)) == [Cause.BURSTS]
    assert causes(crowded(running_max=5, idle_share=0.5)) == [Cause.OVERLOAD]


def test_a_cap_is_not_the_cause_if_prompts_alone_are_more_than_the_engine_can_compute():
    """Half of its time goes into prompts, and three times as many requests come as it serves."""
    fields = {"capped_share": 1.0, "running_max": 2, "waited_share": 1.0}
    prompts = make_start(engine_queue_s=4.0, prefill_s=0.5)
    steady, growing = (
        loaded(prompts, steps=make_steps(busy_share=1.0), growth=each, **fields) for each in (0.0, 27.0)
    )
    share = {
        name: the_finding(summary, Cause.BATCH_CAP_LOW).share
        for name, summary in (("steady", steady), ("growing", growing))
    }
    assert share["growing"] < 0.8 * share["steady"]


def test_small_chunks_that_saturate_an_engine_own_its_queue():
    start = make_start(engine_queue_s=6.0, prefill_s=0.8)
    shape = make_steps(busy_share=0.99, chunk_p50_tokens=16.0, budget_tokens=16, lone_step_s=None)
    assert causes(loaded(start, steps=shape, running_max=3)) == [Cause.CHUNKS_SMALL]


def test_without_a_step_record_long_prompts_that_stall_nobody_are_cut_small():
    prompts = make_start(prefill_s=2.0, source=Source.DERIVED, step_timed=0)
    engine = make_engine(engine_load=make_engine_load(running_mean=1.5, waiting_mean=0.0, waiting_max=0))
    fields = {"engines": [engine], "seen_by": SeenBy.COUNTERS, "workload": make_workload(shared_share=None)}
    quick, stalled = (
        make_summary(prompts, make_stream(step_timed=0, gap_p99_s=each), **fields) for each in (0.08, 1.5)
    )
    assert causes(quick)[0] is Cause.CHUNKS_SMALL
    assert Cause.CHUNKS_SMALL not in causes(stalled)


def test_requests_at_the_fullest_of_two_engines_would_wait_less_at_an_even_load():
    busy, idle = (
        make_engine(name, engine_load=make_engine_load(running_mean=mean, waiting_mean=0.0, waited_share=0.0))
        for name, mean in (("w0", 5.0), ("w1", 1.0))
    )
    behind = make_start(prefill_others_s=3.0, prefill_s=0.2)
    finding = the_finding(make_summary(behind, engines=[busy, idle]), Cause.UNEVEN_LOAD)
    # Used for 5/6 and 1/2 of the time: at 2/3 each there would be 2 requests instead of 5.
    assert finding.share == pytest.approx(3.0 * (1 - 2 / 5) / 3.2)


def test_a_setting_that_cuts_prompts_within_a_step_is_found():
    start = make_start(prefill_s=3.0)
    one_by_one = make_engine(settings={"max_num_batched_tokens": 1})
    assert (
        causes(make_summary(start, engines=[one_by_one], workload=make_workload(prompt_p50_tokens=400.0)))[0]
        is Cause.CHUNKS_SMALL
    )
    in_eights = make_engine(settings={"max_num_batched_tokens": 8})
    assert Cause.CHUNKS_SMALL not in causes(
        make_summary(start, engines=[in_eights], workload=make_workload(prompt_p50_tokens=400.0))
    )
