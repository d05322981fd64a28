"""Advice follows from the summary: values are chosen by what was seen, and nothing is suggested twice."""

import dataclasses

import pytest
import yaml

from phasewise.diagnosis.advice.choose import REMEDIES, USELESS, advise, engines_back_first
from phasewise.diagnosis.advice.fix import Figure
from phasewise.diagnosis.analysis.engine_load import Drafts, EngineLoad, EngineSurroundings, SeenBy, StepShape
from phasewise.diagnosis.analysis.prefix_use import PrefixUse
from phasewise.diagnosis.analysis.window_summary import WindowSummary, WorkloadShape
from phasewise.diagnosis.finding import Cause, Confidence, Finding, Phase
from phasewise.fleet.config import FleetConfig, Levers
from tests.diagnosis.summaries import make_start

LOAD = EngineLoad(
    running_mean=3.0, running_max=4, waiting_mean=2.0, waiting_max=7, kv_usage_max=0.3,
    waited_share=0.5, kv_full_share=0.0, capped_share=1.0, growth=0.0,
)  # fmt: skip
STEPS = StepShape(
    steps=100, busy_share=0.9, chunk_p50_tokens=900.0, budget_tokens=2048, decode_step_p50_s=0.05,
    lone_step_s=0.05, tokens_per_stream_step=1.0,
)  # fmt: skip


def make_engine(**fields):
    return EngineSurroundings(
        **{"name": "e0", "requests": 40, "kv_tokens": 40_000, "engine_load": LOAD, "steps": STEPS, **fields}
    )


def make_summary(*engines, prompt_tokens=900.0, output_tokens=100.0):
    workload = WorkloadShape(
        requests=40, rate_per_s=1.0, prompt_p50_tokens=prompt_tokens, prompt_p90_tokens=prompt_tokens,
        output_p50_tokens=output_tokens, output_p90_tokens=output_tokens, cached_share=0.0, shared_share=0.0,
    )  # fmt: skip
    return WindowSummary(40.0, SeenBy.GATEWAY, None, None, workload, (), engines=engines or (make_engine(),))


def advice_on(cause, summary=None, phase=Phase.START):
    finding = Finding(phase, cause, 0.8, 10.0, (), Confidence.HIGH, "")
    return advise(finding, summary or make_summary())


def levers_of(advice):
    return [(fix.lever.name, fix.lever.value) for fix in advice.fixes if fix.lever is not None]


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_has_something_to_do_and_something_that_would_not_help(cause):
    advice = advice_on(cause)
    assert advice.fixes
    assert advice.would_not_help
    assert set(REMEDIES) == set(USELESS) == set(Cause)


@pytest.mark.parametrize("cause", list(Cause))
def test_every_lever_is_one_that_a_fleet_file_takes_with_the_very_value(cause):
    for fix in advice_on(cause).fixes:
        if fix.lever is None:
            continue
        assert fix.verify.startswith("phasewise ")
        if fix.lever.name == "replicas":
            FleetConfig.model_validate({"pools": [{"replicas": fix.lever.value}]})
        elif fix.lever.times is None:
            Levers.model_validate({fix.lever.name: fix.lever.fleet_value})
            line = yaml.safe_load(fix.fleet_line)["pools"][0]["levers"]
            assert line == {fix.lever.name: fix.lever.fleet_value}


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("fleet", [(), (make_engine(engine_load=None, steps=None, kv_tokens=None),)])
def test_advice_is_given_from_counters_alone(cause, fleet):
    summary = dataclasses.replace(make_summary(), engines=fleet)
    assert all("None" not in fix.what for fix in advice_on(cause, summary).fixes)


def test_a_chunk_that_stalls_streams_is_cut_to_a_quarter():
    advice = advice_on(Cause.CHUNKS_STALL, phase=Phase.STREAM)
    assert levers_of(advice) == [("max_num_batched_tokens", 512)]
    assert advice.fixes[0].engine_flag == "--max-num-batched-tokens 512"
    assert advice.fixes[0].aims_at is Figure.ITL_P99


@pytest.mark.parametrize(("budget", "running", "chosen"), [(512, 4, 128), (256, 4, 128), (2048, 200, 512)])
def test_a_chunk_leaves_room_for_streams_and_stays_worth_a_step(budget, running, chosen):
    engine = make_engine(
        steps=dataclasses.replace(STEPS, budget_tokens=budget),
        engine_load=dataclasses.replace(LOAD, running_max=running),
    )
    advice = advice_on(Cause.CHUNKS_STALL, make_summary(engine), Phase.STREAM)
    assert levers_of(advice) == [("max_num_batched_tokens", chosen)]


