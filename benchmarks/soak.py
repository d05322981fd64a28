"""Does a gateway that is never left in peace leak, slow down or lose count?

    python benchmarks/soak.py [--minutes 60] [--seed 1] [--quick] [--json]

A gateway process with limits in a real redis-server stands before three fake engines, each a process. Clients
come and go all the time: streams, some of which are left in the middle, short requests, keys over their
limits, hostile requests. Every few seconds something else happens: an engine is killed and another takes its
name, or comes under a new name; a key is revoked and another given out; the file is broken for a moment;
Redis is killed and comes back, or hangs.

Once a second the gateway checks its own books (soaking/checked_gateway.py), and its memory and open files are
read. At the end all clients leave, and nothing may be held any more.

The last line is one JSON object: requests, rss_slope_mb_per_h and fd_slope (per hour, a line through the
second half's readings), invariants_broken (with the first few in words), left_over (what is still held after
everybody has left), what happened how often, own_5xx and hangs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil
import uvloop
from ending import end_in_order_when_told
from hostile import bodies, raw
from hostile.cases import ADMIN_KEY, KEYS, Case
from hostile.judge import Tally
from hostile.sending import PATIENCE, send_one, send_one_raw
from shared_limits import Redis
from stress.processes import MODEL, fake_engines, free_port, running, wait_until_ready
from stress.streams import HEADERS, ask, chat_body

from phasewise.clients.http_client import HttpClient
from phasewise.gateway.api.auth import key_sha256

COST = {"floor_s": 0.02, "knee_tokens": 2048, "beyond_knee_s_per_token": 1e-5, "per_request_s": 1e-4}
COST |= {"attention_s_per_token_pair": 0.0, "kv_read_s_per_token": 0.0}
SHAPE = {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "block_size": 16, "total_blocks": 8192}
ENGINES, STREAMERS, SHORT, HOSTILE_PER_S = 3, 12, 4, 5.0
CHANGE_EVERY_S = 5.0
LEAVE_WITHIN_S = 20.0
LEAVES_SHARE = 0.2


@dataclass(slots=True)
class Fleet:
    """The engines, the keys and the file that names them."""

    file: Path
    settings: dict[str, Any]
    engines: dict[str, tuple[str, ExitStack]] = field(default_factory=dict)
    extra_keys: list[str] = field(default_factory=list)
    pid: int = 0
    number: int = 0

    def start_engine(self, name: str) -> None:
        """One engine in a process of its own."""
        life = ExitStack()
        url = life.enter_context(fake_engines(1, COST, SHAPE))[0]
        self.engines[name] = (url, life)

    def stop_engine(self, name: str) -> None:
        """End its process at once."""
        self.engines.pop(name)[1].close()

    def stop_engines(self) -> None:
        """End the processes of all that are left."""
        for _, life in self.engines.values():
            life.close()

    def config(self) -> dict[str, Any]:
        """The file's content."""
        keys: list[dict[str, Any]] = [
            {"sha256": key_sha256(key), "tenant": name} for name, key in KEYS.items()
        ]
        keys += [{"sha256": key_sha256(it), "tenant": it} for it in self.extra_keys]
        keys[0]["requests_per_minute"] = 600
        workers = [
            {"name": name, "url": url, "model": MODEL, "slots": 32} for name, (url, _) in self.engines.items()
        ]
        return {"gateway": {**self.settings, "api_keys": keys}, "workers": workers}

    def write(self, config: dict[str, Any] | None = None) -> None:
        """Replace the file, and have it read."""
        beside = self.file.with_suffix(".new")
        beside.write_text(json.dumps(config or self.config()))
        beside.replace(self.file)
        if self.pid:
            psutil.Process(self.pid).send_signal(signal.SIGHUP)


@dataclass(slots=True)
class Seen:
    """What was measured and what happened."""

    tally: Tally = field(default_factory=Tally)
    happened: Counter[str] = field(default_factory=Counter)
    streams: Counter[str] = field(default_factory=Counter)
    readings: list[tuple[float, float, int]] = field(default_factory=list)
    """Seconds since the start, memory in MiB, open files."""


