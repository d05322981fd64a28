"""The client against servers scripted by each test: real sockets, both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.clients import http_client, http_connection
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.http_connection import HEAD_LIMIT_BYTES, READ_AHEAD_BYTES
from phasewise.core.errors import ConfigError, FailureKind, UpstreamError
from tests.few_files import no_more_files
from tests.raw_server import raw_server

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
SOON_S = 3.0
"""Far more than anything here takes, far less than the deadlines that must not be what ended it."""


def on_both_loops(test):
    """Run an async test under each event loop; whatever reaches a loop's exception handler fails it."""

    @pytest.mark.parametrize("loop_factory", LOOPS.values(), ids=LOOPS)
    @functools.wraps(test)
    def run(loop_factory, **arguments):
        run_on(loop_factory, test(**arguments))

    own = inspect.signature(test)
    loop = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), loop])
    return run


def run_on(loop_factory, story):
    unhandled = []
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        runner.run(story)
    assert unhandled == []


@dataclass
class Peer:
    """The server's end of one connection."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent_bytes: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def request(self) -> bytes | None:
        """The next request, head and body; None when the client has closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
            return None
        _, _, length = head.lower().partition(b"content-length: ")
        return head + await self.reader.readexactly(int(length.split(b"\r\n")[0] or 0))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.sent_bytes += len(data)

    async def read_to_the_end(self) -> None:
        """Wait for the client to close."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.left.set()

    async def sees_the_end(self) -> bool:
        """Whether the client closes soon; the script must be reading."""
        return await asyncio.wait_for(self.left.wait(), SOON_S)

    @property
    def file_number(self) -> int:
        return self.writer.get_extra_info("socket").fileno()

    def reset(self) -> None:
        """Close with a RST, as a killed process whose socket holds unread bytes does."""
        self._linger(struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def _linger(self, option: bytes) -> None:
        with socket.socket(fileno=os.dup(self.file_number)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class Server:
    """Every connection that was made to it, in order."""

    url: str = ""
    peers: list[Peer] = field(default_factory=list)


@asynccontextmanager
async def serving(script: Script, **timeouts: float) -> AsyncIterator[tuple[HttpClient, Server]]:
    """A client and the server it talks to, which plays `script` on each connection and then closes it."""
    served, errors = Server(), []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.peers.append(peer := Peer(len(served.peers), reader, writer))
        try:
            with suppress(ConnectionError):
                await script(peer)
        except Exception as error:
            errors.append(error)
        finally:
            writer.close()

    async with raw_server(play) as port:
        served.url = f"http://127.0.0.1:{port}"
        client = HttpClient(served.url, Timeouts(**timeouts))
        try:
            yield client, served
        finally:
            client.close()
    assert not errors


def sized(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    """A reply with a content-length."""
    lines = [b"HTTP/1.1 " + status, *headers, b"content-length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def replying(*replies: bytes) -> Script:
    """Answer the requests of a connection with these in turn, then wait for the client to leave."""

    async def script(peer: Peer) -> None:
        for reply in replies:
            if await peer.request() is None:
                return
            await peer.send(reply)
        await peer.read_to_the_end()

    return script


async def name_yourself(peer: Peer) -> None:
    """Answer every request with the connection's number."""
    while await peer.request():
        await peer.send(sized(b"%d" % peer.number))


async def fails_as(kind: FailureKind, doing: Awaitable[object]) -> UpstreamError:
    """Assert that something fails in this way, and soon."""
    with pytest.raises(UpstreamError) as caught:
        await asyncio.wait_for(doing, SOON_S)
    assert caught.value.kind is kind
    return caught.value


async def read_in_full(client: HttpClient, path: str = "/") -> bytes:
    return (await asyncio.wait_for(client.fetch("GET", path), SOON_S)).body


# --- connections are kept, or not ---------------------------------------------------------------------------


@on_both_loops
async def test_a_connection_serves_one_request_after_the_other():
    async with serving(name_yourself) as (client, _):
        assert [await read_in_full(client) for _ in range(3)] == [b"0", b"0", b"0"]


@on_both_loops
async def test_a_connection_that_was_idle_for_too_long_is_closed_instead_of_used(monkeypatch):
    monkeypatch.setattr(http_client, "REUSE_WITHIN_S", 0.05)
    async with serving(name_yourself) as (client, server):
        await read_in_full(client)
        await asyncio.sleep(0.1)
        assert await read_in_full(client) == b"1"
        assert await server.peers[0].sees_the_end()


