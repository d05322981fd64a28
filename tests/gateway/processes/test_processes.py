"""A gateway of several processes, as one gateway to its clients and its operator."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from itertools import pairwise
from pathlib import Path

import orjson
import psutil
import pytest

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.timeline_feed import TimelineFeed
from phasewise.core.timeline_record import decode
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.local.gateway_run import living_gateways
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.processes.order import socket_file
from tests.gateway.gateway_process import home_of, running_process
from tests.gateway.harness import chat_body, events_of, eventually

ADMIN = [(b"authorization", b"Bearer admin")]
SETTINGS = {"admin_key_sha256": key_sha256("admin"), "processes": 3}
PATIENT = Timeouts(connect_s=30.0, head_s=60.0, idle_s=60.0)


def folder_of(tmp_path):
    """The gateway's private folder; None before it is recorded."""
    states = living_gateways(home_of(tmp_path / "gateway.yaml"))
    return Path(states[0].folder) if states else None


def serving(tmp_path):
    """The processes that answer at an admin socket."""
    folder = folder_of(tmp_path)
    return {int(path.name.partition("-")[2]) for path in folder.glob("process-*")} if folder else set()


def children(gateway):
    return [child.pid for child in psutil.Process(gateway.process.pid).children()]


@contextlib.asynccontextmanager
async def gateway_of_three(tmp_path, *engines, **settings):
    """It is there once all of its processes serve."""
    async with running_process(tmp_path, *engines, **{**SETTINGS, **settings}) as gateway:
        await eventually(lambda: len(serving(tmp_path)) == 3)
        yield gateway


async def ask(gateway, path, method="GET", headers=ADMIN, body=b""):
    """One answer over a connection of its own: any process may have it."""
    client = HttpClient(gateway.client.base_url, PATIENT)
    try:
        return await client.fetch(method, path, headers=headers, body=body)
    finally:
        client.close()


async def chat(gateway, **fields):
    return await ask(gateway, "/v1/chat/completions", "POST", (), orjson.dumps(chat_body(**fields)))


