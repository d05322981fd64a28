"""Judges say right, wrong, or that they cannot say; they never raise, and hold up nobody for long."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import orjson
import pytest

from phasewise.adapters.http_client import HttpClient
from phasewise.config import JudgeConfig
from phasewise.errors import EmbedderUnreachable
from phasewise.gateway.judges import (
    LONGEST_EMBEDDED,
    EmbeddingJudge,
    ModelJudge,
    TextJudge,
    build_judge,
)
from phasewise.model.worker import Role
from phasewise.state.cluster_view import ClusterView
from phasewise.state.load_ledger import LoadLedger
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
async def fleet(*replies, deadline_s=5.0, roles=(Role.MIXED,)):
    """A model judge before workers that say these things in turn; its cluster, and what they were asked."""
    asked, left = [], list(replies)

    async def answer(head, body, writer):
        asked.append(orjson.loads(body))
        said = left.pop(0)
        if callable(said):
            said = await said()
        data = said if isinstance(said, bytes) else orjson.dumps(content(said))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data))

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
    assert await TextJudge().right(QUESTION, "Paris.", "**paris**") is True
    assert await TextJudge().right(QUESTION, "Paris", "It is Paris") is False


async def test_the_embedding_judge_goes_by_nearness():
    judge = EmbeddingJudge(Plane(beech=(1, 0), birch=(0.96, 0.28), stone=(0, 1)), 0.95, 5.0)
    assert await judge.right(QUESTION, "beech", "birch") is True
    assert await judge.right(QUESTION, "beech", "stone") is False


async def test_the_embedding_judge_does_not_believe_nearness_of_another_number():
    embedder = Plane(**{"It takes 3 days": (1, 0), "It takes 4 days": (1, 0)})
    assert await EmbeddingJudge(embedder, 0.95, 5.0).right(QUESTION, *embedder.places) is False


@pytest.mark.parametrize("made", ["unknown to the embedder", "x" * (LONGEST_EMBEDDED + 1)])
async def test_the_embedding_judge_cannot_say_what_it_cannot_embed_whole(made):
    assert await EmbeddingJudge(Plane(beech=(1, 0)), 0.95, 5.0).right(QUESTION, "beech", made) is None


async def test_a_late_embedding_is_no_verdict():
    class Slow(Plane):
        async def embed(self, text):
            await asyncio.sleep(60)

    assert await EmbeddingJudge(Slow(), 0.95, 0.01).right(QUESTION, "beech", "stone") is None


async def test_equal_words_need_neither_embedder_nor_model():
    embedder = Plane()
    assert await EmbeddingJudge(embedder, 0.95, 5.0).right(QUESTION, "Paris.", "paris") is True
    async with fleet() as (judge, _, asked):
        assert await judge.right(QUESTION, "Paris.", "paris") is True
    assert embedder.asked == asked == []


async def test_a_model_is_asked_shortly_and_without_chance():
    async with fleet("Yes.", "no") as (judge, _, asked):
        assert await judge.right(QUESTION, "Paris", "It is Paris") is True
        assert await judge.right(QUESTION, "Paris", "Lyon") is False
    assert {(it["model"], it["temperature"], it["max_tokens"]) for it in asked} == {("m", 0, 4)}
    assert "It is Paris" in asked[0]["messages"][1]["content"]


@pytest.mark.parametrize(
    "said",
    ["maybe", "", None, b"oops", b"[]", orjson.dumps({"choices": []}), orjson.dumps({"error": "no"})],
)
async def test_whatever_is_not_yes_or_no_is_no_verdict(said):
    async with fleet(said) as (judge, *_):
        assert await judge.right(QUESTION, "Paris", "Lyon") is None


async def test_a_model_that_is_late_is_no_verdict():
    async def never():
        await asyncio.sleep(60)

    async with fleet(never, deadline_s=0.05) as (judge, *_):
        assert await judge.right(QUESTION, "Paris", "Lyon") is None


async def test_a_fleet_that_is_down_gives_no_verdict():
    async with fleet() as (judge, cluster, asked):
        cluster.mark_down("w0", "gone")
        assert await judge.right(QUESTION, "Paris", "Lyon") is None
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

    async with fleet(slow, slow, slow) as (judge, *_):
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
