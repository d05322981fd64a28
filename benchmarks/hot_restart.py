"""Replaces the processes of a gateway again and again under load, and counts what clients notice.

    python benchmarks/hot_restart.py [--restarts 20] [--streams 500] [--rate 200] [--processes 2] [--quick]
        [--json]

Four fake engines behind one gateway. So many streams are open all the time, and so many requests a second
come over connections of their own, in conversations whose next turn repeats the one before. Each restart is a
`phasewise gateway --restart FILE`; the next one follows when the old processes have ended.

The last line is one JSON object: restarts, refused (connections that were refused or reset before an answer),
cut (streams without their end, and answers that broke off), streams and requests (how many there were),
hit_share_before and hit_share_after (the share of prompt tokens that the engines' prefix caches held, before
the first restart and since), hit_share_lost (in points of a hundred), seconds per restart, and the
interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil
from script import command_line, interpreter, print_record, say
from stress.processes import fake_engines, steady_steps

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import FailureKind, UpstreamError

TIMEOUTS = Timeouts(connect_s=30.0, head_s=60.0, idle_s=60.0)
PHASEWISE = (sys.executable, "-m", "phasewise.cli")
STREAM_TOKENS, SETTLE_S = 100, 10.0
QUICK_TOKENS, QUICK_SETTLE_S = 20, 3.0
# Steps of a tenth of a second: 500 streams are 5,000 chunks a second, which these cores can carry.
COST = steady_steps(0.1)
SHAPE = {"max_num_seqs": 1024, "max_num_batched_tokens": 10**6, "total_blocks": 100_000}
ENDED_WITHIN_S = 180.0


def main() -> None:
    """Load, replace, count, print."""
    parser = command_line(__doc__, quick="two restarts under a light load")
    parser.add_argument("--restarts", type=int, help="default: 20")
    parser.add_argument("--streams", type=int, help="default: 500")
    parser.add_argument("--rate", type=float, help="new connections per second; default: 200")
    parser.add_argument("--processes", type=int, default=2, help="of each gateway; default: 2")
    options = parser.parse_args()
    quick = options.quick
    options.restarts = options.restarts or (2 if quick else 20)
    options.streams = options.streams or (20 if quick else 500)
    options.rate = options.rate or (20.0 if quick else 200.0)
    options.tokens, options.settle_s = (QUICK_TOKENS, QUICK_SETTLE_S) if quick else (STREAM_TOKENS, SETTLE_S)
    with tempfile.TemporaryDirectory(prefix="hot-restart-") as folder:
        record = asyncio.run(measured(Path(folder), options))
    print_record(record, options)


@dataclass(slots=True)
class Seen:
    """What clients met."""

    streams: int = 0
    requests: int = 0
    refused: int = 0
    cut: int = 0
    others: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def failed(self, error: UpstreamError, *, begun: bool) -> None:
        """A client got no answer, or not the whole of one."""
        if begun:
            self.cut += 1
        elif error.kind in {FailureKind.CONNECTION_REFUSED, FailureKind.CLOSED}:
            self.refused += 1
        else:
            self.others[error.kind] += 1

    def take_hits(self) -> float:
        """The share of prompt tokens that were cached since this was last asked."""
        share = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        self.prompt_tokens = self.cached_tokens = 0
        return share


async def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The whole run."""
    with fake_engines(4, COST, SHAPE, model="fake") as engines:
        file, url = written(folder, engines, options.processes)
        gateway = await started(file, url)
        seen, took_s, loaded_s = Seen(), [], time.monotonic()
        async with load(url, options, seen):
            await asyncio.sleep(options.settle_s)
            seen.take_hits()  # first turns, which nothing can have cached
            await asyncio.sleep(options.settle_s)
            before = seen.take_hits()
            for number in range(options.restarts):
                began_s = time.monotonic()
                before_it = psutil.Process(gateway.pid).children()
                if await (await begun(file, "--restart")).wait():
                    raise SystemExit("error: the processes were not replaced")
                await asyncio.to_thread(psutil.wait_procs, before_it, ENDED_WITHIN_S)
                took_s.append(time.monotonic() - began_s)
                words = f"{took_s[-1]:.1f} s, {seen.refused} refused, {seen.cut} cut, {dict(seen.others)}"
                say(f"restart {number + 1}: {words}")
            await asyncio.sleep(options.settle_s)
            after = seen.take_hits()
        gateway.terminate()
        await asyncio.wait_for(gateway.wait(), ENDED_WITHIN_S)
    return {
        "restarts": len(took_s),
        "refused": seen.refused,
        "cut": seen.cut,
        "other_failures": dict(seen.others),
        "streams": seen.streams,
        "requests": seen.requests,
        "hit_share_before": round(before, 3),
        "hit_share_after": round(after, 3),
        "hit_share_lost": round(100 * (before - after), 1),
        "requests_per_s": round(seen.requests / (time.monotonic() - loaded_s), 1),
        "seconds_per_restart": round(max(took_s), 1),
        "processes": options.processes,
        "python": interpreter(),
    }