@on_both_loops
@pytest.mark.parametrize(
    "reply",
    [
        sized(b"ok", b"connection: close"),
        sized(b"ok").replace(b"HTTP/1.1", b"HTTP/1.0"),
        STREAM.replace(b"\r\n", b"\r\nServer: llama.cpp\r\n", 1) + chunk(b"ok") + LAST_CHUNK,
    ],
    ids=["connection-close", "http-1.0", "llama.cpp-after-a-stream"],
)
async def test_a_connection_that_the_server_will_close_is_not_used_again(reply):
    async with serving(replying(reply, sized(b"again"))) as (client, server):
        assert [await read_in_full(client) for _ in range(2)] == [b"ok", b"ok"]
        assert len(server.peers) == 2


@on_both_loops
async def test_a_connection_that_the_server_closed_unseen_is_not_used_again():
    async with serving(name_yourself) as (client, server):
        await read_in_full(client)
        # Without a turn of the event loop in between: only the kernel knows of the end.
        with socket.socket(fileno=os.dup(server.peers[0].file_number)) as sock:
            sock.shutdown(socket.SHUT_WR)
        assert await read_in_full(client) == b"1"


@on_both_loops
async def test_many_exchanges_at_once_each_get_their_own_answer_and_leave_their_connections_for_the_next():
    async def echo(peer):
        while request := await peer.request():
            await asyncio.sleep(0.001 * (sum(request) % 7))
            await peer.send(STREAM + chunk(request.split(b" ")[1]) + LAST_CHUNK)

    async with serving(echo) as (client, server):
        for _ in range(2):
            paths = [f"/{index}" for index in range(64)]
            bodies = await asyncio.gather(*(read_in_full(client, path) for path in paths))
            assert bodies == [path.encode() for path in paths]
        assert len(server.peers) == 64


@on_both_loops
async def test_close_drops_idle_and_busy_connections():
    async def hang_in_mid_body(peer):
        while request := await peer.request():
            await peer.send(sized(b"ok") if b" /idle " in request else STREAM)

    async with serving(hang_in_mid_body) as (client, server):
        await asyncio.gather(read_in_full(client, "/idle"), read_in_full(client, "/idle"))
        reply = await client.send("GET", "/busy")
        reading = asyncio.ensure_future(reply.read())
        await asyncio.sleep(0)
        client.close()
        await fails_as(FailureKind.CLOSED, reading)
        assert len(server.peers) == 2
        assert all([await peer.sees_the_end() for peer in server.peers])


# --- what is sent -------------------------------------------------------------------------------------------


@on_both_loops
@pytest.mark.parametrize("size", [0, 5, READ_AHEAD_BYTES, 3 * READ_AHEAD_BYTES + 1])
async def test_a_request_arrives_as_it_was_given_under_the_prefix_of_its_origin(size):
    seen = []

    async def keep(peer):
        seen.append(await peer.request())
        await peer.send(sized(b""))

    async with serving(keep) as (_, server):
        client = HttpClient(f"{server.url}/engines/a/")
        headers = [(b"content-type", b"audio/wav"), (b"x-request-id", b"r1")]
        await client.fetch("POST", "/v1/x?y=1", headers=headers, body=b"b" * size)
        client.close()
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert body == b"b" * size
    assert head.split(b"\r\n") == [
        b"POST /engines/a/v1/x?y=1 HTTP/1.1",
        b"host: " + server.url.removeprefix("http://").encode(),
        b"content-type: audio/wav",
        b"x-request-id: r1",
        b"content-length: %d" % size,
    ]


async def test_a_body_whose_type_is_not_given_is_json():
    seen = []

    async def keep(peer):
        seen.append(await peer.request())
        await peer.send(sized(b""))

    async with serving(keep) as (client, _):
        await client.fetch("POST", "/v1/x", body=b"{}")
        await client.fetch("POST", "/v1/x")
    assert [b"\r\ncontent-type: application/json\r\n" in head for head in seen] == [True, False]


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "localhost:8000",
        "ftp://localhost:8000",
        "http://",
        "http://:8000",
        "http://host:port",
        "http://host:65536",
        "http://host:0",
        "http://[::1",
        "http://a..b",
        "http://" + "a" * 64,
        "http://host/a b",
        "http://host/?key=s3cret",
        "http://host/#s3cret",
        "http://user:s3cret@host",
        "https://user:s3cret@host",
    ],
)
def test_an_address_that_cannot_be_used_is_rejected_at_once_without_saying_what_may_be_a_key(base_url):
    with pytest.raises(ConfigError) as caught:
        HttpClient(base_url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "base_url", ["http://host", "http://host:8000/", "http://[::1]:80/x", "http://bücher.de"]
)
def test_an_address_that_can_be_used_is_taken(base_url):
    assert HttpClient(base_url).base_url == base_url.rstrip("/")


