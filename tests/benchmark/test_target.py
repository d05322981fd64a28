# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import orjson
import pytest

from phasewise.benchmark import target as target_module
from phasewise.benchmark.target import (
    FIT_AT_ONCE,
    Target,
    count_prompt_tokens,
    find_target,
    fit_prompts,
    request_headers,
)
from phasewise.benchmark.workload.arrivals import ClosedLoop, Replay
from phasewise.benchmark.workload.drafts import Conversations, Written
from phasewise.benchmark.workload.plan import Fit, Plan, PlanSpec, make_plan
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.benchmark.workload.prompts import write_opening
from phasewise.benchmark.workload.traces import Trace, TracedRequest
from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import ConfigError, EngineUnreachable
from tests.benchmark.scripted_server import Asked, scripted_server


def make_run_plan(prompt_tokens: int = 60) -> Plan:
    shape = Shape("test.", Lengths.fixed(prompt_tokens), Lengths.fixed(4))
    return make_plan(PlanSpec(shape, ClosedLoop(1), 3), Random(1))


def models(*names: str) -> bytes:
    return orjson.dumps({"data": [{"id": name, "max_model_len": 2048} for name in names]})


async def find(status: int, body: bytes, **more) -> Target:
    async with scripted_server(lambda asked: (status, [body])) as url:
        client = HttpClient(url)
        try:
            return await find_target(client, **more)
        finally:
            client.close()


async def test_the_first_model_served_is_taken_with_its_context():
    target = await find(200, models("a", "b"))
    assert (target.model, target.context_tokens) == ("a", 2048)
    assert (await find(200, models("a", "b"), model="b")).model == "b"


async def test_a_model_that_is_not_served_is_rejected_with_those_that_are():
    with pytest.raises(ConfigError, match="it serves a, b"):
        await find(200, models("a", "b"), model="c")


async def test_a_server_that_lists_no_models_is_believed_if_one_is_named():
    assert (await find(404, b"no", model="a")).model == "a"
    with pytest.raises(ConfigError, match="--model"):
        await find(404, b"no")


async def test_a_missing_key_is_named_and_a_given_one_never_shown():
    with pytest.raises(ConfigError, match="PHASEWISE_API_KEY"):
        await find(401, b"{}")
    target = await find(200, models("a"), api_key="sk-hidden")
    assert (b"authorization", b"Bearer sk-hidden") in target.headers
    assert "sk-hidden" not in repr(target)


def test_what_stands_around_a_key_is_not_sent():
    assert (b"authorization", b"Bearer sk-hidden") in request_headers(" sk-hidden\r\n")
    assert [name for name, _ in request_headers(" \n")] == [name for name, _ in request_headers(None)]


@pytest.mark.parametrize("between", ["\n", "\r\nx-other: 1", "\0", "\x7f", "\u2028", "\udcff"])
def test_a_key_that_would_end_its_header_is_rejected_and_not_shown(between):
    with pytest.raises(ConfigError, match="cannot be sent") as error:
        request_headers(f"sk-hidden{between}rest")
    assert "hidden" not in str(error.value)


async def test_an_address_where_nothing_answers_is_one_sentence():
    async with scripted_server(lambda asked: (200, [])) as url:
        pass
    with pytest.raises(EngineUnreachable, match="nothing answers at"):
        await find_target(HttpClient(url))


def counted_words(asked: Asked) -> int:
    assert asked.path == "/tokenize"
    return sum(len(message["content"].split()) for message in asked.body["messages"])


async def fit(plan: Plan, count: Callable[[int], int], asked_for: list[int] | None = None) -> Plan:
    def answer(asked: Asked):
        words = counted_words(asked)
        if asked_for is not None:
            asked_for.append(words)
        return 200, [orjson.dumps({"count": count(words)})]

    async with scripted_server(answer) as url:
        client = HttpClient(url)
        try:
            fitted = await fit_prompts(client, Target(url, "m"), plan, Random(0))
            asked_for = None
            for planned in fitted.requests:
                if planned.turn == 0:
                    counted = await count_prompt_tokens(client, Target(url, "m"), planned.messages)
                    assert counted == planned.prompt_tokens
            return fitted
        finally:
            client.close()


