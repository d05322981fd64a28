"""Breaks KV transfers between two real engines under `phasewise up`, each way once, by signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
from resuming.asking import CHAT, PATIENT
from resuming.reading import Read, read_stream
from resuming.real_kills import judged, phasewise
from resuming.timelines import ADMIN, ADMIN_KEY_SHA256, wait_for_workers
from resuming.undisturbed import undisturbed

from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.http_client import HttpClient

from .load import records_after

FLEET = "kv-transfer-faults"
MODEL = "smollm2-135m"
LEASE_S = 16
PLAN = f"""
version: 1
name: {FLEET}
model: {MODEL}
first_engine_port: 11900
pools:
  - name: prefill
    role: prefill
    cores: 1
  - name: decode
    role: decode
    cores: 1
gateway:
  port: 18690
  admin_key_sha256: {ADMIN_KEY_SHA256}
  kv_transfer:
    when: always
    timeout_s: 8
    lease_s: {LEASE_S}
"""
URL = "http://127.0.0.1:18690"
TOKENS = 40
PROMPT_WORDS = 700
"""Enough for a prefill of a second, in which something can be broken."""
AFTER_CHUNKS = 5
WITHIN_S = 120.0


class Stage:
    """The fleet, and the request that is under way."""

    def __init__(self, fleet: dict[str, Any], client: HttpClient) -> None:
        self.urls = {engine["name"]: engine["url"] for engine in fleet["engines"]}
        self.prefill, self.decode = sorted(self.urls, reverse=True)
        self.chunks = 0
        self.killed: set[str] = set()
        self._client = client
        self._groups: dict[str, int] = {}

    def begin(self) -> None:
        """Look up the engines' processes: asking when something is to break would take too long."""
        reported = json.loads(phasewise("status", "--name", FLEET, "--json", check=False).stdout)
        engines = reported["fleets"][0]["engines"]
        self._groups = {engine["name"]: os.getpgid(engine["process"]["pid"]) for engine in engines}
        self.chunks = 0
        self.killed = set()

    def send(self, name: str, number: signal.Signals) -> None:
        """A signal to every process of an engine, which leads a group of its own."""
        with suppress(ProcessLookupError):
            os.killpg(self._groups[name], number)
        if number is signal.SIGKILL:
            self.killed.add(name)

    async def side_is(self, kind: str) -> None:
        """Return when the request is at this side of its KV transfer."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                reply = await self._client.fetch("GET", "/phasewise/v1/requests/open", headers=ADMIN)
                attempts = [orjson.loads(line)["attempts"] for line in reply.body.splitlines()]
                if any(it and it[-1]["kind"] == kind for it in attempts):
                    return
                await asyncio.sleep(0.02)

    async def has_chunks(self, count: int) -> None:
        """Return when so many chunks of the answer have come."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                if self.chunks >= count:
                    return
                await asyncio.sleep(0.005)

    @asynccontextmanager
    async def decode_held_back(self) -> AsyncIterator[None]:
        """Until the block is left, the decode engine has its side of the request and has not looked at it."""
        self.send(self.decode, signal.SIGSTOP)
        try:
            await self.side_is("decode_side")
            yield
        finally:
            self.send(self.decode, signal.SIGCONT)


async def prefill_dies(stage: Stage) -> None:
    """The prefill engine dies while it computes the prompt."""
    await stage.side_is("prefill_side")
    stage.send(stage.prefill, signal.SIGKILL)


async def kv_of_a_dead_engine(stage: Stage) -> None:
    """The prefill engine dies before its KV is fetched, so that the decode engine rejects the request."""
    async with stage.decode_held_back():
        stage.send(stage.prefill, signal.SIGKILL)


async def decode_dies_before_first_token(stage: Stage) -> None:
    """The decode engine dies with the request before its first token."""
    async with stage.decode_held_back():
        stage.send(stage.decode, signal.SIGKILL)


async def decode_dies_in_mid_answer(stage: Stage) -> None:
    """The decode engine dies while it writes."""
    await stage.has_chunks(AFTER_CHUNKS)
    stage.send(stage.decode, signal.SIGKILL)