# --- how a reply is read ------------------------------------------------------------------------------------


@on_both_loops
@pytest.mark.parametrize(
    ("reply", "status", "body"),
    [
        (sized(b"hello"), 200, b"hello"),
        (sized(b""), 200, b""),
        (STREAM + chunk(b"hel") + chunk(b"lo") + LAST_CHUNK, 200, b"hello"),
        (STREAM + b"3;ext=1\r\nhel\r\n0\r\nx-trailer: 1\r\n\r\n", 200, b"hel"),
        (STREAM + LAST_CHUNK, 200, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", 304, b""),
        (sized(b"no", status=b"503 Busy"), 503, b"no"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + sized(b"ok"), 200, b"ok"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 3 + sized(b"ok"), 200, b"ok"),
    ],
)
async def test_a_reply_is_read_to_its_end_and_its_connection_kept(reply, status, body):
    async with serving(replying(reply, reply)) as (client, server):
        for _ in range(2):
            got = await asyncio.wait_for(client.fetch("GET", "/"), SOON_S)
            assert (got.status, got.body) == (status, body)
            assert {name for name, _ in got.headers} <= {b"content-length", b"transfer-encoding"}
        assert len(server.peers) == 1


@on_both_loops
async def test_a_reply_without_a_length_ends_where_its_connection_does():
    async def one_reply(peer):
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nX-Kind: Plain\r\n\r\nhel")
        await peer.send(b"lo")

    async with serving(one_reply) as (client, server):
        reply = await client.fetch("GET", "/")
        assert (reply.headers, reply.body) == ([(b"x-kind", b"Plain")], b"hello")
        assert await read_in_full(client) == b"hello"
        assert len(server.peers) == 2


SPLIT_REPLY = (
    b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"".join(chunk(b"data: %d\r\n\r\n" % index) for index in range(4))
    + b"0\r\nx-trailer: 1\r\n\r\n"
)


@pytest.mark.parametrize("loop_factory", LOOPS.values(), ids=LOOPS)
@given(cuts=st.lists(st.integers(1, len(SPLIT_REPLY) - 1), max_size=12, unique=True))
@settings(max_examples=30, deadline=None)
def test_where_the_network_cuts_a_reply_makes_no_difference(loop_factory, cuts):
    edges = [0, *sorted(cuts), len(SPLIT_REPLY)]

    async def send_in_parts(peer):
        while await peer.request():
            for start, end in itertools.pairwise(edges):
                await peer.send(SPLIT_REPLY[start:end])
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    async def story():
        async with serving(send_in_parts) as (client, server):
            for _ in range(2):
                reply = await client.fetch("GET", "/")
                assert reply.status == 200
                assert reply.headers == [
                    (b"content-type", b"text/event-stream"),
                    (b"transfer-encoding", b"chunked"),
                ]
                assert reply.body == b"".join(b"data: %d\r\n\r\n" % index for index in range(4))
            assert len(server.peers) == 1

    run_on(loop_factory, story())


@on_both_loops
async def test_body_bytes_are_handed_on_as_they_arrive():
    go_on = asyncio.Event()

    async def two_chunks(peer):
        await peer.request()
        await peer.send(STREAM + chunk(b"one"))
        await go_on.wait()
        await peer.send(chunk(b"two") + LAST_CHUNK)
        await peer.request()

    async with serving(two_chunks) as (client, _):
        before_s = time.monotonic()
        async with await client.send("GET", "/") as reply:
            assert before_s <= reply.sent_at_s <= time.monotonic()
            assert await asyncio.wait_for(reply.read(), SOON_S) == b"one"
            go_on.set()
            assert [await reply.read(), await reply.read(), await reply.read()] == [b"two", b"", b""]
        with pytest.raises(RuntimeError, match="ended"):
            reply.read()


@on_both_loops
async def test_poured_bytes_arrive_each_when_it_came_and_the_connection_is_kept():
    go_on = asyncio.Event()
    seen: list[bytes] = []

    async def two_chunks(peer):
        await peer.request()
        await peer.send(STREAM + chunk(b"one"))
        await go_on.wait()
        await peer.send(chunk(b"two") + LAST_CHUNK)
        await peer.request()
        await peer.send(sized(b"next"))

    def sink(data):
        seen.append(data)
        go_on.set()

    async with serving(two_chunks) as (client, server):
        async with await client.send("GET", "/") as reply:
            await asyncio.sleep(0.02)
            await asyncio.wait_for(reply.pour(sink), SOON_S)
        assert seen == [b"one", b"two"]
        assert await read_in_full(client) == b"next"
        assert len(server.peers) == 1


# Some hold what looks like a chunk of its own, or ends as one does.
CHUNKS = [b"one", b"3\r\nabc\r\n", b"x" * 300, b"\r\n", b"0\r\n\r\n", b"y" * 16, b"data: z\r\n"]
FRAMED = [STREAM, *map(chunk, CHUNKS), LAST_CHUNK]
EDGES = list(itertools.accumulate(map(len, FRAMED)))


class Notes:
    """A reader that notes what it is handed, and rejects some chunks."""

    def __init__(self, rejected=()):
        self.rejected = rejected
        self.taken: list[bytes] = []
        self.parts: list[list[bytes]] = []
        self.passed: list[bytes] = []
        self._noted: list[bytes] = []

    def take(self, parts):
        self.parts.append(list(parts))
        self.taken += parts

    def takes_chunk(self, data, start, end):
        if data[start:end] in self.rejected:
            return False
        self._noted.append(data[start:end])
        return True

    def pass_on(self, chunks):
        assert b"".join(map(chunk, self._noted)) == chunks
        self.passed.append(chunks)
        self.taken += self._noted
        self._noted = []


@pytest.mark.parametrize("loop_factory", LOOPS.values(), ids=LOOPS)
@given(
    cuts=st.lists(st.sampled_from(EDGES[:-1]) | st.integers(1, EDGES[-1] - 1), unique=True),
    rejected=st.sets(st.sampled_from(CHUNKS)),
)
@settings(max_examples=40, deadline=None)
def test_whole_chunks_may_be_taken_as_they_came_wherever_the_network_cuts(loop_factory, cuts, rejected):
    reply_bytes = b"".join(FRAMED)

    async def send_in_parts(peer):
        while await peer.request():
            for start, end in itertools.pairwise([0, *sorted(cuts), len(reply_bytes)]):
                await peer.send(reply_bytes[start:end])
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    async def story():
        async with serving(send_in_parts) as (client, server):
            for _ in range(2):
                notes = Notes(rejected)
                async with await client.send("GET", "/") as reply:
                    await asyncio.wait_for(reply.read_into(notes), SOON_S)
                assert b"".join(notes.taken) == b"".join(CHUNKS)
            assert len(server.peers) == 1

    run_on(loop_factory, story())


@on_both_loops
async def test_what_came_together_is_handed_on_together_whole_chunks_as_they_came():
    notes = Notes(rejected={b"four"})

    async def in_bursts(peer):
        await peer.request()
        bursts = [b"one"], [b"two", b"three"], [b"four", b"five"]
        for burst in (STREAM, *(b"".join(map(chunk, burst)) for burst in bursts)):
            await peer.send(burst)
            await asyncio.sleep(0.05)
        await peer.send(chunk(b"six") + chunk(b"seven") + LAST_CHUNK)

    async with serving(in_bursts) as (client, _), await client.send("GET", "/") as reply:
        await asyncio.wait_for(reply.read_into(notes), SOON_S)
    # The parser has to see the first chunk to know that it stands between chunks.
    assert notes.parts == [[b"one"], [b"four", b"five"]]
    assert notes.passed == [chunk(b"two") + chunk(b"three"), chunk(b"six") + chunk(b"seven")]


@pytest.mark.parametrize("size_line", [b"0x3", b"+3", b"03", b"3;a=b", b" 3", b"3_0"])
@on_both_loops
async def test_a_chunk_that_is_not_framed_as_we_would_is_left_to_the_parser(size_line):
    notes = Notes()

    async def odd(peer):
        await peer.request()
        await peer.send(STREAM + chunk(b"one"))
        await asyncio.sleep(0.05)
        await peer.send(size_line + b"\r\ntwo\r\n" + LAST_CHUNK)

    async with serving(odd) as (client, _), await client.send("GET", "/") as reply:
        with contextlib.suppress(UpstreamError):
            await asyncio.wait_for(reply.read_into(notes), SOON_S)
    assert notes.passed == []


@on_both_loops
async def test_a_reply_waits_while_it_is_paused_and_that_silence_is_not_the_servers():
    async def two_chunks(peer):
        await peer.request()
        await peer.send(STREAM + chunk(b"one"))
        await asyncio.sleep(0.05)
        await peer.send(chunk(b"two") + LAST_CHUNK)

    class Slow(Notes):
        def take(self, parts):
            super().take(parts)
            if len(self.taken) == 1:
                reply.pause()
                asyncio.get_running_loop().call_later(0.6, self.go_on)

        def go_on(self):
            assert self.taken == [b"one"]
            reply.resume()

    slow = Slow()
    async with serving(two_chunks, idle_s=0.2) as (client, _), await client.send("GET", "/") as reply:
        await asyncio.wait_for(reply.read_into(slow), SOON_S)
    assert slow.taken == [b"one", b"two"]


@on_both_loops
async def test_how_a_reader_says_the_reply_broke_is_how_it_broke():
    async def late(peer):
        await peer.request()
        await peer.send(STREAM)
        await asyncio.sleep(0.05)
        await peer.send(chunk(b"hel"))

    class Rejects(Notes):
        def take(self, parts):
            raise UpstreamError(FailureKind.SERVER_ERROR, "the engine failed")

    async with serving(late) as (client, _), await client.send("GET", "/") as reply:
        assert "failed" in str(await fails_as(FailureKind.SERVER_ERROR, reply.read_into(Rejects())))


@on_both_loops
async def test_a_poured_reply_may_be_longer_than_any_read_ahead():
    body = b"x" * (3 * READ_AHEAD_BYTES)
    sizes: list[int] = []
    async with serving(replying(sized(body))) as (client, _), await client.send("GET", "/") as reply:
        await asyncio.sleep(0.05)
        await asyncio.wait_for(reply.pour(lambda data: sizes.append(len(data))), SOON_S)
    assert sum(sizes) == len(body)


@on_both_loops
async def test_a_poured_reply_fails_as_a_read_one_does_and_so_does_a_sink_that_raises():
    async def break_off(peer):
        await peer.request()
        await peer.send(STREAM + chunk(b"hel"))
        peer.reset()

    def reject(data):
        raise ValueError("not for me")

    async with serving(break_off) as (client, _), await client.send("GET", "/") as reply:
        await fails_as(FailureKind.CLOSED, reply.pour(lambda data: None))

    async def late(peer):
        await peer.request()
        await peer.send(STREAM)
        await asyncio.sleep(0.05)
        await peer.send(chunk(b"hel"))

    async with serving(late) as (client, _), await client.send("GET", "/") as reply:
        await fails_as(FailureKind.PROTOCOL, reply.pour(reject))


@on_both_loops
async def test_a_fetched_reply_is_bounded(monkeypatch):
    monkeypatch.setattr(http_client, "FETCH_LIMIT_BYTES", 1000)
    async with serving(replying(sized(b"x" * 1000), STREAM + chunk(b"x" * 1001))) as (client, server):
        assert await read_in_full(client) == b"x" * 1000
        await fails_as(FailureKind.PROTOCOL, client.fetch("GET", "/"))
        assert await server.peers[0].sees_the_end()


# --- back-pressure ------------------------------------------------------------------------------------------


@on_both_loops
async def test_a_reader_that_does_not_read_stops_the_server_and_goes_on_where_it_was():
    total_bytes = 32 * 1024 * 1024

    async def pour(peer):
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total_bytes)
        for index in range(total_bytes // 65536):
            await peer.send(bytes([index % 251]) * 65536)
        await peer.request()

    async with serving(pour) as (client, server):
        async with await client.send("GET", "/") as reply:
            seen_bytes = -1
            while server.peers[0].sent_bytes != seen_bytes:
                seen_bytes = server.peers[0].sent_bytes
                await asyncio.sleep(0.1)
            # What the two kernels' buffers hold, and our own.
            assert seen_bytes < total_bytes / 2
            first = await reply.read()
            assert len(first) <= 2 * READ_AHEAD_BYTES
            rest = await asyncio.wait_for(reply.read_all(total_bytes), SOON_S)
        body = first + rest
        assert len(body) == total_bytes
        assert all(body[at] == (at // 65536) % 251 for at in range(0, total_bytes, 65536))


@on_both_loops
async def test_a_connection_serves_again_after_a_reply_that_waited_whole_for_its_reader():
    body = b"x" * (READ_AHEAD_BYTES + READ_AHEAD_BYTES // 2)
    async with serving(replying(sized(body), sized(b"next"))) as (client, server):
        async with await client.send("GET", "/") as reply:
            await asyncio.sleep(0.05)
            assert await reply.read_all(len(body)) == body
        assert await read_in_full(client) == b"next"
        assert len(server.peers) == 1


@on_both_loops
async def test_the_time_a_slow_reader_took_is_not_held_against_the_server():
    # Too much to read ahead, and yet all of it: what holds the reader up next is the server alone.
    body = b"x" * (READ_AHEAD_BYTES + READ_AHEAD_BYTES // 2)
    reading = asyncio.Event()

    async def wait_for_the_reader(peer):
        await peer.request()
        await peer.send(STREAM + chunk(body))
        await reading.wait()
        await asyncio.sleep(0.4)
        await peer.send(LAST_CHUNK)

    async with (
        serving(wait_for_the_reader, idle_s=0.6) as (client, _),
        await client.send("GET", "/") as reply,
    ):
        await asyncio.sleep(0.9)
        got = await reply.read()
        while len(got) < len(body):
            got += await reply.read()
        reading.set()
        assert await reply.read() == b""


# --- how a reply fails --------------------------------------------------------------------------------------


@on_both_loops
@pytest.mark.parametrize("begun", [sized(b"hello")[:-2], STREAM + chunk(b"hel"), STREAM + b"5\r\nhel"])
@pytest.mark.parametrize("end", [Peer.reset, lambda peer: peer.writer.close()], ids=["reset", "closed"])
async def test_a_reply_cut_in_mid_body_gives_what_came_and_then_fails_as_closed(begun, end):
    seen = asyncio.Event()

    async def break_off(peer):
        await peer.request()
        await peer.send(begun)
        await seen.wait()
        end(peer)

    async with serving(break_off) as (client, _), await client.send("GET", "/") as reply:
        assert await reply.read() == b"hel"
        seen.set()
        await fails_as(FailureKind.CLOSED, reply.read())
        await fails_as(FailureKind.CLOSED, reply.read())


@on_both_loops
@pytest.mark.parametrize("begun", [b"", b"HTT", b"HTTP/1.1 200 OK\r\ncontent-le", b"HTTP/1.1 100 C\r\n\r\n"])
async def test_a_connection_closed_before_the_head_is_whole_fails_as_closed(begun):
    async def break_off(peer):
        await peer.request()
        await peer.send(begun)

    async with serving(break_off) as (client, _):
        await fails_as(FailureKind.CLOSED, client.send("GET", "/"))


@on_both_loops
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_process_without_sockets_does_not_say_that_the_server_rejected(host):
    async with serving(name_yourself) as (_, server):
        client = HttpClient(server.url.replace("127.0.0.1", host))
        with no_more_files():
            await fails_as(FailureKind.NO_SOCKET, client.send("GET", "/"))
        assert await read_in_full(client) == b"0"
        client.close()


@on_both_loops
async def test_a_port_where_nobody_listens_rejects():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        client = HttpClient(f"http://127.0.0.1:{sock.getsockname()[1]}")
        error = await fails_as(FailureKind.CONNECTION_REFUSED, client.send("GET", "/"))
    assert error.message == f"{client.base_url} cannot be reached (Connection refused)"


@on_both_loops
async def test_a_name_that_does_not_exist_is_not_called_a_rejected_connection():
    client = HttpClient("http://no-such-host.invalid:8000")
    error = await fails_as(FailureKind.CONNECTION_REFUSED, client.send("GET", "/"))
    assert error.message == "http://no-such-host.invalid:8000 cannot be reached (its name cannot be resolved)"


@on_both_loops
async def test_a_server_that_takes_no_connection_times_out():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(sock.getsockname())
            client = HttpClient(f"http://127.0.0.1:{sock.getsockname()[1]}", Timeouts(connect_s=0.1))
            await fails_as(FailureKind.TIMED_OUT, client.send("GET", "/"))
        finally:
            for one in waiting:
                one.close()


@on_both_loops
@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x16\x03\x01\x00\xff\x00\x01",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 099 Odd\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n" + LAST_CHUNK,
        b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    ],
)
async def test_a_reply_that_is_not_http_fails_as_protocol(reply):
    async with serving(replying(reply)) as (client, server):
        await fails_as(FailureKind.PROTOCOL, client.send("GET", "/"))
        assert await server.peers[0].sees_the_end()


@on_both_loops
@pytest.mark.parametrize("broken", [b"zz\r\n", b"-1\r\n", b"fffffffffffffffff\r\n"])
async def test_a_body_whose_chunks_are_broken_fails_as_protocol_after_what_came(broken):
    script = replying(STREAM + chunk(b"ok") + broken)
    async with serving(script) as (client, _), await client.send("GET", "/") as reply:
        assert await reply.read() == b"ok"
        await fails_as(FailureKind.PROTOCOL, reply.read())


@on_both_loops
@pytest.mark.parametrize(
    ("head", "more"),
    [
        (b"HTTP/1.1 200 OK\r\nx-long: ", b"x" * 4096),
        (b"HTTP/1.1 200 OK\r\n", b"x-many: 1\r\n" * 400),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 200),
        (STREAM + chunk(b"ok") + b"0\r\nx-long: ", b"x" * 4096),
        (STREAM + chunk(b"ok") + b"0\r\n", b"x-many: 1\r\n" * 400),
    ],
    ids=["one header", "many headers", "interim replies", "one trailer", "many trailers"],
)
async def test_a_head_or_a_trailer_without_end_is_given_up(head, more):
    async def go_on_for_ever(peer):
        await peer.request()
        await peer.send(head)
        while peer.sent_bytes < 500 * HEAD_LIMIT_BYTES:
            await peer.send(more)
            await asyncio.sleep(0)

    async with serving(go_on_for_ever) as (client, server):
        await fails_as(FailureKind.PROTOCOL, client.fetch("GET", "/"))
        assert server.peers[0].sent_bytes < 100 * HEAD_LIMIT_BYTES


@on_both_loops
async def test_a_long_body_of_tiny_chunks_is_no_endless_trailer(monkeypatch):
    monkeypatch.setattr(http_connection, "HEAD_LIMIT_BYTES", 64)

    async def size_and_data_apart(peer):
        await peer.request()
        await peer.send(STREAM)
        for _ in range(100):
            for part in (b"1\r\n", b"a\r\n"):
                await peer.send(part)
                await asyncio.sleep(0)
        await peer.send(LAST_CHUNK)
        await peer.request()

    async with serving(size_and_data_apart) as (client, _):
        assert await read_in_full(client) == b"a" * 100


# --- deadlines ----------------------------------------------------------------------------------------------


@on_both_loops
async def test_a_head_that_does_not_come_times_out():
    async with serving(replying(b""), head_s=0.1, idle_s=60) as (client, server):
        await fails_as(FailureKind.TIMED_OUT, client.send("GET", "/"))
        assert await server.peers[0].sees_the_end()


@on_both_loops
async def test_a_head_that_comes_by_the_byte_must_still_be_whole_in_time():
    async def drip(peer):
        await peer.request()
        for byte in sized(b"ok"):
            await peer.send(bytes([byte]))
            await asyncio.sleep(0.05)

    async with serving(drip, head_s=0.2) as (client, _):
        await fails_as(FailureKind.TIMED_OUT, client.send("GET", "/"))


@on_both_loops
@pytest.mark.parametrize("begun", [STREAM, STREAM + chunk(b"a")])
async def test_a_body_that_stops_coming_times_out_however_long_its_head_might_have_taken(begun):
    async with serving(replying(begun), head_s=60, idle_s=0.1) as (client, server):
        await fails_as(FailureKind.TIMED_OUT, client.fetch("GET", "/"))
        assert await server.peers[0].sees_the_end()


@on_both_loops
async def test_a_second_head_is_due_in_time_after_a_body_that_might_have_taken_long():
    async def answer_once(peer):
        await peer.request()
        await peer.send(STREAM)
        await asyncio.sleep(0.2)
        await peer.send(LAST_CHUNK)
        await peer.request()
        await peer.request()

    async with serving(answer_once, head_s=0.1, idle_s=60) as (client, server):
        await read_in_full(client)
        await fails_as(FailureKind.TIMED_OUT, client.send("GET", "/"))
        assert len(server.peers) == 1


@on_both_loops
async def test_a_slow_but_steady_body_does_not_time_out():
    async def tick(peer):
        await peer.request()
        await peer.send(STREAM)
        for _ in range(12):
            await asyncio.sleep(0.05)
            await peer.send(chunk(b"."))
        await peer.send(LAST_CHUNK)

    async with serving(tick, head_s=0.3, idle_s=0.3) as (client, _):
        assert await read_in_full(client) == b"." * 12


@on_both_loops
async def test_what_waits_for_a_silent_server_can_be_broken_off_and_what_flows_or_idles_is_left_alone():
    done = asyncio.Event()

    async def answer_the_third(peer):
        if peer.number == 2:
            await peer.request()
            await peer.send(sized(b"idles"))
        await peer.request()
        if peer.number == 0:
            await peer.send(STREAM + chunk(b"a"))
        if peer.number <= 1:
            await peer.read_to_the_end()
        await peer.send(STREAM + chunk(b"b"))
        await done.wait()
        await peer.send(LAST_CHUNK)

    async with serving(answer_the_third) as (client, server):
        in_mid_body = asyncio.create_task(client.fetch("GET", "/"))
        await asyncio.sleep(0.1)
        before_the_head = asyncio.create_task(client.fetch("GET", "/"))
        await asyncio.sleep(0.1)
        assert await read_in_full(client) == b"idles"
        await asyncio.sleep(0.3)
        async with await client.send("GET", "/") as flowing:
            assert await flowing.read() == b"b"
            waiting = asyncio.create_task(flowing.read())
            await asyncio.sleep(0)
            client.abort_silent(0.3)
            await fails_as(FailureKind.TIMED_OUT, in_mid_body)
            await fails_as(FailureKind.TIMED_OUT, before_the_head)
            done.set()
            assert await asyncio.wait_for(waiting, SOON_S) == b""
        assert len(server.peers) == 3


# --- what is left behind ------------------------------------------------------------------------------------


@on_both_loops
async def test_leaving_early_makes_the_server_stop_and_keeps_nothing():
    async def stream_until_closed(peer):
        await peer.request()
        await peer.send(STREAM + chunk(b"a"))
        if peer.number == 0:
            await peer.read_to_the_end()
        await peer.send(LAST_CHUNK)

    async with serving(stream_until_closed) as (client, server):
        async with await client.send("GET", "/") as reply:
            assert await reply.read() == b"a"
        assert await server.peers[0].sees_the_end()
        assert await read_in_full(client) == b"a"


@on_both_loops
@pytest.mark.parametrize("begun", [b"", STREAM], ids=["for the head", "for the body"])
async def test_a_wait_that_was_cancelled_leaves_its_late_answer_to_nobody(begun):
    late = asyncio.Event()

    async def answer_late(peer):
        await peer.request()
        if peer.number == 0:
            await peer.send(begun)
            await late.wait()
            await peer.send(sized(b"late"))
            await peer.read_to_the_end()
        await peer.send(sized(b"%d" % peer.number))
        await peer.request()

    async with serving(answer_late) as (client, server):
        fetching = asyncio.create_task(client.fetch("GET", "/"))
        await asyncio.sleep(0.05)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        late.set()
        assert await read_in_full(client) == b"1"
        assert await server.peers[0].sees_the_end()


@on_both_loops
@pytest.mark.parametrize(
    "extra", [sized(b"smuggled"), b"HTTP/1.1 200 OK\r\ncont", b"garbage"], ids=["reply", "half", "garbage"]
)
@pytest.mark.parametrize("first", [sized(b"0"), STREAM + chunk(b"0") + LAST_CHUNK], ids=["sized", "chunked"])
@pytest.mark.parametrize("when", ["at once", "while idle", "unseen"])
async def test_bytes_that_no_request_asked_for_answer_none(extra, first, when):
    async def answer(peer):
        while await peer.request():
            after = extra if when == "at once" and peer.number == 0 else b""
            await peer.send((sized(b"%d" % peer.number) if peer.number else first) + after)

    async with serving(answer) as (client, server):
        reply = await asyncio.wait_for(client.fetch("GET", "/"), SOON_S)
        assert (reply.status, reply.body, len(reply.headers)) == (200, b"0", 1)
        if when != "at once":
            os.write(server.peers[0].file_number, extra)
        if when == "while idle":
            await asyncio.sleep(0.02)
        assert await read_in_full(client) == b"1"
        assert await server.peers[0].sees_the_end()


@on_both_loops
async def test_a_reply_that_came_before_its_request_was_sent_whole_ends_the_connection():
    async def reject_early(peer):
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(sized(b"too large", status=b"413 Too Large"))
        await peer.read_to_the_end()

    async with serving(reject_early) as (client, server):
        reply = await asyncio.wait_for(client.fetch("POST", "/", body=b"x" * 32 * 1024 * 1024), SOON_S)
        assert reply.status == 413
        assert await server.peers[0].sees_the_end()