@pytest.mark.parametrize("template_tokens", [0, 12, 31])
async def test_prompts_are_made_exact_whatever_the_template_adds(template_tokens):
    fitted = await fit(make_run_plan(60), lambda words: words + template_tokens)
    assert fitted.exact_prompts
    assert fitted.fit == Fit(counted=3)
    assert {planned.prompt_tokens for planned in fitted.requests} == {60}


async def test_a_template_longer_than_the_prompt_asked_for_is_planned_as_it_is():
    fitted = await fit(make_run_plan(20), lambda words: words + 40)
    assert {planned.prompt_tokens for planned in fitted.requests} == {41}
    assert fitted.fit == Fit(counted=3, off=3, most_off_tokens=21)
    assert not fitted.exact_prompts


async def test_prompts_whose_words_are_all_split_are_called_off_by_what_they_are():
    # Words of two tokens each and a template of nine: an even length cannot be met.
    shape = Shape("t.", Lengths(60, 0.3, 30, 90), Lengths.fixed(4))
    plan = make_plan(PlanSpec(shape, ClosedLoop(1), 20), Random(1))
    fitted = await fit(plan, lambda words: 9 + 2 * words)
    even = sum(planned.prompt_tokens % 2 == 0 for planned in plan.requests)
    assert 0 < even < 20
    assert fitted.fit.off == even
    assert not fitted.exact_prompts