def test_no_smaller_chunk_is_suggested_where_none_is_sane():
    engine = make_engine(steps=dataclasses.replace(STEPS, budget_tokens=128))
    assert levers_of(advice_on(Cause.CHUNKS_STALL, make_summary(engine), Phase.STREAM)) == []


@pytest.mark.parametrize(("budget", "chosen"), [(64, 1024), (512, 1024), (1024, 2048), (4096, 8192)])
def test_a_small_chunk_is_doubled_until_it_holds_an_ordinary_prompt(budget, chosen):
    engine = make_engine(steps=dataclasses.replace(STEPS, budget_tokens=budget))
    advice = advice_on(Cause.CHUNKS_SMALL, make_summary(engine))
    assert levers_of(advice) == [("max_num_batched_tokens", chosen)]


def test_a_higher_cap_takes_in_all_who_waited():
    assert levers_of(advice_on(Cause.BATCH_CAP_LOW))[0] == ("max_num_seqs", 11)


def test_a_higher_cap_is_no_more_than_the_kv_cache_holds():
    assert levers_of(advice_on(Cause.BATCH_CAP_LOW, make_summary(make_engine(kv_tokens=6_500))))[0] == (
        "max_num_seqs",
        6,
    )
    full = make_summary(make_engine(kv_tokens=3_000))
    assert ("max_num_seqs", 3) not in levers_of(advice_on(Cause.BATCH_CAP_LOW, full))


def test_a_lower_cap_is_half_of_what_ran():
    assert levers_of(advice_on(Cause.BATCH_CAP_HIGH, phase=Phase.STREAM))[0] == ("max_num_seqs", 2)


def test_an_engine_that_is_out_of_service_is_brought_back_before_one_is_added():
    summary = make_summary(
        make_engine(), make_engine(name="b", out_of_service="down for 15 seconds (refused)")
    )
    ranked = engines_back_first(advice_on(Cause.OVERLOAD, summary), Cause.OVERLOAD, summary)
    assert ranked.fixes[0].what.startswith("bring b back, which is down for 15 seconds (refused): ")
    assert ranked.fixes[1:] == advice_on(Cause.OVERLOAD, summary).fixes


def test_an_engine_that_is_out_of_service_is_no_advice_where_another_engine_would_not_help():
    summary = make_summary(make_engine(), make_engine(name="b", out_of_service="down"))
    advice = advice_on(Cause.LONG_PROMPTS, summary)
    assert engines_back_first(advice, Cause.LONG_PROMPTS, summary) is advice


def test_one_engine_more_than_there_are():
    two = make_summary(make_engine(), make_engine(name="e1"))
    assert ("replicas", 3) in levers_of(advice_on(Cause.OVERLOAD, two))


def test_what_is_on_is_not_turned_on():
    cached = make_summary(make_engine(prefix_cache_on=True))
    assert levers_of(advice_on(Cause.PREFIX_CACHE_OFF, cached)) == []
    guessing = make_summary(make_engine(drafts=Drafts(100, 500, 300)))
    names = [name for name, _ in levers_of(advice_on(Cause.DECODE_FLOOR, guessing, Phase.STREAM))]
    assert "speculation" not in names


def test_memory_is_doubled_and_reported_in_tokens():
    fix = advice_on(Cause.KV_EXHAUSTED).fixes[0]
    assert (fix.lever.name, fix.lever.times) == ("kv_cache_memory_bytes", 2.0)
    assert "80,000 tokens instead of 40,000" in fix.what


def test_a_cause_of_either_phase_is_judged_by_the_phase_that_lost_time():
    assert advice_on(Cause.KV_EXHAUSTED).fixes[0].aims_at is Figure.TTFT_P50
    assert advice_on(Cause.KV_EXHAUSTED, phase=Phase.STREAM).fixes[0].aims_at is Figure.TPOT_P50


def test_only_the_first_change_is_verified_by_one_command():
    first, *others = [fix for fix in advice_on(Cause.KV_EXHAUSTED).fixes if fix.lever is not None]
    assert "phasewise compare FLEET.yaml --fix --trace window.jsonl (from --save-traffic)" in first.verify
    assert all(fix.verify.startswith("phasewise compare") for fix in others)


