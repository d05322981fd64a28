"""Judges say right or wrong, or that they could not be asked; doubt about answers is not left open."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import orjson
import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import EmbedderRejected, EmbedderUnreachable
from phasewise.core.worker import Role
from phasewise.fleet.config import JudgeConfig
from phasewise.gateway.answer_cache.judges import (
    LONGEST_EMBEDDED,
    EmbeddingJudge,
    ModelJudge,
    TextJudge,
    build_judge,
)
from phasewise.scheduling.ledger import LoadLedger
from phasewise.scheduling.world import ClusterView
from phasewise.semantic_match.judging import CONTROL_ANSWER, LONGEST_JUDGED
from tests.builders import make_worker
from tests.gateway.harness import listening

QUESTION = "What is the capital of France?"


class Plane:
    """An embedder of two dimensions: each text stands where the test has put it."""

    space, dimensions = "plane", 2

    def __init__(self, **places):
        self.places = places
        self.asked = []

    async def start(self): ...
    async def close(self): ...

    async def embed(self, text):
        self.asked.append(text)
        if text not in self.places:
            raise EmbedderUnreachable("nowhere")
        return np.array(self.places[text], "<f4").tobytes()


@contextlib.asynccontextmanager
async def fleet(*replies, deadline_s=5.0, roles=(Role.MIXED,), status=b"200 OK"):
    """A model judge before workers that say these things in turn; its cluster, and what they were asked."""
    asked, left = [], list(replies)

    async def answer(head, body, writer):
        asked.append(orjson.loads(body))
        said = left.pop(0)
        if callable(said):
            said = await said()
        data = said if isinstance(said, bytes) else orjson.dumps(content(said))
        writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), data))

    async with listening(answer) as stub:
        workers = [make_worker(f"w{index}", role=role) for index, role in enumerate(roles)]
        cluster, ledger = ClusterView(workers), LoadLedger()
        for worker in workers:
            cluster.mark_up(worker.name, worker.incarnation)
        clients = {worker.name: HttpClient(stub.url) for worker in workers}
        judge = ModelJudge("m", cluster, ledger, clients, deadline_s)
        yield judge, cluster, asked
        for client in clients.values():
            client.close()


def content(text):
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


async def test_the_text_judge_goes_by_the_words():
    assert await TextJudge().right(QUESTION, "Paris.", "Paris") is True
    assert await TextJudge().right(QUESTION, "Paris", "It is Paris") is False


async def test_the_embedding_judge_goes_by_nearness():
    judge = EmbeddingJudge(Plane(beech=(1, 0), birch=(0.96, 0.28), stone=(0, 1)), 0.95, 5.0)
    assert await judge.right(QUESTION, "beech", "birch") is True
    assert await judge.right(QUESTION, "beech", "stone") is False


async def test_the_embedding_judge_does_not_believe_nearness_of_another_number():
    embedder = Plane(**{"It takes 3 days": (1, 0), "It takes 4 days": (1, 0)})
    assert await EmbeddingJudge(embedder, 0.95, 5.0).right(QUESTION, *embedder.places) is False


@pytest.mark.parametrize(
    ("one", "other"),
    [("within 14 days", "within 30 days"), ("You can return", "You cannot return")],
)
async def test_nor_that_of_another_number_or_a_denial_in_a_longer_answer(one, other):
    rest = " it to any of our shops, as long as the box is closed and the bill is in it." * 4
    embedder = Plane(**{one + rest: (1, 0), other + rest: (1, 0)})
    assert await EmbeddingJudge(embedder, 0.95, 5.0).right(QUESTION, *embedder.places) is False


async def test_what_an_embedder_does_not_take_has_to_be_equal():
    class Rejecting(Plane):
        async def embed(self, text):
            raise EmbedderRejected("HTTP 400")

    judge = EmbeddingJudge(Rejecting(), 0.95, 5.0)
    assert await judge.right(QUESTION, "Paris", "It is Paris") is False
    assert await judge.right(QUESTION, "Paris.", "Paris") is True


async def test_what_is_too_long_to_be_embedded_whole_has_to_be_equal():
    embedder = Plane()
    judge, long = EmbeddingJudge(embedder, 0.95, 5.0), "word " * (LONGEST_EMBEDDED // 4)
    assert await judge.right(QUESTION, long, long.strip()) is True
    assert await judge.right(QUESTION, long, long + "more") is False
    assert embedder.asked == []


async def test_in_scripts_with_a_token_for_each_letter_fewer_letters_are_too_long():
    embedder, chinese = Plane(), "水" * (LONGEST_EMBEDDED // 2)
    assert await EmbeddingJudge(embedder, 0.95, 5.0).right(QUESTION, chinese, chinese + "火") is False
    assert embedder.asked == []


@pytest.mark.parametrize("made", ["unknown", "beech"])
async def test_without_its_embedder_a_judge_says_nothing_of_equal_answers_either(made):
    assert await EmbeddingJudge(Plane(), 0.95, 5.0).right(QUESTION, "beech", made) is None


async def test_equal_answers_are_right_however_they_are_embedded():
    judge = EmbeddingJudge(Plane(**{"Paris.": (1, 0), "Paris": (0, 1)}), 0.95, 5.0)
    assert await judge.right(QUESTION, "Paris.", "Paris") is True


async def test_a_late_embedding_is_no_verdict():
    class Slow(Plane):
        async def embed(self, text):
            await asyncio.sleep(60)

    assert await EmbeddingJudge(Slow(), 0.95, 0.01).right(QUESTION, "beech", "stone") is None


async def test_a_model_is_asked_shortly_and_without_chance():
    async with fleet("Yes.", "no", "no") as (judge, _, asked):
        assert await judge.right(QUESTION, "Paris", "It is Paris") is True
        assert await judge.right(QUESTION, "Paris", "Lyon") is False
    assert {(it["model"], it["temperature"], it["max_tokens"]) for it in asked} == {("m", 0, 4)}
    assert "It is Paris" in asked[0]["messages"][1]["content"]


@pytest.mark.parametrize("control", ["yes", "maybe"])
async def test_a_model_that_says_yes_to_anything_is_not_believed(control):
    async with fleet("yes", control) as (judge, _, asked):
        assert await judge.right(QUESTION, "Paris", "Lyon") is None
    assert CONTROL_ANSWER in asked[1]["messages"][1]["content"]


@pytest.mark.parametrize("said", ["maybe", "", "Yes, but", "The two"])
async def test_what_is_not_called_the_same_is_not_the_same(said):
    async with fleet(said) as (judge, *_):
        assert await judge.right(QUESTION, "Paris", "Lyon") is False


@pytest.mark.parametrize(
    "said", [None, b"oops", b"[]", orjson.dumps({"choices": []}), orjson.dumps({"error": "no"})]
)
async def test_a_reply_without_an_answer_in_it_is_no_verdict(said):
    async with fleet(said) as (judge, *_):
        assert await judge.right(QUESTION, "Paris", "Paris") is None


async def test_what_a_model_cannot_be_shown_whole_has_to_be_equal():
    async with fleet() as (judge, _, asked):
        long = "word " * (LONGEST_JUDGED // 4)
        assert await judge.right(QUESTION, long, long.strip()) is True
        assert await judge.right(QUESTION, long, long + "more") is False
    assert asked == []


@pytest.mark.parametrize("status", [b"400 Bad Request", b"413 Content Too Large", b"422 Unprocessable"])
async def test_what_a_model_does_not_take_has_to_be_equal(status):
    async with fleet("no", "no", status=status) as (judge, *_):
        assert await judge.right(QUESTION, "Paris", "It is Paris") is False
        assert await judge.right(QUESTION, "Paris.", "Paris") is True


@pytest.mark.parametrize("status", [b"401 Unauthorized", b"404 Not Found", b"429 Too Many", b"500 Oops"])
async def test_an_error_that_the_answers_are_no_reason_for_is_no_verdict(status):
    async with fleet("no", status=status) as (judge, *_):
        assert await judge.right(QUESTION, "Paris", "It is Paris") is None


async def test_a_model_that_is_late_is_no_verdict():
    async def never():
        await asyncio.sleep(60)

    async with fleet(never, deadline_s=0.05) as (judge, *_):
        assert await judge.right(QUESTION, "Paris", "Lyon") is None


async def test_a_fleet_that_is_down_gives_no_verdict():
    async with fleet() as (judge, cluster, asked):
        cluster.mark_down("w0", "gone")
        assert await judge.right(QUESTION, "Paris", "Paris") is None
    assert asked == []


async def test_a_worker_that_only_reads_prompts_is_not_asked():
    async with fleet("yes", roles=(Role.PREFILL,)) as (judge, _, asked):
        assert await judge.right(QUESTION, "Paris", "Lyon") is None
    assert asked == []


async def test_an_unreachable_worker_gives_no_verdict():
    cluster = ClusterView([make_worker()])
    cluster.mark_up("w0", "1")
    judge = ModelJudge("m", cluster, LoadLedger(), {"w0": HttpClient("http://127.0.0.1:1")}, 5.0)
    assert await judge.right(QUESTION, "Paris", "Lyon") is None


async def test_one_thing_is_asked_at_a_time():
    most, now = 0, 0

    async def slow():
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return "yes"

    async with fleet(*[slow, "no"] * 3) as (judge, *_):
        verdicts = await asyncio.gather(*(judge.right(QUESTION, "Paris", f"P{it}") for it in range(3)))
    assert (verdicts, most) == ([True] * 3, 1)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (JudgeConfig(), TextJudge),
        (JudgeConfig(kind="embedding"), EmbeddingJudge),
        (JudgeConfig(kind="model", model="m"), ModelJudge),
    ],
)
def test_the_configuration_names_the_judge(config, kind):
    assert isinstance(build_judge(config, Plane(), ClusterView([]), LoadLedger(), {}), kind)
