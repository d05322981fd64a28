"""Requests that are too large, too slow or ambiguous are rejected before anything is started for them."""

from __future__ import annotations

import asyncio
import contextlib

import orjson
import pytest

from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.server.edge import MOST_SENT_AHEAD, MOST_SMALL_CHUNKS
from tests.gateway.harness import chat_body, eventually, running_gateway
from tests.gateway.server.test_client_timeouts import chunked, connected, head_of

BODY = orjson.dumps(chat_body())
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def sent(gateway, data, within_s=60.0):
    """Everything that comes back for these bytes until the gateway closes the connection."""
    async with connected(gateway) as (reader, writer):
        writer.write(data)
        return await asyncio.wait_for(reader.read(), within_s)


def code_of(reply):
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), orjson.loads(body)["error"]["code"]


AMBIGUOUS = {
    "two keys": CHAT + b"authorization: Bearer a\r\nauthorization: Bearer b\r\n" + LENGTH + b"\r\n" + BODY,
    "both lengths": CHAT + LENGTH + b"transfer-encoding: chunked\r\n\r\n" + BODY,
    "two lengths": CHAT + LENGTH + LENGTH + b"\r\n" + BODY,
    "a list of lengths": CHAT + b"content-length: 3, 3\r\n\r\nabc",
    "a length of 6,000 digits": CHAT + b"content-length: " + b"0" * 6_000 + b"3\r\n\r\nabc",
    "a signed length": CHAT + b"content-length: +3\r\n\r\nabc",
    "another encoding": CHAT + b"transfer-encoding: gzip, chunked\r\n\r\n" + chunked(BODY) + chunked(b""),
    "no encoding by name": CHAT + b"transfer-encoding: identity\r\n\r\n" + BODY,
    "a space before the colon": CHAT + b"transfer-encoding : chunked\r\n\r\n" + chunked(BODY),
    "a chunk size that is none": CHAT + b"transfer-encoding: chunked\r\n\r\nxyz\r\nabc\r\n",
    "a chunk with a bare line end": CHAT + b"transfer-encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "a chunk longer than it says": CHAT + b"transfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "a chunk size beyond all numbers": CHAT + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
    "trailers": CHAT + b"transfer-encoding: chunked\r\n\r\n" + chunked(BODY) + b"0\r\nx: y\r\n\r\n",
    "a folded line": CHAT + LENGTH + b"x: a\r\n b\r\n\r\n" + BODY,
    "bare line ends": (CHAT + LENGTH).replace(b"\r", b"") + b"\n" + BODY,
    "a zero byte in a header": CHAT + LENGTH + b"x: a\x00b\r\n\r\n" + BODY,
    "a bare carriage return": CHAT + LENGTH + b"x: a\rb\r\n\r\n" + BODY,
    "two hosts": CHAT + b"host: y\r\n" + LENGTH + b"\r\n" + BODY,
    "an absolute address": CHAT.replace(b" /", b" http://y/") + LENGTH + b"\r\n" + BODY,
    "chunks in HTTP/1.0": CHAT.replace(b"1.1", b"1.0")
    + b"transfer-encoding: chunked\r\n\r\n"
    + chunked(BODY),
    "two encodings": CHAT
    + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunked(BODY),
    "two origins": CHAT + b"origin: http://localhost\r\norigin: null\r\n" + LENGTH + b"\r\n" + BODY,
    "HTTP/0.9": b"GET /v1/models\r\n\r\n",
    "HTTP/2": CHAT.replace(b"1.1", b"2.0") + LENGTH + b"\r\n" + BODY,
    "HTTP/2's opening": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an upgrade": CHAT + LENGTH + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n" + BODY,
    "a websocket": CHAT + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n",
    "a tunnel": b"CONNECT x:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("data", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_what_could_be_read_in_two_ways_reaches_no_engine_and_nothing_after_it_is_answered(data):
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await sent(gateway, data + HEALTH)
        assert code_of(reply) == (400, "bad_request")
        assert reply.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in reply
        assert engines[0].requests_finished == 0
        assert gateway.under_way == 0
        assert (await gateway.chat()).status == 200


async def test_requests_without_end_that_nobody_waits_for_are_not_kept():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        async with connected(gateway) as (reader, writer):
            writer.write(HEALTH * 50_000)
            answered = 0
            with contextlib.suppress(ConnectionError):
                while piece := await asyncio.wait_for(reader.read(2**16), 60):
                    answered += piece.count(b"HTTP/1.1 200")
            assert answered <= MOST_SENT_AHEAD
        assert (await gateway.fetch("GET", "/health")).status == 200


async def test_as_many_requests_as_may_be_sent_ahead_are_answered():
    last = HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await sent(gateway, HEALTH * MOST_SENT_AHEAD + last)
        assert reply.count(b"HTTP/1.1 200 OK") == MOST_SENT_AHEAD + 1


async def test_a_load_balancers_head_request_is_answered_without_a_body():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        for version in (b"1.0", b"1.1"):
            head = HEALTH.replace(b"GET", b"HEAD").replace(b"1.1", version)
            reply = await sent(gateway, head.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
            assert reply.startswith(b"HTTP/1.1 200 ")
            assert reply.endswith(b"\r\n\r\n")


async def test_requests_sent_ahead_are_answered_in_turn():
    request = CHAT + LENGTH + b"\r\n" + BODY
    last = HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await sent(gateway, request + HEALTH + request + last)
        assert reply.count(b"HTTP/1.1 200 OK") == 4
        assert engines[0].requests_finished == 2


async def test_nothing_is_written_into_an_answer_that_is_under_way():
    body = orjson.dumps(chat_body(stream=True, max_tokens=200))
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        engines[0].inject("slow", factor=5.0)
        async with connected(gateway) as (reader, writer):
            writer.write(head_of(body) + body)
            await reader.readuntil(b"data: ")
            writer.write(b"this is not HTTP\r\n\r\n")
            rest = await asyncio.wait_for(reader.read(), 60)
        assert b"HTTP/1.1" not in rest
        await eventually(lambda: gateway.under_way == 0)


# --- size ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 40])
async def test_a_head_that_is_too_large_is_rejected(pieces):
    data = CHAT + b"".join(b"x-%d: %b\r\n" % (it, b"y" * 1000) for it in range(40)) + LENGTH + b"\r\n" + BODY
    size = len(data) // pieces + 1
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        async with connected(gateway) as (reader, writer):
            for start in range(0, len(data), size):
                writer.write(data[start : start + size])
                await writer.drain()
                await asyncio.sleep(0.001)
            reply = await asyncio.wait_for(reader.read(), 60)
        assert code_of(reply) == (431, "head_too_large")
        assert engines[0].requests_finished == 0


async def test_a_head_that_never_ends_is_rejected_before_it_has():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await sent(gateway, CHAT + b"x: " + b"y" * 400_000)
        assert code_of(reply) == (431, "head_too_large")


async def test_more_headers_than_anybody_needs_are_rejected():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await sent(gateway, CHAT + b"a: b\r\n" * 150 + LENGTH + b"\r\n" + BODY)
        assert code_of(reply) == (431, "head_too_large")


async def test_a_large_head_within_the_limit_is_taken_before_a_large_body():
    body = orjson.dumps(chat_body("word " * 30_000, max_tokens=2))
    headers = [b"x-%d: %b" % (it, b"y" * 1000) for it in range(25)]
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        async with connected(gateway) as (reader, writer):
            writer.write(head_of(body, *headers) + body)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert b" 431 " not in head
        assert b" 413 " not in head


async def test_a_body_said_to_be_too_large_is_rejected_before_it_is_sent():
    async with running_engines(1) as engines, running_gateway(engines, limits={"body": "1KiB"}) as gateway:
        reply = await sent(gateway, CHAT + b"content-length: 1025\r\nexpect: 100-continue\r\n\r\n")
        assert code_of(reply) == (413, "too_large")
        assert b"100 Continue" not in reply
        assert b'too_large"' in (await gateway.fetch("GET", "/metrics")).body


async def test_a_client_that_sends_all_of_a_body_that_is_too_large_still_reads_why():
    async with running_engines(1) as engines, running_gateway(engines, limits={"body": "1MiB"}) as gateway:
        reply = await sent(gateway, head_of(b"x" * 2**22) + b"x" * 2**22)
        assert code_of(reply) == (413, "too_large")


async def test_chunks_that_add_up_to_too_large_a_body_are_rejected():
    data = CHAT + b"transfer-encoding: chunked\r\n\r\n" + chunked(b"x" * 700) * 2
    async with running_engines(1) as engines, running_gateway(engines, limits={"body": "1KiB"}) as gateway:
        assert code_of(await sent(gateway, data)) == (413, "too_large")


async def test_a_client_that_sends_all_of_its_chunks_still_reads_why_they_are_too_many():
    data = CHAT + b"transfer-encoding: chunked\r\n\r\n" + chunked(b"x" * 60_000) * 30
    async with running_engines(1) as engines, running_gateway(engines, limits={"body": "1MiB"}) as gateway:
        assert code_of(await sent(gateway, data)) == (413, "too_large")


async def test_a_body_that_is_held_back_until_it_is_wanted_is_asked_for():
    async with (
        running_engines(1) as engines,
        running_gateway(engines) as gateway,
        connected(gateway) as (reader, writer),
    ):
        writer.write(head_of(BODY, b"expect: 100-continue"))
        assert b" 100 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        writer.write(BODY)
        assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)


async def test_framing_without_end_is_no_body_but_is_rejected_too():
    async with running_engines(1) as engines, running_gateway(engines, limits={"body": "1KiB"}) as gateway:
        async with connected(gateway) as (reader, writer):
            writer.write(CHAT + b"transfer-encoding: chunked\r\n\r\n1;x=" + b"y" * 2**21)
            reply = await asyncio.wait_for(reader.read(), 60)
        assert code_of(reply) == (413, "too_large")


# --- time ------------------------------------------------------------------------------------------------


async def test_a_head_that_comes_too_slowly_is_rejected():
    async with running_engines(1) as engines, running_gateway(engines, limits={"head_s": 0.5}) as gateway:
        assert code_of(await sent(gateway, CHAT)) == (408, "head_timeout")


async def test_a_head_that_dribbles_has_no_longer_than_one_that_stands_still():
    async with (
        running_engines(1) as engines,
        running_gateway(engines, limits={"head_s": 0.5}) as gateway,
        connected(gateway) as (reader, writer),
    ):
        writer.write(CHAT + b"x: ")
        reading = asyncio.create_task(reader.readuntil(b"\r\n"))

        def dribbled():
            writer.write(b"y")
            return reading.done()

        await eventually(dribbled, timeout_s=60.0)
        assert b" 408 " in await reading


async def test_a_connection_on_which_nothing_is_sent_is_closed_without_a_word():
    async with running_engines(1) as engines, running_gateway(engines, limits={"head_s": 0.5}) as gateway:
        assert await sent(gateway, b"") == b""
        assert len(gateway.app.edge) == 0


@pytest.mark.parametrize("before", [b"", HEALTH])
async def test_line_ends_are_no_head(before):
    async with (
        running_engines(1) as engines,
        running_gateway(engines, limits={"head_s": 0.5}) as gateway,
        connected(gateway) as (reader, writer),
    ):
        if before:
            writer.write(before)
            await asyncio.wait_for(reader.readuntil(b"}"), 60)

        def closed_in_spite_of_them():
            if reader.at_eof() or reader.exception() is not None:
                return True
            writer.write(b"\r\n")
            return False

        await eventually(closed_in_spite_of_them, timeout_s=60.0)


async def test_a_second_head_on_a_connection_has_no_more_time_than_the_first():
    async with running_engines(1) as engines, running_gateway(engines, limits={"head_s": 0.5}) as gateway:
        reply = await sent(gateway, HEALTH + CHAT)
        assert reply.count(b"HTTP/1.1 200 OK") == 1
        assert b'"head_timeout"' in reply


@pytest.mark.parametrize("sent_later", [HEALTH[10:], b""])
async def test_a_head_sent_ahead_in_pieces_does_not_end_the_answer_before_it(sent_later):
    body = orjson.dumps(chat_body(stream=True, max_tokens=40, ignore_eos=True))
    async with running_engines(1) as engines, running_gateway(engines, limits={"head_s": 0.5}) as gateway:
        engines[0].inject("slow", factor=200.0)
        async with connected(gateway) as (reader, writer):
            writer.write(head_of(body) + body)
            await asyncio.wait_for(reader.readuntil(b"data: "), 60)
            # The first of them makes the gateway read no more until its turn.
            writer.write(HEALTH + HEALTH[:10])
            await asyncio.sleep(0.05)
            writer.write(sent_later)
            await asyncio.sleep(2.0)
            assert gateway.under_way == 1, "the answer is to outlast the head's time"
            engines[0].clear_faults()
            rest = await read_past(reader, b"[DONE]")
            rest = await read_past(reader, b"HTTP/1.1 200 OK", rest)
            await read_past(reader, b"HTTP/1.1 200 OK" if sent_later else b'"head_timeout"', rest)


async def read_past(reader, mark, read=b""):
    """Read on until this has come; what came behind it."""
    while mark not in read:
        more = await asyncio.wait_for(reader.read(65536), 60)
        assert more, f"the connection ended before {mark!r}"
        read += more
    return read.partition(mark)[2]


async def test_the_rest_of_a_body_that_was_answered_already_is_not_waited_for_for_ever():
    limits = {"head_s": 0.5}
    async with running_engines(1) as engines, running_gateway(engines, limits=limits) as gateway:
        reply = await sent(
            gateway, CHAT.replace(b"/v1/chat/completions", b"/health") + b"content-length: 10\r\n\r\nx"
        )
        assert code_of(reply) == (405, "method_not_allowed")


async def test_a_connection_that_is_served_is_not_watched():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        assert (await gateway.chat()).status == 200
        assert len(gateway.app.edge) == 0


async def test_health_is_reported_to_a_client_that_speaks_http_1_0():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await sent(gateway, b"GET /health HTTP/1.0\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 200 OK")


async def test_a_body_in_very_many_small_chunks_is_rejected_and_one_in_larger_ones_is_read():
    body = orjson.dumps(chat_body("word " * 200_000))
    many = b"".join(b"1\r\n%c\r\n" % letter for letter in body[: MOST_SMALL_CHUNKS + 100]) + b"0\r\n\r\n"
    pieces = [body[at : at + 2048] for at in range(0, len(body), 2048)]
    larger = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = CHAT + b"transfer-encoding: chunked\r\n\r\n"
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        statuses = []
        for sent in (many, larger):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
            writer.write(head + sent)
            reply = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            statuses.append((int(reply[9:12]), b"small chunks" in reply + await reader.read(300)))
            writer.transport.abort()
    assert statuses[0] == (400, True)
    assert statuses[1][0] != 408
    assert not statuses[1][1]
