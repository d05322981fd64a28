# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

from random import Random

import orjson
import pytest

from phasewise.adapters.http_client import HttpClient
from phasewise.bench.target import Target, count_prompt_tokens, find_target, fit_prompts
from phasewise.errors import ConfigError, EngineUnreachable
from phasewise.workload.arrivals import ClosedLoop
from phasewise.workload.lengths import Lengths
from phasewise.workload.plan import Plan, PlanSpec, make_plan
from phasewise.workload.presets import Shape
from tests.bench.scripted_server import Asked, scripted_server


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


async def test_a_model_that_is_not_served_is_refused_with_those_that_are():
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


async def test_an_address_where_nothing_answers_is_one_sentence():
    async with scripted_server(lambda asked: (200, [])) as url:
        pass
    with pytest.raises(EngineUnreachable, match="nothing answers at"):
        await find_target(HttpClient(url))


async def fit(plan: Plan, count) -> Plan:
    def answer(asked: Asked):
        assert asked.path == "/tokenize"
        words = sum(len(message["content"].split()) for message in asked.body["messages"])
        return 200, [orjson.dumps({"count": count(words)})]

    async with scripted_server(answer) as url:
        client = HttpClient(url)
        try:
            fitted = await fit_prompts(client, Target(url, "m"), plan, Random(0))
            for planned in fitted.requests:
                counted = await count_prompt_tokens(client, Target(url, "m"), planned.messages)
                assert counted == planned.prompt_tokens
            return fitted
        finally:
            client.close()


@pytest.mark.parametrize("template_tokens", [0, 12, 31])
async def test_prompts_are_made_exact_whatever_the_template_adds(template_tokens):
    fitted = await fit(make_run_plan(60), lambda words: words + template_tokens)
    assert fitted.exact_prompts
    assert {planned.prompt_tokens for planned in fitted.requests} == {60}


async def test_a_template_longer_than_the_prompt_asked_for_is_planned_as_it_is():
    fitted = await fit(make_run_plan(20), lambda words: words + 40)
    assert {planned.prompt_tokens for planned in fitted.requests} == {41}


async def test_without_a_tokenizer_the_plan_stays_and_says_so():
    plan = make_run_plan()
    async with scripted_server(lambda asked: (404, [b"no"])) as url:
        client = HttpClient(url)
        assert await fit_prompts(client, Target(url, "m"), plan, Random(0)) == plan
        client.close()
    assert not plan.exact_prompts
