from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from phasewise.benchmark.notes import notes_on
from phasewise.benchmark.run import CUT_SHORT, BenchRun
from phasewise.benchmark.statistics.window import Window
from phasewise.benchmark.target import Target
from phasewise.benchmark.workload.arrivals import ClosedLoop, Load, OpenLoop, Replay
from phasewise.benchmark.workload.drafts import PlannedRequest
from phasewise.benchmark.workload.plan import Fit, Plan, PlanSpec, make_plan
from phasewise.benchmark.workload.presets import PRESETS, PresetName
from phasewise.core.timeline import Outcome, Timeline
from tests.builders import make_timeline

WINDOW = Window(0.0, 10.0, warm_up_requests=0, judged=True, settled=True)


def make_threads(*turns: int) -> Plan:
    """A plan of threads with so many turns each."""
    index, threads = 0, []
    for count in turns:
        threads.append(tuple(PlannedRequest(index + turn, None, (), 3, 100, turn) for turn in range(count)))
        index += count
    return Plan(tuple(threads), OpenLoop(1.0), None, fit=Fit(len(threads)))


def sent(index: int, **more) -> Timeline:
    return make_timeline(request_id=f"bench-1a2b-{index}", **more)


def failed(index: int, outcome: Outcome = Outcome.FAILED, reason: str = "http_500") -> Timeline:
    return sent(index, outcome=outcome, reason=reason, prompt_tokens=None, cached_tokens=None)


def make_run(plan: Plan, *timelines: Timeline, **more) -> BenchRun:
    return BenchRun(Target("http://e", "m"), plan, timelines, **{"wall_s": 10.0, **more})


def note_with(run: BenchRun, words: str) -> str | None:
    found = [note for note in notes_on(run, WINDOW, None) if words in note]
    assert len(found) <= 1
    return found[0] if found else None


def test_the_gateways_words_for_its_rejections_come_before_all_but_warnings():
    words = "no worker of the model 'm' answers: a is down"
    run = make_run(make_threads(1), failed(0), rejections={"no_healthy_worker": words}, cut_short=True)
    assert notes_on(run, WINDOW, None)[1] == f"The gateway's words for no_healthy_worker: {words}"


def test_prompts_that_are_all_exact_need_no_note():
    run = make_run(make_threads(1, 1), sent(0), sent(1))
    assert note_with(run, "rule of thumb") is None
    assert note_with(run, "exactly as long") is None


def test_only_a_silent_tokenizer_is_called_silent():
    plan = make_threads(1, 1, 1)
    assert "no tokenizer answered" in note_with(make_run(replace(plan, fit=None)), "rule of thumb")
    limited = make_run(replace(plan, fit=Fit(1)), sent(0), sent(1))
    assert note_with(limited, "rule of thumb") == (
        "Only the first 1 of 3 planned prompts were counted by the tokenizer, to keep the wait short; of the "
        "others, 1 were sent with lengths by a rule of thumb."
    )
    assert note_with(limited, "no tokenizer answered") is None


def test_prompts_that_could_not_be_made_exact_are_counted():
    run = make_run(replace(make_threads(1, 1, 1), fit=Fit(3, off=2, most_off_tokens=4)), sent(0))
    assert note_with(run, "exactly as long").startswith("2 of 3 prompts could not")
    assert "up to 4 tokens off" in note_with(run, "exactly as long")
    assert note_with(run, "rule of thumb") is None


def test_a_shape_that_was_cut_to_the_context_is_told_with_what_it_was():
    spec = PlanSpec(PRESETS[PresetName.RAG], ClosedLoop(1), 2, context_tokens=2048)
    run = make_run(make_plan(spec, Random(0)))  # noqa: S311 - a seed makes the test repeat
    assert note_with(run, "were cut") == (
        "Prompts were cut to fit a context of 2,048 tokens: median 1,600 instead of 2,400, longest 1,600 "
        "instead of 6,144."
    )
    assert note_with(make_run(make_threads(1)), "were cut") is None


@pytest.mark.parametrize("load", [Replay(), OpenLoop(1.0), ClosedLoop(2)])
def test_a_plan_that_could_not_hold_all_that_was_due_is_told(load: Load):
    plan = replace(make_threads(1, 1), load=load)
    assert note_with(make_run(plan), "than a plan may hold") is None
    assert "with the first 2." in note_with(make_run(replace(plan, full=True)), "than a plan may hold")


def test_a_closed_loop_ended_by_time_misses_nothing_of_a_full_plan_until_it_is_used_up():
    plan = replace(make_threads(1, 1), load=ClosedLoop(1), duration_s=60.0, full=True)
    in_time = make_run(plan, sent(0))
    assert note_with(in_time, "plan") is None
    assert "it holds 2 requests at most" in note_with(make_run(plan, sent(0), sent(1)), "used up")
    faster = make_run(replace(plan, full=False), sent(0), sent(1))
    assert "faster than planned for" in note_with(faster, "used up")


def test_turns_behind_a_failed_one_are_counted_as_not_sent():
    plan = make_threads(3, 3, 1, 3)
    run = make_run(
        plan, failed(0), sent(3), failed(4, Outcome.TIMED_OUT), failed(6), sent(7), sent(8), sent(9)
    )
    assert note_with(run, "later turns") == ("3 later turns were not sent because a turn before them failed.")


def test_turns_that_the_runs_end_left_over_are_not_blamed_on_a_failure():
    plan = make_threads(2, 2)
    assert note_with(make_run(plan, sent(0), sent(1)), "later turns") is None
    assert note_with(make_run(plan, sent(0), sent(1), sent(2), failed(3)), "later turns") is None
    stopped = make_run(plan, failed(0, Outcome.CANCELLED, CUT_SHORT), cut_short=True)
    assert note_with(stopped, "later turns") is None


def test_a_warm_run_whose_prompts_had_left_the_cache_says_so():
    plan = make_threads(1, 1, 1)
    run = make_run(plan, sent(0, cached_tokens=96), sent(1, cached_tokens=0), sent(2, cached_tokens=64))
    assert note_with(run, "not warm") is None
    assert "only 160 of 300 prompt tokens" in note_with(replace(run, primed=True), "not warm")


def test_a_warm_run_that_found_its_prompts_is_not_doubted():
    run = make_run(make_threads(1, 1), sent(0, cached_tokens=80), sent(1, cached_tokens=80), primed=True)
    assert note_with(run, "warm") is None


def test_later_turns_say_nothing_of_a_cache_that_was_warmed_for_first_ones():
    cold_later = make_run(make_threads(2), sent(0, cached_tokens=96), sent(1, cached_tokens=0), primed=True)
    assert note_with(cold_later, "warm") is None
    warm_later = make_run(make_threads(2), sent(0, cached_tokens=0), sent(1, cached_tokens=96), primed=True)
    assert "only 0 of 100 prompt tokens" in note_with(warm_later, "not warm")


def test_a_server_that_tells_nothing_of_its_cache_leaves_warmth_open():
    run = make_run(make_threads(1, 1), sent(0, cached_tokens=None), failed(1), primed=True)
    assert "cannot be determined" in note_with(run, "cache was warm")
    assert note_with(make_run(make_threads(1), failed(0), primed=True), "warm") is None
