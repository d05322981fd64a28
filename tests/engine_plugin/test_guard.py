"""Which addresses of an engine ask for its key."""

import pytest
from phasewise_engine_plugin.guard import OPEN_PATHS, KeyGuard

KEY = "the-engines"


async def asked(guard, path, authorization=None, kind="http"):
    """What is sent back, or the name of the scope that came through."""
    sent = []

    async def send(message):
        sent.append(message)

    headers = [] if authorization is None else [(b"authorization", authorization)]
    await guard({"type": kind, "path": path, "headers": headers}, None, send)
    return sent


@pytest.fixture
def guard(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    return KeyGuard(passes)


async def passes(scope, _receive, send):
    await send({"type": "through", "scope": scope["type"]})


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
async def test_what_only_shows_how_it_runs_is_open(guard, path):
    assert (await asked(guard, path))[0]["type"] == "through"


@pytest.mark.parametrize(
    "path", ["/v1/models", "/tokenize", "/invocations", "/pause", "/health/", "//health"]
)
@pytest.mark.parametrize("given", [None, b"Bearer wrong", b"Bearer ", KEY.encode(), b"Bearer the-engines "])
async def test_everything_else_needs_the_key(guard, path, given):
    start, body = await asked(guard, path, given)
    assert start["status"] == 401
    assert KEY.encode() not in body["body"]


async def test_with_the_key_everything_passes(guard):
    for kind in ("http", "websocket"):
        assert (await asked(guard, "/tokenize", b"Bearer " + KEY.encode(), kind))[0]["scope"] == kind


async def test_a_websocket_without_it_is_closed_and_the_lifespan_passes(guard):
    assert (await asked(guard, "/v1/realtime", kind="websocket"))[0]["type"] == "websocket.close"
    assert (await asked(guard, "", kind="lifespan"))[0]["type"] == "through"


async def test_without_a_key_it_guards_nothing(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert (await asked(KeyGuard(passes), "/tokenize"))[0]["type"] == "through"