def counted(text):
    found = re.findall(rb"^phasewise_requests_total\{[^}]*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


async def has_counted(gateway, least):
    return counted((await ask(gateway, "/metrics")).body) >= least


async def test_every_process_answers_for_all(tmp_path):
    async with running_engines(1) as (engine,), gateway_of_three(tmp_path, engine) as gateway:
        feed, seen = TimelineFeed(gateway.client, ADMIN), []

        async def has(count):
            seen.extend(timeline.request_id for timeline in await feed.read())
            return len(seen) >= count

        for count in (10, 24):
            replies = await asyncio.gather(*(chat(gateway) for _ in range(count - len(seen))))
            assert {reply.status for reply in replies} == {200}
            # Another process may send an answer a moment before it records it.
            await eventually(lambda count=count: has(count))
        assert len(seen) == len(set(seen)) == 24
        for _ in range(6):
            assert counted((await ask(gateway, "/metrics")).body) == 24
            listed = (await ask(gateway, "/phasewise/v1/requests?limit=100")).body.splitlines()
            assert len(listed) == 24
            slowest = await ask(gateway, "/phasewise/v1/requests?slowest=e2e&limit=5")
            assert (len(slowest.body.splitlines()), dict(slowest.headers)[b"x-phasewise-looked-at"]) == (
                5,
                b"24",
            )
            assert orjson.loads((await ask(gateway, "/phasewise/v1/live")).body)["ended"] == 24
        ends = [timeline.started_unix_s + timeline.ended_s for timeline in map(decode, listed)]
        # Each process keeps the order in which it recorded them, some microseconds after their ends.
        assert all(later > earlier - 0.1 for earlier, later in pairwise(ends))
        for line in listed[:6]:
            request_id = orjson.loads(line)["id"]
            found = await ask(gateway, f"/phasewise/v1/requests/{request_id}")
            assert orjson.loads(found.body)["id"] == request_id
        assert (await ask(gateway, "/phasewise/v1/requests/none-such")).status == 404


async def test_a_reader_that_pages_misses_nothing_and_gets_nothing_twice(tmp_path):
    async with running_engines(1) as (engine,), gateway_of_three(tmp_path, engine) as gateway:
        await asyncio.gather(*(chat(gateway) for _ in range(20)))
        cursor, seen = "0", []
        for _ in range(30):
            reply = await ask(gateway, f"/phasewise/v1/requests?after={cursor}&limit=7")
            seen += [orjson.loads(line)["id"] for line in reply.body.splitlines()]
            cursor = dict(reply.headers)[b"x-phasewise-next"].decode()
            if len(seen) == 14:
                await chat(gateway)
        assert len(seen) == len(set(seen)) == 21


async def test_an_admin_socket_answers_for_its_process_alone_and_needs_no_key(tmp_path):
    async with running_engines(1) as (engine,), gateway_of_three(tmp_path, engine) as gateway:
        await asyncio.gather(*(chat(gateway) for _ in range(12)))
        await eventually(lambda: has_counted(gateway, 12))
        counts = []
        for process in serving(tmp_path):
            client = HttpClient("http://localhost", unix_socket=socket_file(folder_of(tmp_path), process))
            counts.append(counted((await client.fetch("GET", "/metrics")).body))
            listed = (await client.fetch("GET", "/phasewise/v1/requests?limit=100")).body.splitlines()
            assert len(listed) == counts[-1]
            assert (await client.fetch("GET", "/phasewise/v1/learned")).status == 200
            client.close()
        assert sum(counts) == 12
        assert (await ask(gateway, "/phasewise/v1/learned")).status == 404
        assert (await ask(gateway, "/phasewise/v1/requests", headers=())).status == 401
        assert folder_of(tmp_path).stat().st_mode & 0o777 == 0o700


async def test_a_killed_process_loses_its_own_streams_alone_and_counters_stay(tmp_path):
    async with running_engines(1) as (engine,), gateway_of_three(tmp_path, engine) as gateway:
        await asyncio.gather(*(chat(gateway) for _ in range(12)))
        before = counted((await ask(gateway, "/metrics")).body)
        engine.inject("slow", factor=20.0)
        body = {"stream": True, "max_tokens": 300, "ignore_eos": True}
        written = engine.tokens_written
        streams = [asyncio.create_task(chat(gateway, **body)) for _ in range(12)]
        await eventually(lambda: engine.tokens_written > written + 24)
        # The next one starts with the configuration in force, whatever the file holds by then.
        path = tmp_path / "gateway.yaml"
        path.write_text("this: is not\n  yaml: at all")
        victim = max(children(gateway), key=lambda pid: len(psutil.Process(pid).net_connections("tcp")))
        os.kill(victim, signal.SIGKILL)
        ended = await asyncio.gather(*streams, return_exceptions=True)
        whole = [it for it in ended if not isinstance(it, Exception) and events_of(it.body)[-1] == "[DONE]"]
        assert 1 <= len(ended) - len(whole) < 12
        counts = [counted((await ask(gateway, "/metrics")).body)]
        await eventually(lambda: len(serving(tmp_path)) == 3 and victim not in children(gateway))
        engine.clear_faults()
        await eventually(lambda: has_counted(gateway, before + len(whole)))
        counts += [counted((await ask(gateway, "/metrics")).body) for _ in range(3)]
        assert before <= counts[0]
        assert counts == sorted(counts)
        assert {(await chat(gateway)).status for _ in range(6)} == {200}
        # Nothing that is named by a process stays behind.
        assert len(list(folder_of(tmp_path).glob("order-*"))) == 3


async def test_a_limit_holds_over_all_processes(tmp_path, own_redis):
    key = {"sha256": key_sha256("client"), "requests_per_minute": 10}
    settings = {"api_keys": [key], "redis": {"url": own_redis.url}}
    async with running_engines(1) as (engine,), gateway_of_three(tmp_path, engine, **settings) as gateway:
        bearer = [(b"authorization", b"Bearer client")]
        body = orjson.dumps(chat_body(max_tokens=1))
        began_s = time.monotonic()
        asked = (ask(gateway, "/v1/chat/completions", "POST", bearer, body) for _ in range(40))
        statuses = [reply.status for reply in await asyncio.gather(*asked)]
        assert set(statuses) == {200, 429}
        # One more passes for every six seconds that this takes.
        assert 10 <= statuses.count(200) <= 10 + 1 + (time.monotonic() - began_s) / 6


async def test_processes_together_use_no_more_slots_than_an_engine_has(tmp_path):
    async with (
        running_engines(1) as (engine,),
        gateway_of_three(tmp_path, engine, slots=4) as gateway,
    ):
        most = 0

        async def watch():
            nonlocal most
            while True:
                most = max(most, engine.engine.running + engine.engine.waiting)
                await asyncio.sleep(0.005)

        watching = asyncio.create_task(watch())
        replies = await asyncio.gather(*(chat(gateway, max_tokens=5) for _ in range(40)))
        watching.cancel()
        assert {reply.status for reply in replies} == {200}
        assert 1 <= most <= 4


async def test_a_conversation_stays_where_it_is_whichever_process_gets_its_turns(tmp_path):
    async with (
        running_engines(3) as engines,
        gateway_of_three(tmp_path, *engines) as gateway,
    ):
        conversations = [
            [{"role": "user", "content": f"story {number}: " + "word " * 300}] for number in range(9)
        ]
        for turn in range(6):
            for messages in conversations:
                assert (await chat(gateway, messages=messages, max_tokens=4)).status == 200
                messages += [
                    {"role": "assistant", "content": "so"},
                    {"role": "user", "content": f"more {turn}"},
                ]
        listed = (await ask(gateway, "/phasewise/v1/requests?limit=100")).body.splitlines()
        later = list(map(decode, listed))[len(conversations) :]
        assert len(later) == 45
        # By chance a third of them would be.
        assert sum(each.cached_tokens > each.prompt_tokens / 2 for each in later) >= 40


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_the_streams_of_all_processes_finish(tmp_path, number):
    async with running_engines(1) as (engine,), gateway_of_three(tmp_path, engine) as gateway:
        engine.inject("slow", factor=30.0)
        streams = [asyncio.create_task(chat(gateway, stream=True, max_tokens=30)) for _ in range(9)]
        await eventually(lambda: engine.engine.running == len(streams))
        pids, folder = children(gateway), folder_of(tmp_path)
        # A terminal sends Ctrl-C to the group of the process that it started, and to no other.
        assert all(os.getpgid(pid) != os.getpgid(gateway.process.pid) for pid in pids)
        gateway.process.send_signal(number)
        for reply in await asyncio.gather(*streams):
            assert events_of(reply.body)[-1] == "[DONE]"
        code, errors = await gateway.ended()
        assert code == 0
        assert "Traceback" not in errors
        assert not any(map(psutil.pid_exists, pids))
        assert not folder.exists()


async def test_processes_end_with_a_supervisor_that_was_killed(tmp_path):
    async with running_engines(1) as (engine,), gateway_of_three(tmp_path, engine) as gateway:
        pids, folder = children(gateway), folder_of(tmp_path)
        gateway.process.kill()
        await gateway.ended()
        await eventually(lambda: not any(map(psutil.pid_exists, pids)))
        assert not folder.exists()


@pytest.mark.parametrize("by", ["route", "signal"])
async def test_a_reload_reaches_all_processes(tmp_path, by):
    async with running_engines(1) as (engine,), gateway_of_three(tmp_path, engine) as gateway:
        path = tmp_path / "gateway.yaml"
        path.write_text(path.read_text().replace("name: w0", "name: renamed"))
        if by == "route":
            assert (await ask(gateway, "/phasewise/v1/reload", "POST")).status == 200
        else:
            gateway.process.send_signal(signal.SIGHUP)

        async def names(process):
            client = HttpClient("http://localhost", unix_socket=socket_file(folder_of(tmp_path), process))
            try:
                workers = orjson.loads((await client.fetch("GET", "/phasewise/v1/workers")).body)["workers"]
                return [worker["name"] for worker in workers]
            finally:
                client.close()

        async def all_have_it():
            return [await names(process) for process in serving(tmp_path)] == [["renamed"]] * 3

        await eventually(all_have_it)


async def test_a_purge_empties_the_caches_of_all_processes(tmp_path):
    settings = {"cache": {"mode": "serve"}}
    async with running_engines(1) as (engine,), gateway_of_three(tmp_path, engine, **settings) as gateway:

        async def answered_by_each():
            """Each process computes the first answer that it gives, and has it from then on."""
            await chat(gateway, temperature=0, max_tokens=2000)
            return engine.requests_finished == 3

        await eventually(answered_by_each)
        body = orjson.dumps({"all": True})
        purged = await ask(gateway, "/phasewise/v1/cache/purge", "POST", body=body)
        assert orjson.loads(purged.body) == {"purged": 3}
        purged = await ask(gateway, "/phasewise/v1/cache/purge", "POST", body=body)
        assert orjson.loads(purged.body) == {"purged": 0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_a_process_that_ends_is_replaced_however_it_ended(tmp_path, number):
    async with running_engines(1) as (engine,), gateway_of_three(tmp_path, engine) as gateway:
        first = children(gateway)[0]
        os.kill(first, number)
        await eventually(lambda: first not in children(gateway) and max(serving(tmp_path)) == 4)
        replies = await asyncio.gather(*(ask(gateway, "/health") for _ in range(12)))
        assert {reply.status for reply in replies} == {200}


async def test_a_process_that_stands_still_does_not_silence_the_others(tmp_path):
    async with running_engines(1) as (engine,), gateway_of_three(tmp_path, engine) as gateway:
        stopped = children(gateway)[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            answered = 0
            async with asyncio.timeout(300):
                while answered < 2:  # what the kernel gives to the stopped process is never answered
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(10):
                            answered += (await ask(gateway, "/metrics")).status == 200
        finally:
            os.kill(stopped, signal.SIGCONT)
