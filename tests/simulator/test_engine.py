"""Batching, chunking, prefixes and preemption of the virtual engine, in virtual time."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.core.errors import ConfigError
from phasewise.simulator.engine import EngineShape
from phasewise.simulator.tokens import END_ID, ContextHash
from tests.fake_engine.engine_builders import (
    SMALL,
    STEP_S,
    make_engine,
    make_request,
    run_to_end,
    tokens_by_request,
)


def expected_words(prompt_ids, count):
    context, words = ContextHash(prompt_ids), []
    for _ in range(count):
        words.append(context.next_word())
        context.extend(words[-1:])
    return words


def test_a_request_prefills_in_one_step_and_decodes_one_token_per_step():
    engine = make_engine()
    engine.add(make_request(prompt=10, max_tokens=3), now=0.0)
    reports = run_to_end(engine)
    steps = [report.step for report in reports]
    assert [(step.prompt_tokens, step.decode_tokens) for step in steps] == [(10, 0), (0, 1), (0, 1)]
    assert [step.first_tokens for step in steps] == [1, 0, 0]
    assert [step.running for step in steps] == [1, 1, 0]
    (ended,) = steps[-1].finished
    assert (ended.reason, ended.output_tokens, ended.cached_tokens) == ("length", 3, 0)


def test_a_request_is_accounted_from_arrival_to_its_last_token():
    engine = make_engine()
    engine.add(make_request(arrived_s=0.5, prompt=20, max_tokens=3, client_id="mine"), now=1.0)
    (ended,) = run_to_end(engine, now=3.0)[-1].step.finished
    assert ended.request_id == "mine"
    assert (ended.queue_s, ended.prefill_s, ended.decode_s, ended.e2e_s) == (2.0, 2.0, 2.0, 6.5)


def test_a_long_prompt_is_cut_to_the_budget():
    engine = make_engine()
    engine.add(make_request(prompt=40, max_tokens=1), now=0.0)
    assert [report.step.prompt_tokens for report in run_to_end(engine)] == [16, 16, 8]


def test_decodes_come_before_prompt_chunks():
    engine = make_engine()
    engine.add(make_request("a", prompt=4, max_tokens=5), now=0.0)
    engine.step(0.0)
    engine.add(make_request("b", prompt=40, max_tokens=1), now=0.5)
    steps = [report.step for report in run_to_end(engine, now=1.0)]
    assert [(step.decode_tokens, step.prompt_tokens) for step in steps] == [(1, 15), (1, 15), (1, 10), (1, 0)]


def test_prompts_are_taken_in_the_order_they_came():
    engine = make_engine()
    for name in "abc":
        engine.add(make_request(name, prompt=12, max_tokens=1), now=0.0)
    firsts = [token.request_id for report in run_to_end(engine) for token in report.emitted]
    assert firsts == ["a", "b", "c"]


def test_no_more_requests_run_than_there_are_seats():
    engine = make_engine(
        EngineShape(64, max_num_seqs=2, max_num_batched_tokens=16, block_size=4, total_blocks=32)
    )
    for name in "abc":
        engine.add(make_request(name, prompt=[ord(name)], max_tokens=3), now=0.0)
    step = engine.step(0.0).step
    assert (step.running, step.waiting) == (2, 1)
    assert all(report.step.running <= 2 for report in run_to_end(engine, now=1.0))


def test_a_repeated_prompt_computes_only_what_is_not_cached():
    engine = make_engine()
    for name in "ab":
        engine.add(make_request(name, prompt=10, max_tokens=1), now=0.0)
        (report,) = run_to_end(engine)
    assert report.step.prompt_tokens == 2
    assert (report.queried_tokens, report.hit_tokens) == (10, 8)
    assert report.step.finished[0].cached_tokens == 8


def test_without_a_prefix_cache_a_repeated_prompt_is_computed_again():
    engine = make_engine(replace(SMALL, prefix_cache=False))
    for name in "ab":
        engine.add(make_request(name, prompt=10, max_tokens=1), now=0.0)
        (report,) = run_to_end(engine)
        assert report.step.prompt_tokens == 10
        assert report.step.finished[0].cached_tokens == 0


def test_requests_of_one_step_share_a_prefix_that_is_computed_in_it():
    engine = make_engine()
    for name in "ab":
        engine.add(make_request(name, prompt=10, max_tokens=1), now=0.0)
    (report,) = run_to_end(engine)
    assert report.step.prompt_tokens == 12


def test_another_salt_shares_nothing():
    engine = make_engine()
    for salt in ("one", "two"):
        engine.add(make_request(salt, prompt=10, max_tokens=1, cache_salt=salt), now=0.0)
        (report,) = run_to_end(engine)
    assert report.hit_tokens == 0


def test_the_block_of_the_last_prompt_token_is_computed_even_if_cached():
    engine = make_engine()
    for name in "ab":
        engine.add(make_request(name, prompt=8, max_tokens=1), now=0.0)
        (report,) = run_to_end(engine)
    assert report.hit_tokens == 4


def test_what_was_written_is_cached_for_the_next_turn():
    engine = make_engine()
    engine.add(make_request("a", prompt=6, max_tokens=7), now=0.0)
    written = [token.token_id for token in tokens_by_request(run_to_end(engine))["a"]]
    turn = (*make_request(prompt=6).prompt_ids, *written, 5, 5, 5)
    engine.add(make_request("b", prompt=turn, max_tokens=1), now=0.0)
    (report,) = run_to_end(engine)
    assert report.hit_tokens == 12


def test_the_least_recently_used_prefix_is_evicted():
    engine = make_engine(
        EngineShape(16, max_num_seqs=1, max_num_batched_tokens=16, block_size=4, total_blocks=4)
    )
    prompts = {"a": [1] * 5, "b": [2] * 5, "c": [3] * 5}
    hits = []
    for name in "abcba":
        engine.add(make_request(f"{name}{len(hits)}", prompt=prompts[name], max_tokens=1), now=0.0)
        (report,) = run_to_end(engine)
        hits.append(report.hit_tokens)
    assert hits == [0, 0, 0, 4, 0]


def test_when_blocks_run_out_the_youngest_is_preempted_and_loses_no_token():
    engine = make_engine(
        EngineShape(32, max_num_seqs=4, max_num_batched_tokens=32, block_size=4, total_blocks=8)
    )
    for name in "ab":
        engine.add(make_request(name, prompt=[ord(name)] * 12, max_tokens=12), now=0.0)
    reports = run_to_end(engine)
    ended = {request.request_id: request for report in reports for request in report.step.finished}
    assert sum(report.step.preempted for report in reports) > 0
    assert ended["a"].preemptions == 0
    assert ended["b"].preemptions > 0
    for name, tokens in tokens_by_request(reports).items():
        assert [token.token_id for token in tokens] == expected_words([ord(name)] * 12, 12)


def test_an_abort_frees_what_a_request_held():
    engine = make_engine()
    engine.add(make_request("a", prompt=20), now=0.0)
    engine.add(make_request("b", prompt=30), now=0.0)
    engine.step(0.0)
    assert engine.abort("a")
    assert engine.abort("b")
    assert not engine.abort("a")
    engine.check_invariants()
    assert (engine.has_work, engine.kv_usage) == (False, 0.0)


def test_an_answer_ends_by_itself_unless_told_not_to():
    shape = EngineShape(64, 8, 16, 4, 32, mean_output_tokens=3)
    engine = make_engine(shape)
    engine.add(make_request("free", max_tokens=50, ignore_eos=False), now=0.0)
    engine.add(make_request("held", max_tokens=50, ignore_eos=False, min_tokens=40), now=0.0)
    engine.add(make_request("bound", max_tokens=50), now=0.0)
    written = tokens_by_request(run_to_end(engine))
    assert written["free"][-1].finish_reason == "stop"
    assert written["free"][-1].token_id == END_ID
    assert len(written["free"]) < 40 < len(written["held"]) <= 50
    assert (len(written["bound"]), written["bound"][-1].finish_reason) == (50, "length")


def test_the_context_bounds_an_answer():
    engine = make_engine()
    engine.add(make_request(prompt=60, max_tokens=50), now=0.0)
    assert len(tokens_by_request(run_to_end(engine))["r"]) == 4


def test_a_step_costs_what_it_carries():
    works = []
    engine = make_engine(cost=lambda work: works.append(work) or STEP_S)
    engine.add(make_request("a", prompt=4, max_tokens=9), now=0.0)
    engine.step(0.0)
    engine.add(make_request("b", prompt=20, max_tokens=1), now=0.0)
    engine.step(1.0)
    engine.step(2.0)
    assert [(work.prompt_tokens, work.decode_tokens, work.requests) for work in works] == [
        (4, 0, 1),
        (15, 1, 2),
        (5, 1, 2),
    ]
    assert [work.attention_token_pairs for work in works] == [10, 120, 5 * 15 + 15]
    assert [work.kv_read_tokens for work in works] == [0, 5, 6]


def test_an_idle_engine_has_no_step():
    assert make_engine().step(0.0) is None


def test_a_request_that_came_after_the_step_began_did_not_wait_a_negative_time():
    engine = make_engine()
    engine.add(make_request(max_tokens=1), now=5.0)
    (report,) = run_to_end(engine, now=4.999)
    assert report.step.finished[0].queue_s == 0.0


@pytest.mark.parametrize(
    "sizes",
    [
        {"max_num_seqs": 0},
        {"max_num_seqs": 64, "max_num_batched_tokens": 32},
        {"max_model_len": 8192, "block_size": 16, "total_blocks": 100},
    ],
)
def test_sizes_that_cannot_work_are_rejected(sizes):
    with pytest.raises(ConfigError):
        EngineShape(**sizes)


def test_a_request_is_rejected_twice_or_without_room():
    engine = make_engine()
    engine.add(make_request("a"), now=0.0)
    with pytest.raises(ValueError, match="already in the engine"):
        engine.add(make_request("a"), now=0.0)
    with pytest.raises(ValueError, match="room"):
        engine.add(make_request("b", prompt=64), now=0.0)


requests = st.lists(
    st.tuples(
        st.integers(1, 40),  # prompt tokens
        st.integers(1, 20),  # output tokens
        st.integers(0, 3),  # which of a few prompt texts, so that prefixes are shared
        st.integers(0, 6),  # steps before it comes
        st.booleans(),  # whether it is aborted, some steps later
    ),
    min_size=1,
    max_size=12,
)
shapes = st.sampled_from(
    [
        SMALL,
        EngineShape(64, max_num_seqs=3, max_num_batched_tokens=8, block_size=4, total_blocks=16),
        EngineShape(64, max_num_seqs=8, max_num_batched_tokens=64, block_size=16, total_blocks=4),
        EngineShape(64, max_num_seqs=8, max_num_batched_tokens=8, block_size=1, total_blocks=64),
    ]
)


@settings(max_examples=150, deadline=None)
@given(shapes, requests)
def test_blocks_are_conserved_and_every_request_ends_once_with_all_its_tokens(shape, asked):
    engine = make_engine(shape)
    waiting = {
        f"r{number}": (steps, make_request(f"r{number}", prompt=[text] * prompt, max_tokens=outputs), aborted)
        for number, (prompt, outputs, text, steps, aborted) in enumerate(asked)
    }
    reports, aborted_ids, now = [], set(), 0.0
    for step_number in range(2000):
        for steps, request, _ in waiting.values():
            if steps == step_number:
                engine.add(request, now)
        for name, (steps, _, aborted) in waiting.items():
            if aborted and steps + 3 == step_number and engine.abort(name):
                aborted_ids.add(name)
        report = engine.step(now)
        engine.check_invariants()
        if report is not None:
            reports.append(report)
            assert report.work.prompt_tokens + report.work.decode_tokens <= shape.max_num_batched_tokens
            now = report.step.ended_unix_s
        elif step_number > 10:
            break
    ended = [request.request_id for report in reports for request in report.step.finished]
    assert sorted(ended) == sorted(set(waiting) - aborted_ids)
    assert engine.kv_usage == 0.0
    written = tokens_by_request(reports)
    for name in ended:
        request = waiting[name][1]
        assert [token.index for token in written[name]] == list(range(request.max_tokens))
        assert [token.token_id for token in written[name]] == expected_words(
            request.prompt_ids, request.max_tokens
        )
