"""Kills real engines in mid-stream under `phasewise up` and holds what the client read against the truth."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from stress.processes import fleet_status, phasewise

from phasewise.clients.http_client import HttpClient

from .asking import CHAT, PATIENT
from .near_tie import NEAR_TIE_NATS
from .reading import WHOLE, Read, read_stream
from .timelines import ADMIN_KEY_SHA256, attempts_of, serving_worker, wait_for_workers
from .undisturbed import Undisturbed, undisturbed

FLEET = "faults-bench"
MODEL = "smollm2-135m"
PLAN = f"""
version: 1
name: {FLEET}
model: {MODEL}
first_engine_port: 18600
pools:
  - name: main
    replicas: 2
    cores: 1
gateway:
  port: 18680
  admin_key_sha256: {ADMIN_KEY_SHA256}
"""
URL = "http://127.0.0.1:18680"
TOKENS = 60
KILL_AFTER_CHUNKS = (1, 5, 12, 25, 40)
SUBJECTS = ("a lighthouse", "two captains", "the harvest", "a lost letter", "the first snow")


async def kill_real_engines(kills: int) -> dict[str, Any]:
    """So many kills, each in the middle of a stream; the engine is back before the next."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "fleet.yaml"
        plan.write_text(PLAN)
        fleet = phasewise("up", str(plan), "--detach", "--no-engine-keys")
    client = HttpClient(URL, PATIENT)
    tally: dict[str, Any] = {"kills": 0, "exact": 0, "near_ties": 0, "wrong_text": 0, "ended_with_error": 0}
    ids: list[str] = []
    try:
        for number in range(kills):
            read, verdict = await one_kill(client, fleet["engines"][0]["url"], number)
            ids.append(read.request_id)
            tally["kills"] += 1
            tally[verdict] += 1
            print(f"kill {number + 1} of {kills}: {verdict}, {read.ended}", file=sys.stderr, flush=True)
        attempts = await attempts_of(client, ids)
    finally:
        client.close()
        phasewise("down", FLEET)
    resumed = sum(it.resumed for it in attempts)
    return {**tally, "resumed": resumed, "attempts_max": max(it.met for it in attempts)}


async def one_kill(client: HttpClient, engine_url: str, number: int) -> tuple[Read, str]:
    """A stream whose engine is killed, and what is to be said of it; both engines serve before and after."""
    lives = await wait_for_workers(URL, 2)
    body = request(number)
    # Asked over connections of their own: those to an engine that was killed since are dead.
    engine = HttpClient(engine_url, PATIENT)
    expected = await undisturbed(engine, CHAT, body)
    engine.close()
    read, killed = await killed_in_mid_stream(client, body, KILL_AFTER_CHUNKS[number % 5])
    await wait_for_workers(URL, 2, [life for life in lives if life[0] == killed])
    engine = HttpClient(engine_url, PATIENT)
    verdict = await judged(engine, read, expected)
    engine.close()
    return read, verdict


def request(number: int) -> dict[str, Any]:
    """A greedy chat; each has a subject of its own."""
    subject = SUBJECTS[number % len(SUBJECTS)]
    messages = [{"role": "user", "content": f"Tell me story number {number}, about {subject}."}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}


async def killed_in_mid_stream(
    client: HttpClient, body: dict[str, Any], after_chunks: int
) -> tuple[Read, str | None]:
    """A stream whose engine gets kill -9 when so many chunks have come, and that engine's name."""
    here = asyncio.Event()
    begun: list[Read] = []

    def seen(read: Read) -> None:
        if read.chunks == after_chunks:
            begun.append(read)
            here.set()

    reading = asyncio.ensure_future(read_stream(client, CHAT, {**body, "stream": True}, seen))
    await asyncio.wait_for(here.wait(), timeout=120.0)
    worker = await serving_worker(client, begun[0].request_id)
    for engine in fleet_status(FLEET)["engines"]:
        if engine["name"] == worker:
            # The engine leads a group of its own; its core may be a process beside the front end.
            os.killpg(os.getpgid(engine["process"]["pid"]), signal.SIGKILL)
    return await reading, worker


async def judged(engine: HttpClient, read: Read, expected: Undisturbed) -> str:
    """Which of the tally's counts a stream belongs to."""
    if read.ended != WHOLE:
        return "ended_with_error"
    gap = await expected.gap_where_it_parts(engine, read.text)
    if gap is None:
        return "exact" if read.text == "".join(expected.texts) else "wrong_text"
    return "near_ties" if gap < NEAR_TIE_NATS else "wrong_text"
