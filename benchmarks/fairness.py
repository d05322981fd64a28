"""Does a tenant that offers fifty times as much keep another one waiting, or shut it out?

    python benchmarks/fairness.py [--seconds 60] [--processes 1] [--quick] [--json]

Two fake engines in a process of their own run four requests each; the gateway is another process, with two
tenants' keys. The small tenant comes at random, about once a second: alone, beside one that offers fifty
times as much, and alone again (the control). Its wait is what the gateway's own timelines say about requests
in the queue. The bound for the 99th percentile beside the large tenant is twice the wait alone, or one mean
service time if that is more: with every slot taken, somebody must finish first.

The last line is one JSON object: wait_p99_s by arm, wait_ratio (beside the large tenant, over the bound),
shut_out (requests of the small tenant that were rejected), and what both offered.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from itertools import islice, takewhile
from random import Random
from statistics import mean

import uvloop
from script import command_line, interpreter, say
from stress.arrivals import PATIENCE, Demand
from stress.processes import MODEL, fake_engines, gateway
from stress.streams import HEADERS, Answer, ask

from phasewise.benchmark.generator import now_s, wait_until
from phasewise.benchmark.workload.arrivals import OpenLoop, arrival_times_s
from phasewise.clients.http_client import HttpClient, Reply
from phasewise.core.timeline import Part, Timeline
from phasewise.core.timeline_record import decode
from phasewise.gateway.api.auth import key_sha256

ENGINES, SLOTS = 2, 4
SHAPE = {"max_num_seqs": SLOTS, "max_num_batched_tokens": 2048, "block_size": 16, "total_blocks": 4096}
COST = {"floor_s": 0.02, "knee_tokens": 256, "beyond_knee_s_per_token": 0.1e-3, "per_request_s": 0.5e-3}
COST |= {"attention_s_per_token_pair": 0.0, "kv_read_s_per_token": 0.0}
DEMAND = Demand(MODEL, prompt_tokens=(64, 256), output_tokens=(16, 32))
SMALL, LARGE, ADMIN = "small", "large", "admin"
TIMES = 50.0
RATE_PER_S = 1.0
SETTINGS = {
    "api_keys": [{"sha256": key_sha256(name), "tenant": name} for name in (SMALL, LARGE)],
    "admin_key_sha256": key_sha256(ADMIN),
    "queue": {"max_waiting": 100},
    "keep_timelines": 100_000,
}
ARMS = {"alone": 0.0, "beside": TIMES, "alone_again": 0.0}
LEAD_IN_S, FINISH_WITHIN_S, PAGE = 3.0, 15.0, 2_000


@dataclass(frozen=True, slots=True)
class Seen:
    """One arm: the small tenant's answers and waits, its mean service time, and what the other offered."""

    answers: list[Answer]
    waits_s: list[float]
    service_s: float
    offered_by_large: int

    @property
    def p99_s(self) -> float:
        """The wait that one in a hundred exceeds."""
        return sorted(self.waits_s)[int(0.99 * (len(self.waits_s) - 1))]

    @property
    def shut_out(self) -> int:
        """How many were not served."""
        return sum(not answer.whole for answer in self.answers)


def main() -> None:
    """Run all arms and print the record."""
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each arm lasts")
    parser.add_argument("--processes", type=int, default=1, help="of the gateway")
    options = parser.parse_args()
    seconds = 8.0 if options.quick else options.seconds
    with (
        fake_engines(ENGINES, COST, SHAPE) as urls,
        gateway(urls, SLOTS, {**SETTINGS, "processes": options.processes}) as served,
    ):
        seen: dict[str, Seen] = {}
        for seed, (arm, times) in enumerate(ARMS.items()):
            seen[arm] = uvloop.run(play(served.url, times, seconds, seed))
            if not options.json:
                say(f"{arm}: p99 of the wait {seen[arm].p99_s:.3f} s")
    print(json.dumps(record(seen)))


async def play(url: str, times: float, seconds: float, seed: int) -> Seen:
    """One arm."""
    client = HttpClient(url, PATIENCE)
    try:
        before = await newest(client)
        large = asyncio.create_task(offer(client, LARGE, times * RATE_PER_S, LEAD_IN_S + seconds, seed + 100))
        await asyncio.sleep(LEAD_IN_S)
        answers = await offer(client, SMALL, RATE_PER_S, seconds, seed)
        offered = len(await large)
        ended = [it for it in await timelines(client, before) if it.tenant == SMALL]
        service_s = mean(it.ended_s - waited_s(it) for it in ended)
        return Seen(answers, [waited_s(it) for it in ended], service_s, offered)
    finally:
        client.close()


async def offer(client: HttpClient, key: str, rate_per_s: float, seconds: float, seed: int) -> list[Answer]:
    """Requests of one tenant at random times; rejected ones do not come back."""
    if not rate_per_s:
        return []
    times_s = list(
        takewhile(lambda at_s: at_s < seconds, arrival_times_s(OpenLoop(rate_per_s), Random(seed)))
    )
    headers = (*HEADERS, (b"authorization", f"Bearer {key}".encode()))
    began_s, asked = now_s(), []
    for at_s, body in zip(times_s, islice(DEMAND.bodies(seed), len(times_s)), strict=True):
        await wait_until(began_s + at_s)
        asked.append(asyncio.create_task(ask(client, body, headers=headers)))
    done, late = await asyncio.wait(asked, timeout=FINISH_WITHIN_S) if asked else (set(), set())
    for task in late:
        task.cancel()
    return [task.result() for task in done]


def waited_s(timeline: Timeline) -> float:
    """How long a request was in the gateway's queue."""
    return sum(it.duration_s for it in timeline.spans if it.part is Part.GATEWAY_WAIT)


async def newest(client: HttpClient) -> str:
    """The cursor after which timelines are those of the next arm."""
    reply = await page(client, "limit=1")
    return dict(reply.headers)[b"x-phasewise-next"].decode()


async def timelines(client: HttpClient, after: str) -> list[Timeline]:
    """Every request that has ended since."""
    found: list[Timeline] = []
    while True:
        reply = await page(client, f"limit={PAGE}&after={after}")
        found += [decode(line) for line in reply.body.splitlines()]
        headers = dict(reply.headers)
        after = headers[b"x-phasewise-next"].decode()
        if b"x-phasewise-more" not in headers:
            return found


async def page(client: HttpClient, query: str) -> Reply:
    """A page of timelines."""
    headers = [(b"authorization", f"Bearer {ADMIN}".encode())]
    return await client.fetch("GET", f"/phasewise/v1/requests?{query}", headers=headers)


def record(seen: dict[str, Seen]) -> dict[str, object]:
    """The figures of all arms."""
    alone, beside = seen["alone"], seen["beside"]
    bound_s = max(2 * alone.p99_s, beside.service_s)
    return {
        "wait_ratio": round(beside.p99_s / bound_s, 3),
        "shut_out": sum(it.shut_out for it in seen.values()),
        "wait_p99_s": {arm: round(it.p99_s, 4) for arm, it in seen.items()},
        "wait_bound_s": round(bound_s, 4),
        "service_s": round(beside.service_s, 3),
        "small_offered": {arm: len(it.answers) for arm, it in seen.items()},
        "large_offered": beside.offered_by_large,
        "python": interpreter(),
    }


if __name__ == "__main__":
    main()