def written(folder: Path, engines: list[str], processes: int) -> tuple[Path, str]:
    """The gateway's file and its address."""
    port = random.randrange(20_000, 30_000)
    file = folder / "gateway.yaml"
    workers = [
        {"name": f"w{number}", "url": url, "model": "fake", "slots": 1_000}
        for number, url in enumerate(engines)
    ]
    settings = {"port": port, "processes": processes, "policy": "prefix_affinity", "drain_s": 60}
    file.write_text(json.dumps({"gateway": settings, "workers": workers}))
    return file, f"http://127.0.0.1:{port}"


async def begun(file: Path, *more: str) -> asyncio.subprocess.Process:
    """The command with this file, which was started."""
    return await asyncio.create_subprocess_exec(
        *(*PHASEWISE, "gateway", str(file), *more),
        stdout=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PHASEWISE_HOME": str(file.parent)},
    )


async def started(file: Path, url: str) -> asyncio.subprocess.Process:
    """A gateway that serves."""
    process = await begun(file)
    client = HttpClient(url, TIMEOUTS)
    for _ in range(600):
        with contextlib.suppress(UpstreamError):
            if (await client.fetch("GET", "/health")).status == 200:
                client.close()
                return process
        await asyncio.sleep(0.1)
    raise SystemExit("error: the gateway does not answer")


@contextlib.asynccontextmanager
async def load(url: str, options: argparse.Namespace, seen: Seen) -> AsyncIterator[None]:
    """Streams and short requests until the block is left."""
    tasks = [asyncio.create_task(stream_on(url, options, seen)) for _ in range(options.streams)]
    tasks.append(asyncio.create_task(requests(url, options.rate, seen)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def stream_on(url: str, options: argparse.Namespace, seen: Seen) -> None:
    """One stream after the other over one client, which keeps its connection if it may."""
    client = HttpClient(url, TIMEOUTS)
    await asyncio.sleep(random.random() * options.settle_s)
    try:
        while True:
            seen.streams += 1
            await one_stream(client, options.tokens, seen)
    finally:
        client.close()


async def one_stream(client: HttpClient, tokens: int, seen: Seen) -> None:
    """One stream to its end."""
    words = [{"role": "user", "content": f"tell me of {random.random()}"}]
    body = {"model": "fake", "messages": words, "stream": True, "max_tokens": tokens}
    begins = False
    try:
        async with await client.send("POST", "/v1/chat/completions", body=_json(body)) as reply:
            begins, end = True, b""
            while data := await reply.read():
                end = (end + data)[-100:]
        seen.cut += b"[DONE]" not in end
    except UpstreamError as error:
        seen.failed(error, begun=begins)


async def requests(url: str, rate: float, seen: Seen) -> None:
    """Turns of conversations at this rate, each over a connection of its own."""
    under_way: set[asyncio.Task[None]] = set()
    # Each has a turn about every second.
    conversations: list[list[dict[str, str]]] = [[] for _ in range(round(rate))]
    due_s, number = time.monotonic(), 0
    try:
        while True:
            task = asyncio.create_task(one_request(url, conversations, number % len(conversations), seen))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            number += 1
            due_s += 1 / rate
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    finally:
        for task in under_way:
            task.cancel()


async def one_request(url: str, conversations: list[list[dict[str, str]]], number: int, seen: Seen) -> None:
    """The next turn of one conversation; a long one begins again."""
    turns = conversations[number]
    if len(turns) > 12 or not turns:
        topic = " ".join(str(random.random()) for _ in range(40))
        turns = conversations[number] = [{"role": "system", "content": topic}]
    turns.append({"role": "user", "content": " ".join(str(random.random()) for _ in range(10))})
    client = HttpClient(url, TIMEOUTS)
    seen.requests += 1
    try:
        body = _json({"model": "fake", "messages": turns, "max_tokens": 4})
        reply = await client.fetch("POST", "/v1/chat/completions", body=body)
        if reply.status != 200:
            seen.others[str(reply.status)] += 1
            return
        answer = orjson.loads(reply.body)
        turns.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        usage = answer["usage"]
        seen.prompt_tokens += usage["prompt_tokens"]
        seen.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    except UpstreamError as error:
        seen.failed(error, begun=False)
    finally:
        client.close()


def _json(body: dict[str, Any]) -> bytes:
    return orjson.dumps(body)


if __name__ == "__main__":
    main()
