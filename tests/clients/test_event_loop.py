"""A deadline ends what takes too long, and only that."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from phasewise.clients.event_loop import fair_deadline


async def test_what_takes_too_long_is_ended():
    with pytest.raises(TimeoutError):
        async with fair_deadline(0.01):
            await asyncio.Event().wait()


async def test_what_is_done_in_time_goes_on_undisturbed():
    async with fair_deadline(0.01):
        pass
    await asyncio.sleep(0.03)


async def test_an_answer_that_came_in_time_counts_though_this_process_was_busy():
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        async with fair_deadline(0.02):
            reading = asyncio.create_task(reader.readexactly(5))
            await asyncio.sleep(0)
            theirs.send(b"hello")
            time.sleep(0.03)  # noqa: ASYNC251 - a stall is what is tried
            assert await reading == b"hello"
    finally:
        writer.close()
        theirs.close()


async def stall_and_wait_for_ever():
    async with fair_deadline(0.01):
        time.sleep(0.02)  # noqa: ASYNC251 - a stall is what is tried
        await asyncio.Event().wait()


async def test_a_stall_does_not_excuse_who_does_not_answer():
    with pytest.raises(TimeoutError):
        await stall_and_wait_for_ever()


async def test_a_cancellation_from_outside_stays_one():
    async def wait():
        async with fair_deadline(10.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
