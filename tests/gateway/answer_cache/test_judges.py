"""A model of the fleet judges pairs: shortly, one at a time, and only while it has nothing else to do."""

from __future__ import annotations

import asyncio
import contextlib
import time

import orjson
import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import ConfigError
from phasewise.fleet.config import CacheConfig, JudgeConfig, SemanticConfig
from phasewise.gateway.answer_cache import build as cache_building
from phasewise.gateway.answer_cache import judges
from phasewise.gateway.answer_cache.build import build_answer_cache
from phasewise.gateway.answer_cache.judges import FleetJudge, QuestionPair
from phasewise.semantic_match.judging import LONGEST_ANSWER
from tests.gateway.cache_parts import AngleEmbedder
from tests.gateway.harness import eventually, listening
from tests.scheduling.worlds import make_split_world, make_world

PAIR = QuestionPair("How can I pay?", "How do I pay?", "By card.")
MODEL = make_world(1).cluster.models[0]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(judges, "LOOK_AGAIN_S", 0.01)


class Fleet:
    """A judge before workers that reply these things in turn, and what they were asked."""

    def __init__(self, judge, world, asked):
        self.judge = judge
        self.world = world
        self.asked = asked

    async def approves(self, pair=PAIR):
        return await self.judge.approves(pair)


@contextlib.asynccontextmanager
async def fleet(*replies, world=None, status=b"200 OK", **config):
    asked, left = [], list(replies)
    world = world or make_world(1)

    async def answer(head, body, writer):
        asked.append((head.split()[1].decode(), orjson.loads(body)))
        reply = left.pop(0)
        if callable(reply):
            reply = await reply()
        data = reply if isinstance(reply, bytes) else orjson.dumps(reply)
        writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), data))

    async with listening(answer) as stub:
        clients = {state.worker.name: HttpClient(stub.url) for state in world.cluster.snapshot()}
        judge = FleetJudge(JudgeConfig(**{"model": MODEL, "share": 1.0, **config}), world, clients)
        yield Fleet(judge, world, asked)
        for client in clients.values():
            client.close()


def says(text, prompt_tokens=300):
    message = {"role": "assistant", "content": text}
    return {"choices": [{"message": message}], "usage": {"prompt_tokens": prompt_tokens}}


def scores(score):
    return {"data": [{"index": 0, "object": "score", "score": score}], "usage": {"prompt_tokens": 20}}


# --- what is asked, and how the reply is read -----------------------------------------------------------


async def test_a_model_is_asked_for_one_token_without_chance_or_reasoning():
    async with fleet(says("Yes"), says("no")) as judging:
        assert [await judging.approves(), await judging.approves()] == [True, False]
    for path, body in judging.asked:
        assert (path, body["model"], body["max_tokens"], body["temperature"]) == (
            *("/v1/chat/completions", MODEL, 1, 0),
        )
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        shown = body["messages"][-1]["content"]
        assert all(text in shown for text in (PAIR.asked, PAIR.stored, PAIR.answer))


@pytest.mark.parametrize("reply", [says("maybe"), says(""), says(None), {"choices": []}, {"error": "odd"}])
async def test_a_reply_that_is_not_yes_is_no(reply):
    async with fleet(reply) as judging:
        assert await judging.approves() is False


async def test_a_cross_encoder_scores_the_two_questions():
    async with fleet(scores(0.8), scores(0.79), kind="score", min_score=0.8) as judging:
        assert [await judging.approves(), await judging.approves()] == [True, False]
    assert judging.asked[0] == ("/score", {"model": MODEL, "text_1": PAIR.asked, "text_2": PAIR.stored})


@pytest.mark.parametrize("reply", [{"data": []}, {"data": [{"score": "high"}]}])
async def test_a_score_that_is_none_is_no(reply):
    async with fleet(reply, kind="score", min_score=0.0) as judging:
        assert await judging.approves() is False


@pytest.mark.parametrize("kind", ["model", "score"])
@pytest.mark.parametrize("status", [b"400 Bad Request", b"413 Content Too Large", b"422 Unprocessable"])
async def test_a_rejected_text_counts_as_no(kind, status):
    async with fleet({"error": "too long"}, status=status, kind=kind) as judging:
        assert await judging.approves() is False


async def test_of_a_long_answer_the_beginning_is_shown():
    answer = "begins" + "." * LONGEST_ANSWER + "ends"
    async with fleet(says("yes")) as judging:
        assert await judging.approves(QuestionPair("why?", "why then?", answer)) is True
    shown = judging.asked[0][1]["messages"][-1]["content"]
    assert ("begins" in shown, "ends" in shown) == (True, False)


async def test_every_pair_is_asked_about_with_the_same_beginning():
    """Which engines then have in their prefix cache."""
    async with fleet(says("yes"), says("no")) as judging:
        for pair in (PAIR, QuestionPair("why?", "why then?", "Because.")):
            await judging.approves(pair)
    first, second = (body["messages"][0] for _, body in judging.asked)
    assert first == second


# --- when nobody can say --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["model", "score"])
@pytest.mark.parametrize("status", [b"401 Unauthorized", b"404 Not Found", b"429 Too Many", b"500 Oops"])
async def test_an_error_that_is_not_about_the_texts_is_no_verdict(kind, status):
    async with fleet(says("yes"), status=status, kind=kind) as judging:
        assert await judging.approves() is None


async def test_a_reply_that_cannot_be_read_is_no_verdict():
    async with fleet(b"<html>") as judging:
        assert await judging.approves() is None


async def test_a_late_reply_is_no_verdict():
    async with fleet(asyncio.Event().wait, deadline_s=0.05) as judging:
        assert await judging.approves() is None