def main() -> None:
    """Soak, and print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="half a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    options = parser.parse_args()
    end_in_order_when_told()
    seconds = 30.0 if options.quick else 60 * options.minutes
    redis, seen = Redis(), Seen()
    with tempfile.TemporaryDirectory() as name, redis.running():
        folder = Path(name)
        with soaked(folder, redis) as (url, fleet):
            uvloop.run(soak(url, fleet, redis, seen, seconds, Random(options.seed), quiet=options.json))
        checks = [json.loads(line) for line in (folder / "checks.jsonl").read_text().splitlines()]
    print(json.dumps(record(seen, checks, seconds)))


@contextmanager
def soaked(folder: Path, redis: Redis) -> Iterator[tuple[str, Fleet]]:
    """A gateway with its engines."""
    port, log = free_port(), folder / "gateway.log"
    settings = {
        "port": port,
        "admin_key_sha256": key_sha256(ADMIN_KEY),
        "keep_timelines": 1_000,
        "limits": {"head_s": 2.0, "body_s": 2.0, "body": "2MiB"},
        "redis": {"url": redis.url},
        "queue": {"max_waiting": 200},
        "upstream": {"connect_s": 1.0},
    }
    fleet = Fleet(folder / "gateway.yaml", settings)
    script = str(Path(__file__).parent / "soaking" / "checked_gateway.py")
    command = [sys.executable, script, str(fleet.file), str(folder / "checks.jsonl")]
    with ExitStack() as lives:
        lives.callback(fleet.stop_engines)
        for number in range(ENGINES):
            fleet.start_engine(f"engine-{number}")
        fleet.write()
        written = lives.enter_context(log.open("wb"))
        process = lives.enter_context(running(command, stderr=written))
        wait_until_ready(f"http://127.0.0.1:{port}", process, log)
        fleet.pid = process.pid
        yield f"http://127.0.0.1:{port}", fleet
        if process.poll() is not None:
            raise SystemExit(f"the gateway ended: {log.read_text(errors='replace')[-2000:]}")


async def soak(
    url: str, fleet: Fleet, redis: Redis, seen: Seen, seconds: float, rng: Random, *, quiet: bool
) -> None:
    """Clients and changes for so long; then everybody leaves."""
    client = HttpClient(url, PATIENCE)
    began_s = time.monotonic()
    jobs = [asyncio.create_task(stream(client, seen, Random(number))) for number in range(STREAMERS)]
    jobs += [asyncio.create_task(short(client, seen, Random(100 + number))) for number in range(SHORT)]
    jobs.append(asyncio.create_task(attack(url, client, seen, rng)))
    jobs.append(asyncio.create_task(change(fleet, redis, seen, rng)))
    process, said_s = psutil.Process(fleet.pid), began_s
    while (now_s := time.monotonic()) < began_s + seconds:
        seen.readings.append((now_s - began_s, process.memory_info().rss / 2**20, process.num_fds()))
        if not quiet and now_s > said_s + 60:
            said_s = now_s
            print(f"{(now_s - began_s) / 60:.0f} min: {seen.readings[-1][1]:.0f} MiB, {dict(seen.streams)}",
                  file=sys.stderr, flush=True)  # fmt: skip
        await asyncio.sleep(1.0)
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    client.close()
    await asyncio.sleep(LEAVE_WITHIN_S)


async def stream(client: HttpClient, seen: Seen, rng: Random) -> None:
    """One stream after the other; some are left in the middle."""
    headers = (*HEADERS, (b"authorization", f"Bearer {KEYS['b']}".encode()))
    while True:
        body = chat_body(MODEL, f"{rng.random()} " + "word " * rng.randint(1, 300), rng.randint(5, 60))
        try:
            async with asyncio.timeout(rng.uniform(0.05, 1.0) if rng.random() < LEAVES_SHARE else None):
                answer = await ask(client, body, headers=headers)
            seen.streams["whole" if answer.whole else f"not whole: {answer.status or answer.failure}"] += 1
        except TimeoutError:
            seen.streams["left"] += 1
        await asyncio.sleep(rng.expovariate(5.0))


async def short(client: HttpClient, seen: Seen, rng: Random) -> None:
    """Short requests of a key with a limit, as fast as it goes."""
    while True:
        await send_one(client, bodies.valid(rng, "a"), seen.tally)
        await asyncio.sleep(rng.expovariate(10.0))


async def attack(url: str, client: HttpClient, seen: Seen, rng: Random) -> None:
    """Hostile requests, some at a time."""
    under_way: set[asyncio.Task[None]] = set()
    while True:
        case = raw.draw(rng, 1)[0] if rng.random() < 0.3 else rng.choice(bodies.WRONG)(rng, "b")
        sending = (
            send_one(client, case, seen.tally)
            if isinstance(case, Case)
            else send_one_raw(url, case, seen.tally)
        )
        task = asyncio.create_task(sending)
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        await asyncio.sleep(rng.expovariate(HOSTILE_PER_S))


async def change(fleet: Fleet, redis: Redis, seen: Seen, rng: Random) -> None:
    """Something else every few seconds."""
    ways = ("other_engine", "killed_engine", "other_key", "broken_file", "other_limits", "redis")
    while True:
        await asyncio.sleep(rng.uniform(0.5, 1.5) * CHANGE_EVERY_S)
        way = rng.choice(ways)
        seen.happened[way] += 1
        if way == "redis":
            await disturb(redis, rng)
        else:
            await asyncio.to_thread(_changed, way, fleet, rng)


def _changed(way: str, fleet: Fleet, rng: Random) -> None:
    name = rng.choice(sorted(fleet.engines))
    fleet.number += 1
    if way == "other_engine":
        fleet.start_engine(f"engine-{fleet.number}-new")
        gone = fleet.engines.pop(name)
        fleet.write()
        time.sleep(2.0)
        gone[1].close()
    elif way == "killed_engine":
        fleet.stop_engine(name)
        fleet.start_engine(name)
        fleet.write()
    elif way == "other_key":
        fleet.extra_keys = [*fleet.extra_keys[-5:], f"tenant-{fleet.number}"]
        fleet.write()
    elif way == "other_limits":
        fleet.settings["queue"] = {"max_waiting": rng.randint(50, 500)}
        fleet.write()
    else:
        fleet.write({"gateway": {"port": "none"}})
        time.sleep(1.0)
        fleet.write()


async def disturb(redis: Redis, rng: Random) -> None:
    """Redis dies and comes back, or hangs for a while."""
    if rng.random() < 0.5:
        redis.kill()
    else:
        redis.hold_up()
        await asyncio.sleep(2.0)
        redis.kill()
    await asyncio.sleep(1.0)
    redis.start()


def record(seen: Seen, checks: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The figures."""
    late = [it for it in seen.readings if it[0] >= seconds / 2]
    broken = [said for check in checks for said in check["broken"]]
    left = {name: checks[-1][name] for name in ("open", "booked", "waiting", "body_bytes", "clients")}
    build = (platform.python_implementation(), platform.python_version(), *platform.python_build())
    return {
        "requests": sum(seen.tally.sent.values()) + sum(seen.streams.values()),
        "rss_slope_mb_per_h": round(_slope_per_h(late, 1), 2),
        "fd_slope": round(_slope_per_h(late, 2), 2),
        "invariants_broken": len(broken),
        "broken": broken[:5],
        "checks": len(checks),
        "left_over": {name: count for name, count in left.items() if count},
        "rss_mb": [round(it[1], 1) for it in (seen.readings[0], late[0], late[-1])],
        "fds": [it[2] for it in (seen.readings[0], late[0], late[-1])],
        "happened": dict(seen.happened),
        "streams": dict(seen.streams),
        "own_5xx": seen.tally.undocumented_5xx,
        "documented_5xx": dict(seen.tally.documented_5xx),
        "hangs": seen.tally.hangs,
        "minutes": round(seconds / 60, 1),
        "python": " ".join(build),
    }


def _slope_per_h(readings: list[tuple[float, float, int]], place: int) -> float:
    if len(readings) < 2:
        return 0.0
    return float(np.polyfit([it[0] / 3600 for it in readings], [it[place] for it in readings], 1)[0])


if __name__ == "__main__":
    main()