async def transfer_hangs(stage: Stage) -> None:
    """The prefill engine stands still when its KV is asked for, until somebody has answered without it."""
    async with stage.decode_held_back():
        stage.send(stage.prefill, signal.SIGSTOP)
    try:
        await stage.has_chunks(1)
    finally:
        stage.send(stage.prefill, signal.SIGCONT)


FAULTS: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    transfer_hangs,
    prefill_dies,
    kv_of_a_dead_engine,
    decode_dies_before_first_token,
    decode_dies_in_mid_answer,
)


async def break_real_engines() -> dict[str, Any]:
    """Each fault once; both engines are back before the next."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "fleet.yaml"
        plan.write_text(PLAN)
        fleet = json.loads(phasewise("up", str(plan), "--detach", "--no-engine-keys", "--json").stdout)
    client = HttpClient(URL, PATIENT)
    tally: dict[str, Any] = {"exact": 0, "near_ties": 0, "wrong_text": 0, "ended_with_error": 0}
    verdicts: dict[str, str] = {}
    try:
        stage = Stage(fleet, client)
        await wait_for_workers(URL, 2)
        # Engines that have met hang where strangers would soon give up on each other.
        await read_stream(client, CHAT, {**request(len(FAULTS)), "stream": True})
        for number, fault in enumerate(FAULTS):
            verdict = await broken_once(stage, client, fault, number)
            verdicts[fault.__name__] = verdict
            tally[verdict] += 1
            print(f"{fault.__name__}: {verdict}", file=sys.stderr, flush=True)
        await wait_for_workers(URL, 2)
        kv_usage_left = await kv_usage_after_lease(stage)
        records, _ = await records_after(client, 0)
    finally:
        client.close()
        phasewise("down", "--name", FLEET)
    return {
        "faults": len(FAULTS),
        **tally,
        "failed_over": records.failed_over,
        "tries_max": records.tries_max,
        "kv_usage_left": kv_usage_left,
        "verdicts": verdicts,
    }


async def broken_once(
    stage: Stage, client: HttpClient, fault: Callable[[Stage], Awaitable[None]], number: int
) -> str:
    """A stream during which something breaks, and what is to be said of its text."""
    lives = await wait_for_workers(URL, 2)
    body = request(number)
    # Under a salt of its own: what it leaves in the cache is of no use to the request itself.
    engine = HttpClient(stage.urls[stage.decode], PATIENT)
    expected = await undisturbed(engine, CHAT, {**body, "cache_salt": "undisturbed"})
    engine.close()
    stage.begin()

    def seen(read: Read) -> None:
        stage.chunks = read.chunks

    breaking = asyncio.ensure_future(fault(stage))
    try:
        await asyncio.sleep(0.2)
        read = await read_stream(client, CHAT, {**body, "stream": True}, seen)
        stage.chunks = TOKENS
        await asyncio.wait_for(breaking, WITHIN_S)
    finally:
        breaking.cancel()
    await wait_for_workers(URL, 2, [life for life in lives if life[0] in stage.killed])
    engine = HttpClient(stage.urls[stage.decode], PATIENT)
    verdict = await judged(engine, read, expected)
    engine.close()
    return verdict


def request(number: int) -> dict[str, Any]:
    """A greedy chat with a long prompt that no other request begins with."""
    words = " ".join(f"{number}{place}" for place in range(PROMPT_WORDS // 2))
    messages = [{"role": "user", "content": f"Story {number}. Go on after these numbers: {words}"}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}


async def kv_usage_after_lease(stage: Stage) -> float:
    """The largest share of KV blocks in use, once KV that nobody fetched had its time to be given up."""
    used = 1.0
    for _ in range(3 * LEASE_S):
        used = max([await _kv_usage(url) for url in stage.urls.values()])
        if not used:
            break
        await asyncio.sleep(1.0)
    return used


async def _kv_usage(url: str) -> float:
    client = HttpClient(url)
    try:
        return (await fetch_metrics(client)).gauge("kv_cache_usage_perc") or 0.0
    finally:
        client.close()
