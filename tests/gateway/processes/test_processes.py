"""A gateway of several processes, as one gateway to its clients and its operator."""

from __future__ import annotations

import asyncio
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
from tests.gateway.gateway_process import home_of, running_process
from tests.gateway.harness import chat_body, events_of, eventually

ADMIN = [(b"authorization", b"Bearer admin")]
SETTINGS = {"admin_key_sha256": key_sha256("admin"), "processes": 3}
PATIENT = Timeouts(connect_s=30.0, head_s=60.0, idle_s=60.0)


async def all_serve(tmp_path, count):
    """Wait until so many processes answer each other."""

    def is_so():
        # Another process may answer before the first has recorded the gateway.
        states = living_gateways(home_of(tmp_path / "gateway.yaml"))
        return states and len(list(Path(states[0].folder).glob("process-*"))) == count

    await eventually(is_so)


def children(gateway):
    return [it.pid for it in psutil.Process(gateway.process.pid).children()]


async def ask(gateway, path, method="GET"):
    """One answer over a connection of its own: any process may have it."""
    client = HttpClient(gateway.client.base_url, PATIENT)
    try:
        return await client.fetch(method, path, headers=ADMIN)
    finally:
        client.close()


async def chat(gateway, **fields):
    client = HttpClient(gateway.client.base_url, PATIENT)
    try:
        body = orjson.dumps(chat_body(**fields))
        return await client.fetch("POST", "/v1/chat/completions", body=body)
    finally:
        client.close()