async def test_prompts_are_made_exact_where_words_are_split():
    def answer(asked: Asked):
        text = " ".join(message["content"] for message in asked.body["messages"])
        return 200, [orjson.dumps({"count": 9 + sum(1 + len(word) // 4 for word in text.split())})]

    shape = Shape("t.", Lengths(120, 0.5, 60, 400), Lengths.fixed(4))
    plan = make_plan(PlanSpec(shape, ClosedLoop(1), 60), Random(1))
    async with scripted_server(answer) as url:
        client = HttpClient(url)
        fitted = await fit_prompts(client, Target(url, "m"), plan, Random(0))
        client.close()
    assert [r.prompt_tokens for r in fitted.requests] == [r.prompt_tokens for r in plan.requests]


async def test_a_prompt_that_can_get_no_shorter_is_not_tried_again_and_again():
    asked_for: list[int] = []
    await fit(make_run_plan(20), lambda words: words + 40, asked_for)
    assert len(asked_for) == 3 * 2


async def test_fitting_leaves_the_system_prompt_alone():
    shape = Shape("t.", Lengths.fixed(60), Lengths.fixed(4), shared_prefix_tokens=30, shared_share=1.0)
    plan = make_plan(PlanSpec(shape, ClosedLoop(1), 3), Random(1))
    fitted = await fit(plan, lambda words: words + 25)
    assert {planned.messages[0] for planned in fitted.requests} == {plan.requests[0].messages[0]}
    assert {planned.prompt_tokens for planned in fitted.requests} == {60}


def trace_plan(opening: str = "") -> Plan:
    ids = [(1, 2, 3), (1, 2, 3), (1, 2), (1, 2, 4), ()]
    lengths = [40, 40, 32, 34, 40]
    requests = tuple(
        TracedRequest(0.0, tokens, 2, blocks) for tokens, blocks in zip(lengths, ids, strict=True)
    )
    return make_plan(PlanSpec(Trace("t", requests, block_tokens=16), Replay()), Random(1), opening)


@pytest.mark.parametrize("template_tokens", [0, 5, 12, 31])
async def test_equal_prompts_of_a_trace_stay_equal_and_full_blocks_untouched(template_tokens):
    plan = trace_plan()
    fitted = await fit(plan, lambda words: words + template_tokens)
    texts = [planned.messages[0].content.split() for planned in fitted.requests]
    assert texts[0] == texts[1]
    assert (
        texts[0][:32] == texts[2][:32] == texts[3][:32] == plan.requests[0].messages[0].content.split()[:32]
    )
    assert fitted.requests[4].prompt_tokens == 40
    assert fitted.requests[0].prompt_tokens == max(44, 32 + template_tokens)


async def test_an_opening_changes_no_word_that_fitting_adds():
    plain = await fit(trace_plan(), lambda words: words)
    cold = await fit(trace_plan(write_opening(Random(3))), lambda words: words)
    for before, after in zip(plain.requests, cold.requests, strict=True):
        assert before.messages[0].content.split()[6:] == after.messages[0].content.split()[6:]


async def test_fitting_the_same_plan_twice_gives_the_same_prompts():
    plan = make_run_plan()
    assert await fit(plan, lambda words: words + 3) == await fit(plan, lambda words: words + 3)


async def test_only_first_turns_are_fitted_and_later_ones_estimated_anew():
    shape = Shape("t.", Lengths.fixed(20), Lengths.fixed(4))
    plan = make_plan(PlanSpec(shape, ClosedLoop(1), 4, conversations=Conversations(2, 1.0)), Random(1))
    asked_for: list[int] = []
    fitted = await fit(plan, lambda words: words + 40, asked_for)
    assert fitted.fit == Fit(counted=2, off=2, most_off_tokens=21)
    assert len(asked_for) == 2 * 2
    for before, after in zip(plan.threads, fitted.threads, strict=True):
        assert after[0].prompt_tokens == 41
        assert after[1].messages == before[1].messages
        assert after[1].prompt_tokens == before[1].prompt_tokens + 21


async def test_the_tokenizer_is_asked_about_several_prompts_at_once_but_not_all():
    shape = Shape("t.", Lengths.fixed(60), Lengths.fixed(4))
    plan = make_plan(PlanSpec(shape, ClosedLoop(1), 40), Random(1))
    open_now = most_open = 0

    class CountingClient(HttpClient):
        async def fetch(self, *args, **more):
            nonlocal open_now, most_open
            open_now += 1
            most_open = max(most_open, open_now)
            try:
                await asyncio.sleep(0)
                return await super().fetch(*args, **more)
            finally:
                open_now -= 1

    def answer(asked: Asked):
        return 200, [orjson.dumps({"count": counted_words(asked) + 9})]

    async with scripted_server(answer) as url:
        client = CountingClient(url)
        fitted = await fit_prompts(client, Target(url, "m"), plan, Random(0))
        client.close()
    assert fitted.exact_prompts
    assert most_open == FIT_AT_ONCE
    assert [planned.index for planned in fitted.requests] == list(range(40))


async def test_one_prompt_that_is_not_counted_makes_the_plan_inexact():
    asked_before = 0

    def answer(asked: Asked):
        nonlocal asked_before
        asked_before += 1
        return (200, [orjson.dumps({"count": counted_words(asked)})]) if asked_before < 4 else (500, [b""])

    plan = make_run_plan()
    async with scripted_server(answer) as url:
        client = HttpClient(url)
        fitted = await fit_prompts(client, Target(url, "m"), plan, Random(0))
        client.close()
    assert fitted == plan


async def test_of_very_many_prompts_those_sent_first_are_fitted(monkeypatch):
    monkeypatch.setattr(target_module, "FIT_LIMIT", 2)
    plan = make_run_plan(60)

    def answer(asked: Asked):
        return 200, [orjson.dumps({"count": counted_words(asked) + 5})]

    async with scripted_server(answer) as url:
        client = HttpClient(url)
        fitted = await fit_prompts(client, Target(url, "m"), plan, Random(0))
        client.close()
    assert fitted.fit == Fit(counted=2)
    assert not fitted.exact_prompts
    lengths = [len(planned.messages[0].content.split()) for planned in fitted.requests]
    assert lengths == [55, 55, 48]


async def test_without_a_tokenizer_the_plan_stays_and_says_so():
    plan = make_run_plan()
    async with scripted_server(lambda asked: (404, [b"no"])) as url:
        client = HttpClient(url)
        assert await fit_prompts(client, Target(url, "m"), plan, Random(0)) == plan
        client.close()
    assert plan.fit is None
    assert not plan.exact_prompts


async def test_written_prompts_are_counted_and_left_as_they_are():
    written = Written("test", ("Say one.", "Say two, and three."), 4)
    plan = make_plan(PlanSpec(written, ClosedLoop(1), 4), Random(1))
    asked_for: list[int] = []
    fitted = await fit(plan, lambda words: words + 31, asked_for)
    assert [planned.messages for planned in fitted.requests] == [it.messages for it in plan.requests]
    assert sorted(planned.prompt_tokens for planned in fitted.requests) == [33, 33, 35, 35]
    # Nobody planned another length, so none is off, and one look is enough.
    assert fitted.fit == Fit(counted=4)
    assert fitted.exact_prompts
    assert len(asked_for) == 4