def test_levers_of_the_other_phase_are_named_as_useless():
    start, stream = advice_on(Cause.LONG_PROMPTS), advice_on(Cause.DECODE_WEIGHTS, phase=Phase.STREAM)
    assert any(words.startswith("speculative decoding") for words in start.would_not_help)
    assert any(words.startswith("prefix caching") for words in stream.would_not_help)


def test_the_semantic_cache_comes_with_a_line_that_a_fleet_file_accepts():
    fixes = [fix for cause in Cause for fix in advice_on(cause).fixes if "semantic cache" in fix.what]
    assert fixes
    for fix in fixes:
        assert FleetConfig.model_validate(yaml.safe_load(fix.fleet_line)).gateway.cache.semantic


def test_prompts_that_stall_streams_are_sent_elsewhere_by_lines_in_the_fleet_file():
    lines = [fix.fleet_line for fix in advice_on(Cause.CHUNKS_STALL).fixes if fix.fleet_line]
    assert any("role: prefill" in line and "role: decode" in line for line in lines)


def test_a_prefix_that_is_scattered_is_kept_together_by_a_line_in_the_fleet_file():
    advice = advice_on(Cause.PREFIX_SCATTERED)
    assert [fix.fleet_line for fix in advice.fixes] == ["gateway: {policy: prefix_affinity}"]


@pytest.mark.parametrize(
    ("shared", "first"), [(0.0, "put the shared part of a prompt first"), (0.8, "use one cache salt")]
)
def test_a_prefix_that_is_not_reused_may_be_salted_or_behind_another_head(shared, first):
    use = PrefixUse(shared, shared, shared, 0.0, repeated=0.9)
    advice = advice_on(Cause.PREFIX_SALTED, dataclasses.replace(make_summary(), prefix=use))
    assert len(advice.fixes) == 2
    assert advice.fixes[0].what.startswith(first)


def test_prompts_are_said_to_have_little_in_common_only_where_that_is_known():
    def denied(use):
        advice = advice_on(Cause.LONG_PROMPTS, dataclasses.replace(make_summary(), prefix=use))
        return any("prefix caching" in words for words in advice.would_not_help)

    assert denied(PrefixUse(0.05, 0.05, 0.05, 0.0))
    assert not denied(PrefixUse(0.6, 0.6, 0.6, 0.6))
    assert not denied(None)


def test_attempts_that_fail_are_looked_into_before_the_gateway_is():
    failed = make_start(earlier_attempts_s=2.0, gateway_wait_s=0.1)
    held = make_start(earlier_attempts_s=0.1, gateway_wait_s=2.0)
    first = [
        advice_on(Cause.GATEWAY, dataclasses.replace(make_summary(), start=start)).fixes[0].what
        for start in (failed, held)
    ]
    assert "why attempts" in first[0]
    assert "another gateway process" in first[1]


def test_prompts_that_may_repeat_each_other_are_tried_first_and_the_other_fixes_follow():
    rivals = Finding(Phase.STREAM, Cause.CHUNKS_STALL, 0.8, 10.0, (), Confidence.MEDIUM, "")
    rivals = dataclasses.replace(rivals, rival=Cause.PREFIX_SALTED)
    first, *others = advise(rivals, make_summary()).fixes
    assert "cache salt" in first.what
    assert any("smaller chunks" in fix.what for fix in others)


def test_a_prefix_cache_that_is_off_is_turned_on_unless_prompts_have_little_in_common():
    off = make_summary(make_engine(prefix_cache_on=False))
    assert levers_of(advice_on(Cause.LONG_PROMPTS, off)) == [("prefix_cache", True)]
    apart = dataclasses.replace(off, prefix=PrefixUse(0.01, 0.01, 0.01, 0.0))
    assert levers_of(advice_on(Cause.LONG_PROMPTS, apart)) == []


def test_smaller_chunks_come_last_where_prompts_start_late():
    late = dataclasses.replace(make_summary(), start=make_start(requests=40, late=30))
    *_, last = advice_on(Cause.CHUNKS_STALL, late, Phase.STREAM).fixes
    assert last.lever.name == "max_num_batched_tokens"


@pytest.mark.parametrize(("kv_tokens", "times"), [(11_000, 2), (4_000, 3), (1_200, 8)])
def test_the_kv_cache_grows_to_what_ran_and_waited(kv_tokens, times):
    fix = advice_on(Cause.KV_EXHAUSTED, make_summary(make_engine(kv_tokens=kv_tokens))).fixes[0]
    assert fix.lever.times == times
    assert f"for {times * kv_tokens:,} tokens instead of {kv_tokens:,}" in fix.what
