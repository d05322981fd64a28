"""What a worker sends reaches the client in order, at once or when the client takes it."""

from __future__ import annotations

import asyncio

import pytest

from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.gateway.server.client import WAITED_S, Client
from phasewise.gateway.upstream.relay import Splice

HEAD = [(b"content-type", b"text/event-stream")]


class Line:
    """A client's connection that notes what is written."""

    def __init__(self):
        self.listener = None
        self.paused = False
        self.may_be_chunked = True
        self.written: list[bytes] = []

    def start(self, status, headers):
        self.written.append(b"<%d>" % status)

    def write(self, data):
        self.written.append(data)

    def write_chunks(self, chunks):
        self.written.append(b"as it came:" + chunks)

    def take_more(self):
        self.paused = False
        self.listener.is_writable()


class Reply:
    """A worker's reply whose end the test decides."""

    def __init__(self):
        self.reader = None
        self.paused = False
        self.ended = asyncio.Event()
        self.error = None

    async def read_into(self, reader):
        self.reader = reader
        await self.ended.wait()
        if self.error is not None:
            raise self.error

    def pause(self):
        self.paused = True

    def resume(self):
        self.paused = False

    def end(self, error=None):
        self.error = error
        self.ended.set()


class Passing:
    """A relay that lets everything pass but what is to be held, and breaks on demand."""

    def feed(self, data, at_s):
        if data == b"broken":
            raise UpstreamError(FailureKind.PROTOCOL, "broken")
        return b"" if data == b"hidden" else data

    def takes_usual(self, data, start, end, at_s):
        return data[start:end] != b"unusual"


class Story:
    """A splice at work."""

    def __init__(self):
        self.line, self.reply = Line(), Reply()
        self.client = Client(self.line)
        self.splice = Splice(self.reply, Passing(), self.client, HEAD)
        self.running = asyncio.ensure_future(self.splice.run())

    async def settle(self):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self

    async def ends(self):
        await asyncio.wait_for(self.running, 60)


async def test_the_first_bytes_that_may_pass_are_led_by_the_head():
    story = await Story().settle()
    story.splice.take([b"hidden"])
    assert story.line.written == []
    assert not story.splice.takes_chunk(b"1\r\na\r\n", 3, 4), "nothing passes by before the head"
    story.splice.take([b"a", b"hidden", b"b"])
    assert story.splice.takes_chunk(b"1\r\nc\r\n", 3, 4)
    story.splice.pass_on(b"1\r\nc\r\n")
    assert not story.splice.takes_chunk(b"7\r\nunusual\r\n", 3, 10)
    story.reply.end()
    await story.ends()
    assert story.line.written == [b"<200>", b"ab", b"as it came:1\r\nc\r\n"]


async def test_a_client_that_takes_nothing_lets_the_worker_wait_and_misses_nothing():
    story = await Story().settle()
    story.splice.take([b"a"])
    story.line.paused = True
    assert not story.splice.takes_chunk(b"1\r\nb\r\n", 3, 4)
    story.splice.take([b"b"])
    story.splice.take([b"c"])
    assert story.reply.paused
    assert story.line.written == [b"<200>", b"a"]
    await asyncio.sleep(2 * WAITED_S)
    story.line.take_more()
    assert not story.reply.paused
    story.splice.take([b"d"])
    assert story.line.written == [b"<200>", b"a", b"bc", b"d"]
    assert story.client.blocked_s > WAITED_S
    assert story.client.sending_since_s is None
    story.reply.end()
    await story.ends()


async def test_nobody_waited_for_a_client_that_was_sent_nothing_during_the_wait():
    story = await Story().settle()
    story.splice.take([b"a"])
    story.line.paused = True
    await asyncio.sleep(2 * WAITED_S)
    story.line.take_more()
    story.splice.take([b"b"])
    assert story.client.blocked_s == 0.0
    assert not story.reply.paused
    story.reply.end()
    await story.ends()


@pytest.mark.parametrize("error", [None, UpstreamError(FailureKind.CLOSED, "gone")])
async def test_what_is_held_is_written_before_the_end(error):
    story = await Story().settle()
    story.splice.take([b"a"])
    story.line.paused = True
    story.splice.take([b"b"])
    story.reply.end(error)
    await story.settle()
    assert not story.running.done()
    story.line.take_more()
    if error is None:
        await story.ends()
    else:
        with pytest.raises(UpstreamError):
            await story.ends()
    assert story.line.written == [b"<200>", b"a", b"b"]


async def test_what_may_pass_passes_before_the_break_that_came_with_it():
    story = await Story().settle()
    with pytest.raises(UpstreamError):
        story.splice.take([b"a", b"broken", b"b"])
    assert story.line.written == [b"<200>", b"a"]
    story.reply.end()
    await story.ends()
