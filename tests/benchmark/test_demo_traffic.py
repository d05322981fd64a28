"""The demo's own users: marked, never more at once than there are, and calm while nothing answers."""

import asyncio
from contextlib import suppress

import orjson
import pytest

from phasewise.benchmark import demo_traffic
from phasewise.clients.http_client import Reply
from phasewise.core.errors import FailureKind, UpstreamError


class Server:
    """Answers in the time that a token takes times their number; keeps who asked for what."""

    base_url = "http://127.0.0.1:1"

    def __init__(self, token_s=0.0, failing=False):
        self.token_s, self.failing = token_s, failing
        self.ids, self.lengths = [], []
        self.open = self.most_open = 0

    async def fetch(self, method, path, *, headers=(), body=b""):
        if method == "GET":
            return Reply(200, (), orjson.dumps({"data": [{"id": "m"}]}))
        asked = orjson.loads(body)
        self.ids.append(dict(headers)[b"x-request-id"].decode())
        self.lengths.append(asked["max_tokens"])
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(self.token_s * asked["max_tokens"])
        finally:
            self.open -= 1
        if self.failing:
            raise UpstreamError(FailureKind.CONNECTION_REFUSED, "nobody is there")
        return Reply(200, (), b"")


async def played(server, monkeypatch, for_s):
    monkeypatch.setattr(demo_traffic, "HttpClient", lambda url, timeouts: server)
    with suppress(TimeoutError):
        async with asyncio.timeout(for_s):
            await demo_traffic.play(server.base_url)
    return server


async def test_every_request_is_marked_and_no_more_are_open_than_there_are_users(monkeypatch):
    server = await played(Server(token_s=0.001), monkeypatch, 1.0)
    assert all(it.startswith("demo-") for it in server.ids)
    assert len(set(server.ids)) == len(server.ids) > demo_traffic.USERS
    assert server.most_open == demo_traffic.USERS


@pytest.mark.parametrize(("token_s", "fewest", "most"), [(0.002, 150, 700), (0.03, 25, 45)])
async def test_answers_are_as_long_as_the_engine_is_fast(monkeypatch, token_s, fewest, most):
    server = await played(Server(token_s), monkeypatch, 2 * demo_traffic.FIRST_TOKENS * token_s + 0.3)
    lengths = server.lengths[2:]
    assert len(lengths) >= demo_traffic.USERS
    assert fewest <= sum(lengths) / len(lengths) <= most


async def test_a_server_that_fails_is_not_asked_again_and_again(monkeypatch):
    server = await played(Server(failing=True), monkeypatch, 0.3)
    assert server.ids == ["demo-first"]