async def test_an_unreachable_worker_gives_no_verdict():
    judge = FleetJudge(JudgeConfig(model=MODEL), make_world(1), {"w0": HttpClient("http://127.0.0.1:1")})
    assert await judge.approves(PAIR) is None


async def test_a_worker_that_has_left_the_fleet_gives_no_verdict():
    async with fleet() as judging:
        judging.judge._clients = {}
        assert await judging.approves() is None
        assert judging.asked == []


@pytest.mark.parametrize("world", [make_world(1, up=0), make_split_world(prefill=1, decode=0)])
async def test_without_a_worker_that_decodes_there_is_no_verdict(world):
    async with fleet(world=world, deadline_s=0.05) as judging:
        assert await judging.approves() is None
    assert judging.asked == []
    assert judging.judge.calls == 0


# --- what it may cost -----------------------------------------------------------------------------------


async def test_the_least_loaded_worker_is_asked():
    world = make_world(2)
    busy = world.cluster.snapshot()[0].worker
    world.ledger.book(busy.ref, 100)
    async with fleet(says("yes"), world=world) as judging:
        judging.judge._clients = {"w1": judging.judge._clients["w1"]}
        assert await judging.approves() is True


async def test_one_pair_is_judged_at_a_time():
    most, now = 0, 0

    async def slow():
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return orjson.dumps(says("yes"))

    async with fleet(slow, slow, slow) as judging:
        assert await asyncio.gather(*(judging.approves() for _ in range(3))) == [True] * 3
    assert most == 1


async def test_the_judge_waits_while_a_clients_request_waits_for_its_model():
    async with fleet(says("yes")) as judging:
        elsewhere = judging.world.queue.join("another", 0, 0.0, 0.0)
        ticket = judging.world.queue.join(MODEL, 0, 0.0, 0.0)
        verdict = asyncio.create_task(judging.approves())
        await asyncio.sleep(0.1)
        assert judging.asked == []
        judging.world.queue.leave(ticket)
        assert await verdict is True
        judging.world.queue.leave(elsewhere)


async def test_a_judge_that_clients_leave_no_time_gives_no_verdict():
    async with fleet(deadline_s=0.05) as judging:
        judging.world.queue.join(MODEL, 0, 0.0, 0.0)
        assert await judging.approves() is None
    assert judging.asked == []


async def test_the_judge_rests_so_that_it_is_busy_for_no_more_than_its_share():
    async def slow():
        await asyncio.sleep(0.05)
        return orjson.dumps(says("no"))

    async with fleet(slow, slow, slow, share=0.25) as judging:
        began_s = time.monotonic()
        for _ in range(3):
            await judging.approves()
        took_s = time.monotonic() - began_s
        last_s = judging.judge._free_from_s - time.monotonic()
    assert judging.judge.busy_s >= 3 * 0.05
    assert took_s + last_s >= judging.judge.busy_s / 0.25 * 0.99


async def test_a_late_call_is_rested_for_too():
    async with fleet(asyncio.Event().wait, deadline_s=0.05, share=0.01) as judging:
        await judging.approves()
        assert judging.judge._free_from_s - time.monotonic() > 4.0


async def test_calls_prompt_tokens_and_time_are_counted():
    async with fleet(says("yes", 250), says("no", 350)) as judging:
        assert (judging.judge.calls, judging.judge.prompt_tokens, judging.judge.busy_s) == (0, 0, 0)
        await judging.approves()
        await judging.approves()
        assert (judging.judge.calls, judging.judge.prompt_tokens) == (2, 600)
        assert judging.judge.busy_s > 0


async def test_a_stopped_judge_gives_its_turn_back():
    async with fleet(asyncio.Event().wait, says("yes")) as judging:
        first = asyncio.create_task(judging.approves())
        await eventually(lambda: judging.asked)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert await judging.approves() is True


# --- which model judges ---------------------------------------------------------------------------------


class Models:
    """A fleet of these models, as far as a cache is built from it."""

    def __init__(self, *models):
        self.cluster = self
        self.models = models


@pytest.fixture
def without_embedding_model(monkeypatch):
    monkeypatch.setattr(cache_building, "build_embedder", lambda config, home: AngleEmbedder())


def cache_of(models, **judge):
    return build_answer_cache(CacheConfig(semantic=SemanticConfig(judge=judge)), Models(*models), {})


@pytest.mark.usefixtures("without_embedding_model")
def test_the_fleets_only_model_judges_unless_another_is_named():
    assert cache_of(["small"])._judge._model == "small"
    assert cache_of(["small", "large"], model="large")._judge._model == "large"
    # Lessons name the judge, however it was chosen.
    meant, named = cache_of(["small"]), cache_of(["small"], model="small")
    assert meant._semantic_match.basis == named._semantic_match.basis


@pytest.mark.usefixtures("without_embedding_model")
def test_a_judge_that_is_named_is_believed_before_any_model_is_known():
    assert cache_of([], model="small")._judge._model == "small"


@pytest.mark.usefixtures("without_embedding_model")
@pytest.mark.parametrize(
    ("models", "judge", "says"),
    [
        (["small", "large"], {}, r"judge.model is not set, and there are several .* file: small, large"),
        ([], {}, "is not set, and no engine has said yet what it serves. hint: name a model .* start later"),
        (["small"], {"model": "large"}, r"is 'large', which no worker serves. hint: .* file: small"),
    ],
)
def test_a_judge_that_is_not_clear_stops_the_start(models, judge, says):
    with pytest.raises(ConfigError, match=says):
        cache_of(models, **judge)
