"""Embeddings over HTTP: from the fake engine, and from servers that answer oddly."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import orjson
import pytest

from phasewise.clients import embedders
from phasewise.clients.embedders import HttpEmbedder
from phasewise.core.errors import ConfigError, EmbedderRejected, EmbedderUnreachable
from tests.gateway.harness import listening


@contextlib.asynccontextmanager
async def server(*bodies, status=b"200 OK"):
    """A server that says these things, the last of them for ever; yields its address and what it was sent."""
    seen, left = [], list(bodies)

    async def answer(head, body, writer):
        seen.append((head, orjson.loads(body)))
        said = left.pop(0) if len(left) > 1 else left[0]
        data = said if isinstance(said, bytes) else orjson.dumps(said)
        writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), data))

    async with listening(answer) as worker:
        yield worker.url, seen


def vector(*values):
    return {"data": [{"index": 0, "embedding": list(values)}]}


async def test_an_openai_server_embeds(fake_engine):
    embedder = HttpEmbedder(f"{fake_engine.base_url}/v1", fake_engine.model)
    await embedder.start()
    first, again, other = [await embedder.embed(text) for text in ("a", "a", "b")]
    assert embedder.dimensions == 8
    assert first == again != other
    assert np.linalg.norm(np.frombuffer(first, "<f4")) == pytest.approx(1.0, abs=1e-6)
    await embedder.close()


async def test_an_unknown_model_is_reported_at_the_start(fake_engine):
    embedder = HttpEmbedder(fake_engine.base_url, "nobody-serves-this")
    with pytest.raises(EmbedderUnreachable, match=r"HTTP 404\. hint: .*model's name"):
        await embedder.start()
    await embedder.close()


async def test_a_server_that_is_not_there_is_unreachable():
    embedder = HttpEmbedder("http://127.0.0.1:1", "m")
    with pytest.raises(EmbedderUnreachable, match="does not answer"):
        await embedder.start()
    await embedder.close()


async def test_vectors_become_of_unit_length_and_the_key_is_sent(tmp_path):
    (tmp_path / "key").write_text("sk-secret\n")
    async with server(vector(3, 4.0)) as (url, seen):
        embedder = HttpEmbedder(url, "org/name", str(tmp_path / "key"))
        await embedder.start()
        assert np.frombuffer(await embedder.embed("how"), "<f4") == pytest.approx([0.6, 0.8])
        await embedder.close()
    head, body = seen[-1]
    assert b"authorization: Bearer sk-secret\r\n" in head
    assert body == {"model": "org/name", "input": "how", "encoding_format": "float"}


@pytest.mark.parametrize(
    "said",
    [
        b"how do I spell secret",
        {},
        [],
        {"data": []},
        {"data": [{"embedding": [1.0]}, {"embedding": [1.0]}]},
        vector(),
        vector(1.0, None),
        vector(1.0, "2"),
        vector(1.0, True),
        vector([1.0], [2.0]),
        {"data": [{"embedding": "AACAPw=="}]},
        b'{"data": [{"embedding": [NaN, 1.0]}]}',
        b'{"data": [{"embedding": [1e999, 1.0]}]}',
        vector(0.0, 0.0),
        vector(1.0, 2.0, 3.0),
    ],
)
async def test_an_odd_reply_is_no_vector(said):
    async with server(vector(1.0, 2.0), said) as (url, _):
        embedder = HttpEmbedder(url, "m")
        await embedder.start()
        with pytest.raises(EmbedderUnreachable) as caught:
            await embedder.embed("secret")
        assert "secret" not in str(caught.value)
        await embedder.close()


@pytest.mark.parametrize("status", [b"400 Bad Request", b"413 Content Too Large", b"422 Unprocessable"])
async def test_a_text_that_the_server_rejects_is_distinguished_from_an_unreachable_server(status):
    async with server(b"too long: secret", status=status) as (url, _):
        embedder = HttpEmbedder(url, "m")
        with pytest.raises(EmbedderRejected) as caught:
            await embedder.embed("secret")
        assert "secret" not in str(caught.value)
        await embedder.close()


async def test_a_rejection_is_not_quoted():
    async with server(b"no: secret", status=b"401 Unauthorized") as (url, _):
        embedder = HttpEmbedder(url, "m")
        with pytest.raises(EmbedderUnreachable) as caught:
            await embedder.start()
        assert "secret" not in str(caught.value)
        assert "api_key_file" in str(caught.value)
        await embedder.close()


async def test_a_flood_is_rejected_at_once(monkeypatch):
    monkeypatch.setattr(embedders, "MOST_UNDER_WAY", 2)
    asked = asyncio.Event()

    async def silent(head, body, writer):
        asked.set()
        await asyncio.sleep(60)

    async with listening(silent) as worker:
        embedder = HttpEmbedder(worker.url, "m")
        waiting = [asyncio.create_task(embedder.embed("how")) for _ in range(2)]
        await asked.wait()
        with pytest.raises(EmbedderUnreachable, match="2 texts are being embedded"):
            await embedder.embed("how")
        await embedder.close()
        for each in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(each, EmbedderUnreachable)


def test_the_space_is_the_models_name_alone():
    spaces = {HttpEmbedder(url, "a/b").space for url in ("http://one", "http://two/v1")}
    assert spaces != {HttpEmbedder("http://one", "a-b").space}
    assert len(spaces) == 1
    assert spaces.pop().startswith("a-b-")


@pytest.mark.parametrize("content", [b"", b"two keys", b"two\nlines", b"\xff"])
def test_a_key_file_without_a_key_is_rejected(tmp_path, content):
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match="must hold one key"):
        HttpEmbedder("http://one", "m", str(tmp_path / "key"))


def test_a_key_in_the_place_of_its_file_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        HttpEmbedder("http://one", "m", "sk-secret")
    assert "sk-secret" not in str(caught.value)
