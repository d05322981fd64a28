# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from benchmarks.copying import COPYING
from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop, Replay
from phasewise.benchmark.workload.drafts import CHARACTERS_PER_TOKEN, Conversations, Written
from phasewise.benchmark.workload.plan import PLAN_LIMIT, Plan, PlanSpec, make_plan, refitted
from phasewise.benchmark.workload.presets import Lengths
from phasewise.benchmark.workload.prompts import write_opening
from phasewise.core.errors import ConfigError

THREE = Written("test", ("Say one.", "Say two.", "Say three."), 8)


def plan_of(written: Written = THREE, requests: int = 7, seed: int = 1, opening: str = "") -> Plan:
    return make_plan(PlanSpec(written, ClosedLoop(2), requests), Random(seed), opening)


def texts(plan: Plan) -> list[str]:
    return [message.content for planned in plan.requests for message in planned.messages]


def test_prompts_are_sent_as_they_are_round_and_round_in_one_shuffled_order():
    asked = texts(plan_of(requests=7))
    assert set(asked[:3]) == set(THREE.prompts)
    assert asked == (asked[:3] * 3)[:7]
    assert len({tuple(texts(plan_of(requests=3, seed=seed))) for seed in range(20)}) == 6


def test_the_same_seed_gives_the_same_plan():
    opening = write_opening(Random(3))
    assert plan_of(seed=5, opening=opening) == plan_of(seed=5, opening=opening)


def test_a_run_with_an_opening_begins_every_prompt_with_words_of_its_own():
    opening = write_opening(Random(3))
    asked = texts(plan_of(requests=9, opening=opening))
    notes = [text.partition("\n\n")[0] for text in asked]
    assert all(note.startswith(f"Note: {opening} ") for note in notes)
    assert len(set(notes)) == 9
    prompts = Counter(text.partition("\n\n")[2] for text in asked)
    assert prompts == dict.fromkeys(THREE.prompts, 3)


def test_another_opening_changes_nothing_but_the_opening():
    one, other = (plan_of(opening=write_opening(Random(seed))) for seed in (1, 2))
    assert [text.split()[7:] for text in texts(one)] == [text.split()[7:] for text in texts(other)]
    assert [planned.max_tokens for planned in one.requests] == [it.max_tokens for it in other.requests]


def test_what_an_earlier_request_had_in_its_place_is_not_fresh():
    first_round, second_round = plan_of(requests=6).requests[:3], plan_of(requests=6).requests[3:]
    assert all(planned.fresh_words == 2 for planned in first_round)
    assert all(planned.fresh_words == 0 for planned in second_round)
    opened = plan_of(requests=6, opening="a b c d e f").requests
    # `Note:` and the opening are every request's, all behind them is one's own.
    assert all(planned.shared_words == 7 and planned.fresh_words > 0 for planned in opened)


def test_outputs_have_the_length_asked_for_or_are_drawn():
    assert {planned.max_tokens for planned in plan_of().requests} == {8}
    drawn = plan_of(Written("test", ("Go on.",), Lengths(50, 0.5, 10, 100)), requests=20)
    outputs = {planned.max_tokens for planned in drawn.requests}
    assert len(outputs) > 5
    assert 10 <= min(outputs) <= max(outputs) <= 100


def test_arrivals_and_ends_are_those_of_the_load():
    plan = make_plan(PlanSpec(THREE, OpenLoop(10.0), duration_s=2.0), Random(1))
    times_s = [planned.at_s for planned in plan.requests]
    assert 5 < len(times_s) < 40
    assert times_s == sorted(times_s)
    assert max(times_s) < 2.0


def test_a_plan_that_could_hold_no_more_says_so():
    plan = make_plan(PlanSpec(THREE, ClosedLoop(2000), duration_s=1000.0), Random(1))
    assert (len(plan.requests), plan.full) == (PLAN_LIMIT, True)
    assert not plan_of().full


def test_a_tokenizer_that_counts_otherwise_changes_no_text():
    planned = plan_of().requests[0]
    assert refitted(planned, 3, Random(1)) == planned
    assert refitted(planned, 300, Random(1)) == planned


def test_prompts_that_do_not_fit_the_context_are_rejected():
    with pytest.raises(ConfigError, match="do not fit a context of 512"):
        make_plan(
            PlanSpec(Written("test", ("word " * 500,), 8), ClosedLoop(1), 1, context_tokens=512), Random(1)
        )


@pytest.mark.parametrize("prompts", [(), ("",), ("Say one.", "")])
def test_no_prompt_is_rejected(prompts):
    with pytest.raises(ConfigError, match="without prompts"):
        Written("test", prompts, 8)


def test_conversations_and_replays_need_another_source():
    with pytest.raises(ConfigError, match="conversations cannot be combined with written prompts"):
        PlanSpec(THREE, ClosedLoop(1), 3, conversations=Conversations(2, 0.0))
    with pytest.raises(ConfigError, match="a replay needs a trace"):
        PlanSpec(THREE, Replay(), 3)
    with pytest.raises(ConfigError, match="the run has no end"):
        PlanSpec(THREE, ClosedLoop(1))


def test_the_texts_have_no_prompt_twice_and_fit_a_small_context():
    written = COPYING
    assert len(set(written.prompts)) == len(written.prompts) >= 6
    assert make_plan(PlanSpec(written, ClosedLoop(1), 20, context_tokens=1024), Random(1)).requests


def test_no_copy_runs_off_the_end_of_its_passage():
    for prompt in COPYING.prompts:
        passage = prompt.partition("\n\n")[2]
        assert len(passage) // CHARACTERS_PER_TOKEN > COPYING.output.high_tokens
