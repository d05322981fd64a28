"""Which answers of a model are stored, and which text of the others is used."""

from __future__ import annotations

import contextlib

import orjson
import pytest

from phasewise.fleet.config import CacheConfig
from phasewise.gateway.answer_cache import learning as cache_learning
from tests.gateway.cache_parts import status_of
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
async def saying(*said):
    """A gateway before a model that says these, what its cache reports, and the answers it was left."""
    async with (
        listening(Model(*said).answer) as worker,
        running_gateway([worker], cache=CacheConfig(mode="serve")) as gateway,
    ):
        cache, left = gateway.app.gateway.pipeline._driver.found._cache, []
        leave = cache.leave

        def note(lookup, made):
            left.append(made)
            leave(lookup, made)

        cache.leave = note
        yield gateway, cache.report, left


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_in_text_that_ended_by_itself_is_stored(stream):
    async with saying((KEPT, "stop")) as (gateway, report, left):
        await gateway.chat(stream=stream)
        await eventually(lambda: report()["entries"] == 1)
    assert [it.text for it in left] == [KEPT["content"]]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("message", "finish_reason", "text"),
    [
        ({"content": "Open the"}, "length", "Open the"),
        ({"content": ""}, "stop", ""),
        ({"content": None, "refusal": "I cannot help with that."}, "stop", ""),
        (KEPT, "content_filter", ""),
        ({**KEPT, "reasoning_content": "Hm."}, "stop", ""),
    ],
)
async def test_any_other_answer_is_not_stored_and_only_its_text_is_used(stream, message, finish_reason, text):
    async with saying(*[(message, finish_reason)] * 2) as (gateway, report, left):
        for _ in range(2):
            reply = await gateway.chat(stream=stream)
            assert status_of(reply) == "fwd=miss"
        await eventually(lambda: report()["unfit"] == 2)
        assert report()["entries"] == 0
    assert [(it.text, it.keepable) for it in left] == [(text, False)] * 2


async def test_of_an_answer_that_never_came_nothing_is_known():
    async with saying(*[None] * 8) as (gateway, report, left):
        await gateway.chat()
        await eventually(lambda: report()["results"] == {"miss": 1})
        assert report()["unfit"] == 0
    assert left == [None]
