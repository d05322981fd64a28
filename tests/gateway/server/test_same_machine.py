"""A gateway that asks for no key serves this machine's programs, and not the pages that its browsers show."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.server.edge import check_same_machine
from tests.gateway.harness import running_gateway

FOREIGN = "pages.example"
WITH_KEYS = {"api_keys": (ApiKey(sha256=key_sha256("a-key")),)}


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080"]
)
def test_this_machines_names_are_taken_with_and_without_a_port(host):
    check_same_machine(host.encode(), None)
    check_same_machine(host.encode(), f"http://{host}".encode())
    check_same_machine(None, f"https://{host}".encode())


@pytest.mark.parametrize(
    "host",
    [
        "",
        FOREIGN,
        "localhost.example",
        "127.0.0.1.example",
        "127.0.0.1:80:80",
        "localhost:",
        "::1",
        "10.0.0.1",
    ],
)
def test_other_names_are_rejected_in_either_header(host):
    for headers in ((host.encode(), None), (b"localhost", f"http://{host}".encode())):
        with pytest.raises(RequestRejected) as caught:
            check_same_machine(*headers)
        assert caught.value.kind is RejectionKind.FORBIDDEN
        assert FOREIGN not in str(caught.value)


@pytest.mark.parametrize("origin", [b"null", b"file://", b"", b"chrome-extension://abc"])
def test_an_origin_that_is_no_address_of_this_machine_is_rejected(origin):
    with pytest.raises(RequestRejected):
        check_same_machine(b"localhost", origin)


async def answered(gateway, head):
    """The status and the error's code of a GET /health with this head."""
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + b"connection: close\r\n\r\n")
    reply = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), orjson.loads(body).get("error", {}).get("code")


@pytest.mark.parametrize(
    ("settings", "head", "expected"),
    [
        ({}, "HTTP/1.1\r\nhost: localhost\r\n", (200, None)),
        ({}, f"HTTP/1.1\r\nhost: {FOREIGN}\r\n", (403, "forbidden")),
        ({}, f"HTTP/1.1\r\nhost: localhost\r\norigin: https://{FOREIGN}\r\n", (403, "forbidden")),
        ({}, "HTTP/1.1\r\n", (400, "bad_request")),
        ({}, "HTTP/1.0\r\n", (200, None)),
        ({}, f"HTTP/1.0\r\nhost: {FOREIGN}\r\n", (403, "forbidden")),
        (WITH_KEYS, f"HTTP/1.1\r\nhost: {FOREIGN}\r\norigin: https://{FOREIGN}\r\n", (200, None)),
        (WITH_KEYS, "HTTP/1.1\r\n", (400, "bad_request")),
    ],
)
async def test_who_may_ask_depends_on_whether_there_are_keys(settings, head, expected):
    async with running_engines(1) as engines, running_gateway(engines, **settings) as gateway:
        assert await answered(gateway, f"GET /health {head}") == expected