def counted(text):
    found = re.findall(rb"^phasewise_requests_total\{[^}]*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


async def test_every_process_answers_for_all(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        await all_serve(tmp_path, 3)
        for _ in range(3):
            replies = await asyncio.gather(*(chat(gateway) for _ in range(8)))
            assert {it.status for it in replies} == {200}
            await asyncio.sleep(0.2)
        # Another process may send an answer a moment before it records it.
        await eventually(lambda: has_counted(gateway, 24))
        for _ in range(6):
            assert counted((await ask(gateway, "/metrics")).body) == 24
            listed = (await ask(gateway, "/phasewise/v1/requests?limit=100")).body.splitlines()
            assert len(listed) == 24
        ends = [it.started_unix_s + it.ended_s for it in map(decode, listed)]
        # Each process keeps the order in which it recorded them, some microseconds after their ends.
        assert all(later > earlier - 0.1 for earlier, later in pairwise(ends))
        for line in listed[:6]:
            request_id = orjson.loads(line)["id"]
            found = await ask(gateway, f"/phasewise/v1/requests/{request_id}")
            assert orjson.loads(found.body)["id"] == request_id


async def test_a_reader_that_pages_misses_nothing_and_gets_nothing_twice(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        await asyncio.gather(*(chat(gateway) for _ in range(20)))
        cursor, seen = "0", []
        for _ in range(60):
            reply = await ask(gateway, f"/phasewise/v1/requests?after={cursor}&limit=7")
            seen += [orjson.loads(it)["id"] for it in reply.body.splitlines()]
            cursor = dict(reply.headers)[b"x-phasewise-next"].decode()
            if len(seen) == 14:
                await chat(gateway)
        assert len(seen) == len(set(seen)) == 21


async def test_diagnose_reads_the_requests_of_all_processes_once(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        await all_serve(tmp_path, 3)
        feed, seen = TimelineFeed(gateway.client, ADMIN), []

        async def has(count):
            seen.extend(it.request_id for it in await feed.read())
            return len(seen) >= count

        for count in (10, 20):
            await asyncio.gather(*(chat(gateway) for _ in range(10)))
            # Another process may send an answer a moment before it records it.
            await eventually(lambda count=count: has(count))
        assert len(seen) == len(set(seen)) == 20


async def test_a_killed_process_loses_its_own_streams_alone_and_counters_stay(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        await asyncio.gather(*(chat(gateway) for _ in range(12)))
        before = counted((await ask(gateway, "/metrics")).body)
        engine.inject("slow", factor=20.0)
        body = {"stream": True, "max_tokens": 300, "ignore_eos": True}
        written = engine.tokens_written
        streams = [asyncio.create_task(chat(gateway, **body)) for _ in range(12)]
        await eventually(lambda: engine.tokens_written > written + 24)
        victim = max(children(gateway), key=lambda pid: len(psutil.Process(pid).net_connections("tcp")))
        os.kill(victim, signal.SIGKILL)
        ended = await asyncio.gather(*streams, return_exceptions=True)
        whole = [it for it in ended if not isinstance(it, Exception) and events_of(it.body)[-1] == "[DONE]"]
        assert 1 <= len(ended) - len(whole) < 12
        await eventually(lambda: len(children(gateway)) == 3 and victim not in children(gateway))
        engine.clear_faults()
        after = await eventually(lambda: has_counted(gateway, before + len(whole)))
        assert after
        loads = orjson.loads((await ask(gateway, "/phasewise/v1/workers")).body)["workers"]
        assert loads[0]["requests"] == 0
        assert {(await chat(gateway)).status for _ in range(6)} == {200}


async def has_counted(gateway, least):
    return counted((await ask(gateway, "/metrics")).body) >= least


async def test_a_limit_holds_over_all_processes(tmp_path):
    key = {"sha256": key_sha256("client"), "requests_per_minute": 10}
    settings = {**SETTINGS, "api_keys": [key]}
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **settings) as gateway:
        bearer = [(b"authorization", b"Bearer client")]

        async def one():
            client = HttpClient(gateway.client.base_url, PATIENT)
            try:
                body = orjson.dumps(chat_body(max_tokens=1))
                return (await client.fetch("POST", "/v1/chat/completions", headers=bearer, body=body)).status
            finally:
                client.close()

        began_s = time.monotonic()
        statuses = await asyncio.gather(*(one() for _ in range(40)))
        assert set(statuses) == {200, 429}
        # One more passes for every six seconds that this takes.
        assert 10 <= statuses.count(200) <= 10 + 1 + (time.monotonic() - began_s) / 6


async def test_slots_are_shared_and_whoever_waits_gets_its_turn(tmp_path):
    async with (
        running_engines(1) as (engine,),
        running_process(tmp_path, engine, slots=2, **SETTINGS) as gateway,
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
        assert {it.status for it in replies} == {200}
        # Two processes may take the last slot at once.
        assert 2 <= most <= 2 + 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_the_streams_of_all_processes_finish(tmp_path, number):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        engine.inject("slow", factor=30.0)
        streams = [asyncio.create_task(chat(gateway, stream=True, max_tokens=30)) for _ in range(9)]
        await eventually(lambda: engine.engine.running == len(streams))
        pids = children(gateway)
        gateway.process.send_signal(number)
        for reply in await asyncio.gather(*streams):
            assert events_of(reply.body)[-1] == "[DONE]"
        code, errors = await gateway.ended()
        assert code == 0
        assert "Traceback" not in errors
        assert not any(map(psutil.pid_exists, pids))


async def test_processes_end_with_a_supervisor_that_was_killed(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        pids = children(gateway)
        assert len(pids) == 3
        gateway.process.kill()
        await eventually(lambda: not any(map(psutil.pid_exists, pids)))


async def test_a_reload_reaches_all_processes(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        await all_serve(tmp_path, 3)
        path = tmp_path / "gateway.yaml"
        path.write_text(path.read_text().replace("name: w0", "name: renamed"))
        assert (await ask(gateway, "/phasewise/v1/reload", "POST")).status == 200
        names = {
            orjson.loads((await ask(gateway, "/phasewise/v1/workers")).body)["workers"][0]["name"]
            for _ in range(12)
        }
        assert names == {"renamed"}


async def test_a_conversation_stays_where_it_is_whichever_process_gets_its_turns(tmp_path):
    async with (
        running_engines(3) as engines,
        running_process(tmp_path, *engines, **SETTINGS) as gateway,
    ):
        await all_serve(tmp_path, 3)
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
            await asyncio.sleep(0.2)  # the processes tell each other every 10 ms
        listed = (await ask(gateway, "/phasewise/v1/requests?limit=100")).body.splitlines()
        later = list(map(decode, listed))[len(conversations) :]
        assert len(later) == 45
        # By chance a third of them would be; a machine that stands still may let one come too early.
        assert sum(it.cached_tokens > it.prompt_tokens / 2 for it in later) >= 40


async def replaced(gateway, killed):
    """Wait until another process is in the place of one that has ended."""
    await eventually(lambda: len(children(gateway)) == 3 and killed not in children(gateway))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_a_process_that_ends_is_replaced_however_it_ended(tmp_path, number):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        await all_serve(tmp_path, 3)
        first = children(gateway)[0]
        os.kill(first, number)
        await replaced(gateway, first)
        replies = await asyncio.gather(*(ask(gateway, "/health") for _ in range(12)))
        assert {it.status for it in replies} == {200}


@pytest.mark.parametrize("change", ["this: is not\n  yaml: at all", "  api_keys: [{sha256: %s}]"])
async def test_whoever_takes_a_dead_ones_place_has_the_configuration_in_force(tmp_path, change):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        await all_serve(tmp_path, 3)
        path = tmp_path / "gateway.yaml"
        more = change % ("a" * 64) if "%s" in change else change
        path.write_text(path.read_text().replace("gateway:\n", f"gateway:\n{more}\n"))
        first = children(gateway)[0]
        os.kill(first, signal.SIGKILL)
        await replaced(gateway, first)
        replies = await asyncio.gather(*(chat(gateway) for _ in range(12)))
        assert {it.status for it in replies} == {200}


async def test_ctrl_c_reaches_each_process_once(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        await all_serve(tmp_path, 3)
        # A terminal sends it to the group of the process that it started, and to no other.
        group = os.getpgid(gateway.process.pid)
        assert all(os.getpgid(pid) != group for pid in children(gateway))


async def test_the_live_view_counts_the_requests_of_all_processes_once(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        await all_serve(tmp_path, 3)
        await asyncio.gather(*(chat(gateway) for _ in range(20)))
        await eventually(lambda: has_counted(gateway, 20))
        for _ in range(6):
            live = orjson.loads((await ask(gateway, "/phasewise/v1/live")).body)
            assert live["ended"] == 20


async def test_a_process_that_stands_still_does_not_silence_the_others(tmp_path):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine, **SETTINGS) as gateway:
        await all_serve(tmp_path, 3)
        stopped = children(gateway)[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            done = 0
            for _ in range(9):  # those of the stopped process are never answered
                try:
                    async with asyncio.timeout(4):
                        done += (await ask(gateway, "/metrics")).status == 200
                except TimeoutError:
                    continue
            assert done >= 2
        finally:
            os.kill(stopped, signal.SIGCONT)
