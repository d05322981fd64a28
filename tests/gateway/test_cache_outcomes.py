"""Whatever the model says to a question is compared with the stored answer, or counts against it."""

from __future__ import annotations

import contextlib

import orjson
import pytest

from phasewise.fleet.config import CacheConfig
from phasewise.gateway.answer_cache import learning as cache_learning
from tests.gateway.harness import eventually, listening, running_gateway
from tests.gateway.server.test_client_timeouts import STREAM_HEAD, chunked

KEPT = {"content": "Open the settings."}


@pytest.fixture(autouse=True)
def counted_soon(monkeypatch):
    monkeypatch.setattr(cache_learning, "COUNT_EVERY_S", 0.01)


class Model:
    """A worker that says these messages in turn, and why each of them ended; None: it breaks off."""

    def __init__(self, *said):
        self.left = list(said)

    async def answer(self, head, body, writer):
        said = self.left.pop(0)
        if said is None:
            writer.close()
            return
        message, finish_reason = said
        if orjson.loads(body).get("stream"):
            chunk = {"choices": [{"index": 0, "delta": message, "finish_reason": finish_reason}]}
            events = b"data: %s\n\ndata: [DONE]\n\n" % orjson.dumps(chunk)
            writer.write(STREAM_HEAD + chunked(events) + b"0\r\n\r\n")
        else:
            data = orjson.dumps(
                {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}
            )
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data))


@contextlib.asynccontextmanager
async def shadowing(*said):
    """A gateway that compares, before a model that says an answer to be kept first, and its verdicts."""
    async with (
        listening(Model((KEPT, "stop"), *said).answer) as worker,
        running_gateway([worker], cache=CacheConfig()) as gateway,
    ):

        def report():
            return gateway.app.gateway.pipeline._driver.found._cache.report()

        await gateway.chat()
        await eventually(lambda: report()["entries"] == 1)
        yield gateway, report


async def verdict_of(report):
    counts = await eventually(
        lambda: any(report()["judged"]["exact"].values()) and report()["judged"]["exact"]
    )
    return [verdict for verdict, count in counts.items() if count]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("message", "finish_reason"),
    [
        ({"content": "Open the"}, "length"),
        ({"content": ""}, "stop"),
        ({"content": None, "refusal": "I cannot help with that."}, "stop"),
        (KEPT, "content_filter"),
        ({**KEPT, "reasoning_content": "Hm."}, "stop"),
    ],
)
async def test_an_answer_that_could_not_be_stored_shows_that_the_stored_one_was_wrong(
    stream, message, finish_reason
):
    async with shadowing((message, finish_reason)) as (gateway, report):
        await gateway.chat(stream=stream)
        assert await verdict_of(report) == ["wrong"]


async def test_an_answer_that_was_cut_off_after_the_same_words_was_right():
    async with shadowing((KEPT, "length")) as (gateway, report):
        await gateway.chat()
        assert await verdict_of(report) == ["right"]


async def test_of_an_answer_that_never_came_nothing_is_known():
    async with shadowing(*[None] * 8) as (gateway, report):
        await gateway.chat()
        assert await verdict_of(report) == ["unknown"]
