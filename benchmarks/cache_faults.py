"""What a Redis that dies or hangs does to requests of gateways that keep their answers in it.

    python benchmarks/cache_faults.py [--times 3] [--rate 40] [--phase-s 4] [--quick] [--json]

Four gateways stand before one fake engine, each a process of its own: two share one cache in a real Redis
with vector search, with the real embedding model; two have no cache. At a fixed rate the same new question
goes to all four at once, so what is computed is the same; between new questions one that is known is asked,
which is a hit while there is a Redis. The faults, by turns: **kill** (kill -9, then a start with nothing in
it, as it was told to keep nothing) and **hang** (SIGSTOP, SIGCONT: it keeps its connections).

- `requests` and `failed`: of all gateways and times. One that failed makes the exit code 1.
- `added_ms`: by how much longer a new question took through a gateway with a cache than through one without,
  pair by pair: `healthy`, while `dying` (those under way at the fault, and all until the breaker is open),
  `open` (until Redis is back). `aa_ms` is the same of the two gateways without a cache: the machine's noise.
- `waited`: requests that came after the fault and were late, a deadline's wait each; `opened_s`: from the
  fault until the breaker is open; `resumed_s`: from Redis being back until the known question is a hit again,
  which after a kill has to be computed and kept again.
- `shared`: whether an answer that one gateway kept was a hit of the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from script import command_line, print_record, say

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from answering.clients import ADMIN, ADMIN_KEY, PATIENCE, Asked, ask, ask_until_hit, body_of, new_question  # noqa: E402
from answering.questions import PAIRS  # noqa: E402
from stress.processes import fake_engines, gateway, steady_steps  # noqa: E402

from phasewise.clients.http_client import HttpClient  # noqa: E402
from phasewise.core.errors import UpstreamError  # noqa: E402
from phasewise.core.statistics import quantile  # noqa: E402
from phasewise.gateway.api.auth import key_sha256  # noqa: E402
from tests.redis_search import RedisSearch, running_redis_search  # noqa: E402

COST = steady_steps(0.002)
SHAPE = {
    "max_num_seqs": 1024, "max_num_batched_tokens": 10**6, "total_blocks": 20_000, "mean_output_tokens": 16,
}  # fmt: skip
DEADLINE_S = 0.1
FAULTS = ("kill", "hang")
PHASES = ("healthy", "dying", "open")
KNOWN = body_of(PAIRS[0][0])
WITHIN_S = 60.0


def main() -> None:
    """Break and fix, by turns, and print the record."""
    parser = command_line(__doc__, quick="once and short: proves that the script runs")
    parser.add_argument("--times", type=int, default=3, help="how often each fault is made (default 3)")
    parser.add_argument("--rate", type=float, default=40.0, help="new questions a second (default 40)")
    parser.add_argument("--phase-s", type=float, default=4.0, help="seconds of each phase (default 4)")
    options = parser.parse_args()
    if options.quick:
        options.times, options.rate, options.phase_s = 1, 10.0, 1.0
    with (
        tempfile.TemporaryDirectory(prefix="phasewise-faults-") as folder,
        running_redis_search(Path(folder)) as redis,
        fake_engines(1, COST, SHAPE) as engines,
    ):
        record = uvloop.run(measure(redis, engines, options))
    print_record(record, options)
    if record["failed"]:
        raise SystemExit(f"error: {record['failed']} requests failed")


@dataclass(slots=True)
class Tally:
    """What was seen: differences in seconds, by fault and phase, and what failed."""

    added_s: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    noise_s: list[float] = field(default_factory=list)
    requests: int = 0
    failed: int = 0
    waited: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAULTS, 0))
    opened_s: dict[str, list[float]] = field(default_factory=lambda: {fault: [] for fault in FAULTS})
    resumed_s: dict[str, list[float]] = field(default_factory=lambda: {fault: [] for fault in FAULTS})

    def count(self, fault: str, phase: str, asked: Sequence[Asked]) -> None:
        """One question, asked at all gateways: the two with a cache first."""
        self.requests += len(asked)
        bad = sum(it.status != 200 for it in asked)
        self.failed += bad
        if bad:
            return
        one, other, without, again = (it.took_s for it in asked)
        self.added_s.setdefault((fault, phase), []).extend((one - without, other - again))
        self.noise_s.append(again - without)
        if phase != "healthy":
            self.waited[fault] += sum("detail=late" in it.said for it in asked[:2])

    def record(self) -> dict[str, Any]:
        """For the JSON line."""
        return {
            "requests": self.requests,
            "failed": self.failed,
            "deadline_ms": 1e3 * DEADLINE_S,
            "aa_ms": figures(self.noise_s),
            **{
                fault: {
                    "added_ms": {phase: figures(self.added_s.get((fault, phase), [])) for phase in PHASES},
                    "waited": self.waited[fault],
                    "opened_s": round(max(self.opened_s[fault]), 3),
                    "resumed_s": round(median(self.resumed_s[fault]), 3),
                }
                for fault in FAULTS
            },
        }


def figures(seconds: Sequence[float]) -> dict[str, float] | None:
    """In milliseconds, and of how many."""
    if not seconds:
        return None
    reported = {"p50": quantile(seconds, 0.5), "p99": quantile(seconds, 0.99), "max": max(seconds)}
    return {name: round(1e3 * value, 3) for name, value in reported.items()} | {"of": len(seconds)}


class Scene:
    """The gateways, those with a cache first, and the phase that the next question falls into."""

    def __init__(self, clients: Sequence[HttpClient], tally: Tally) -> None:
        self.clients = clients
        self.tally = tally
        self.fault, self.phase = FAULTS[0], "healthy"
        self._under_way: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def load(self, rate: float) -> AsyncIterator[None]:
        """Questions at this rate, whatever becomes of those before."""
        asking = asyncio.create_task(self._ask_on(rate))
        try:
            yield
        finally:
            asking.cancel()
            await asyncio.gather(asking, *self._under_way, return_exceptions=True)

    async def _ask_on(self, rate: float) -> None:
        began_s = time.monotonic()
        for number in itertools.count():
            await asyncio.sleep(began_s + number / rate - time.monotonic())
            task = asyncio.create_task(self._ask_all(number))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _ask_all(self, number: int) -> None:
        fault, body = self.fault, body_of(new_question())
        # In another order each time: who is asked first waits for the others to be sent.
        order = [(number + place) % len(self.clients) for place in range(len(self.clients))]
        asked = await asyncio.gather(*(self._ask(self.clients[place], body) for place in order))
        by_place = dict(zip(order, asked, strict=True))
        # What was under way when the fault came has seen it.
        self.tally.count(fault, self.phase, [by_place[place] for place in range(len(self.clients))])
        known = await self._ask(self.clients[number % 2], KNOWN)
        self.tally.requests += 1
        self.tally.failed += known.status != 200

    async def _ask(self, client: HttpClient, body: bytes) -> Asked:
        try:
            return await ask(client, body)
        except UpstreamError:
            return Asked(0.0, 0, "")

    async def degraded(self) -> list[bool]:
        """Of each gateway with a cache, whether its store is left alone."""
        reports = [
            await client.fetch("GET", "/phasewise/v1/cache", headers=ADMIN) for client in self.clients[:2]
        ]
        return ["store" in json.loads(reply.body)["degraded"] for reply in reports]

    async def wait_until(self, what: str, *, degraded: bool) -> float:
        """Until both are, or neither is; how many seconds that took."""
        began_s = time.monotonic()
        while not all(it is degraded for it in await self.degraded()):
            if time.monotonic() - began_s > WITHIN_S:
                raise SystemExit(f"error: after {WITHIN_S:.0f} s the gateways still do not {what}")
            await asyncio.sleep(0.02)
        return time.monotonic() - began_s


async def measure(redis: RedisSearch, engines: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """All faults, so many times, by turns."""
    cache = {
        "mode": "serve", "deadline_s": DEADLINE_S, "semantic": {},
        "redis": {"url": redis.url, "key_prefix": "faults"},
    }  # fmt: skip
    settings = {"admin_key_sha256": key_sha256(ADMIN_KEY), "log": {"requests": False}}
    tally = Tally()
    with contextlib.ExitStack() as stack:
        # In the order in which they are asked: the two with a cache first.
        kinds = [settings | {"cache": cache}, settings | {"cache": cache}, settings, settings]
        gateways = [stack.enter_context(gateway(engines, 1000, it)) for it in kinds]
        clients = [HttpClient(it.url, PATIENCE) for it in gateways]
        for client in clients:
            stack.callback(client.close)
        scene = Scene(clients, tally)
        await ask_until_hit(clients[0], KNOWN)
        shared = (await ask(clients[1], KNOWN)).is_hit
        async with scene.load(options.rate):
            for _, fault in itertools.product(range(options.times), FAULTS):
                await break_and_mend(scene, redis, fault, options.phase_s)
    return {**tally.record(), "shared": shared, "gateways": 2, "cores": os.cpu_count()}


async def break_and_mend(scene: Scene, redis: RedisSearch, fault: str, phase_s: float) -> None:
    """One fault, from health to health. What is asked while Redis comes back belongs to no phase."""
    say(f"{fault}: healthy")
    scene.fault, scene.phase = fault, "healthy"
    await asyncio.sleep(phase_s)
    scene.phase = "dying"
    (redis.kill if fault == "kill" else redis.hold_up)()
    scene.tally.opened_s[fault].append(await scene.wait_until("leave Redis alone", degraded=True))
    # Those that began before the breaker was open are counted to the dying, too.
    await asyncio.sleep(2 * DEADLINE_S)
    scene.phase = "open"
    await asyncio.sleep(phase_s)
    scene.phase = "back"
    await asyncio.to_thread(redis.start if fault == "kill" else redis.go_on)
    back_s = time.monotonic()
    await asyncio.gather(*(ask_until_hit(client, KNOWN, WITHIN_S) for client in scene.clients[:2]))
    scene.tally.resumed_s[fault].append(time.monotonic() - back_s)
    await scene.wait_until("use Redis again", degraded=False)
    say(f"{fault}: hits again after {scene.tally.resumed_s[fault][-1]:.2f} s")


if __name__ == "__main__":
    main()
