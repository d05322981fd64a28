"""What the answer cache costs a request: the gateway's processor time, and how long a hit or a miss takes.

    python benchmarks/cache_latency.py [--entries 100000] [--rounds 12] [--requests 400] [--quick] [--json]

Gateways, a fake engine and a real Redis with vector search are processes of their own on loopback: the
gateways on one core, all else on another.

- **Processor time** of the gateway per request, all its threads, as Linux counts it: without a cache (two
  gateways: the second by the first is the control `aa_ratio`), an exact hit in the process's own store
  (`exact_hit_cpu_ms`; `_stream_` for a streamed one) and in Redis, a miss with its answer kept afterwards,
  and a request that bypasses the cache. Every round runs all of them, beginning with another one; figures are
  medians over the rounds, ratios are against the gateway without a cache in the same round.
- **A semantic hit** on the wall, seen by its client, with the real embedding model and so many entries in
  Redis, all in the scope that is asked: `semantic_hit_p50_ms`. Beside it, in turns, the embedding of the same
  text alone (`embed_p50_ms`) and the search for its neighbours alone (`redis_p50_ms`).
  `semantic_overhead_ms` is what is left of the hit without those two: HTTP both ways, the look for an exact
  answer, guards, and writing the reply. `semantic_hit_cpu_ms` is the gateway's processor time for such a hit,
  `embed_cpu_ms` ours for the embedding alone.
- **A miss while Redis is held up** (SIGSTOP: it keeps its connections and answers nobody):
  `miss_delay_max_ms` is the longest of such requests less the median of requests that bypass the cache.
  `miss_delay_open_ms` is the median of those that come once the breaker has opened. The first must not be
  above `deadline_ms`, the second must be nothing; the machine's own jitter is in both.

Entries are strewn around real questions' vectors. That the rewordings may be served is taught to the store
beforehand by lessons, as verified requests would. Requests whose cache-status is not the expected one are
counted as `unexpected`, and make the exit code 1. Without the embedding model it says what to fetch.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import uvloop
from script import command_line, print_record, say

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from answering.clients import (  # noqa: E402
    ADMIN,
    ADMIN_KEY,
    LENGTHS,
    PATIENCE,
    Asked,
    ask,
    ask_many,
    ask_until_hit,
    body_of,
    cpu_ns,
    new_question,
)
from answering.filling import fill, one_stored, teach  # noqa: E402
from answering.questions import PAIRS  # noqa: E402
from overhead.figures import ratio  # noqa: E402
from stress.processes import Gateway, fake_engines, gateway, steady_steps, two_cores  # noqa: E402

from phasewise.clients.embedders import OnnxEmbedder  # noqa: E402
from phasewise.clients.embedding_folder import resolve_embedding_model  # noqa: E402
from phasewise.clients.http_client import HttpClient  # noqa: E402
from phasewise.clients.redis_answers import RedisAnswers  # noqa: E402
from phasewise.core.caching import StoredAnswer, Vector  # noqa: E402
from phasewise.fleet.config import phasewise_home  # noqa: E402
from phasewise.gateway.answer_cache.semantic import NEIGHBOURS  # noqa: E402
from phasewise.gateway.api.auth import key_sha256  # noqa: E402
from tests.redis_search import RedisSearch, running_redis_search  # noqa: E402

COST = steady_steps(0.0005)
SHAPE = {
    "max_num_seqs": 1024, "max_num_batched_tokens": 10**6, "total_blocks": 20_000, "mean_output_tokens": 16,
}  # fmt: skip
EMBEDDING_MODEL = "minilm-l6"
DEADLINE_S, QUICK_DEADLINE_S = 0.1, 1.0
"""The short form proves what the cache does, not how fast: on a starved machine look-ups take longer."""
SETTLE_S = 0.2
"""After a run answers are still being kept: that work belongs to it."""


def main() -> None:
    """Measure all three, and print the record."""
    parser = command_line(__doc__, quick="few of all: proves that the script runs")
    parser.add_argument("--entries", type=int, default=100_000, help="answers in Redis (default 100,000)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--requests", type=int, default=400, help="of each kind in each round")
    parser.add_argument("--held-up", type=int, default=3, help="how often Redis is held up (default 3)")
    options = parser.parse_args()
    if options.quick:
        options.entries, options.rounds, options.requests, options.held_up = 1_000, 2, 40, 1
    options.deadline_s = QUICK_DEADLINE_S if options.quick else DEADLINE_S
    resolve_embedding_model(EMBEDDING_MODEL, phasewise_home(os.environ))
    core, gateway_core = two_cores()
    os.sched_setaffinity(0, {core})
    with (
        tempfile.TemporaryDirectory(prefix="phasewise-cache-") as folder,
        running_redis_search(Path(folder)) as redis,
        fake_engines(1, COST, SHAPE, [core]) as engines,
    ):
        record = uvloop.run(measure(redis, engines, gateway_core, options))
    print_record(record, options)
    if record["unexpected"]:
        raise SystemExit(f"error: {record['unexpected']} requests had something else of the cache than asked")


async def measure(
    redis: RedisSearch, engines: Sequence[str], core: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Processor time first, then the wall."""

    def start(cache: dict[str, Any] | None) -> contextlib.AbstractContextManager[Gateway]:
        settings = {"admin_key_sha256": key_sha256(ADMIN_KEY), "cache": cache, "log": {"requests": False}}
        return gateway(engines, 1000, settings, cores=[core])

    deadline_s: float = options.deadline_s
    record: dict[str, Any] = {"entries": options.entries, "deadline_ms": 1e3 * deadline_s, "unexpected": 0}
    record |= await processor_time(start, redis.url, options)
    record["unexpected"] += record.pop("unexpected_on_cpu")
    with start(serving(redis.url, deadline_s, "semantic") | {"semantic": {"audit_share": 1e-6}}) as semantic:
        scene = await Scene.prepared(semantic, redis.url, options.entries)
        try:
            record |= await semantic_hits(scene, options.rounds)
            record |= await held_up(scene, redis, options.held_up)
        finally:
            await scene.close()
        record["unexpected"] += scene.unexpected
    return record


def serving(redis_url: str | None, deadline_s: float, prefix: str = "exact") -> dict[str, Any]:
    """A cache that serves, its answers in Redis or in the process."""
    redis = None if redis_url is None else {"url": redis_url, "key_prefix": prefix}
    return {"mode": "serve", "redis": redis, "deadline_s": deadline_s}


# --- processor time -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Arm:
    """One way to use a gateway, and what each of its requests has cost in every round."""

    name: str
    gateway: Gateway
    client: HttpClient
    body: Callable[[], bytes]
    expected: str
    cpu_ms: list[float] = field(default_factory=list)
    unexpected: int = 0

    async def run(self, requests: int) -> None:
        """One round."""
        bodies = [self.body() for _ in range(requests)]
        before_ns = cpu_ns(self.gateway.pid)
        asked = await ask_many(self.client, bodies)
        await asyncio.sleep(SETTLE_S)
        self.cpu_ms.append((cpu_ns(self.gateway.pid) - before_ns) / 1e6 / requests)
        self.unexpected += sum(it.status != 200 or self.expected not in it.said for it in asked)


async def processor_time(
    start: Callable[[dict[str, Any] | None], contextlib.AbstractContextManager[Gateway]],
    redis_url: str,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """All arms by turns, each round beginning with another one."""
    known = body_of(PAIRS[0][0])
    streamed = body_of(PAIRS[1][0], stream=True)
    with contextlib.ExitStack() as stack:
        off, again = (stack.enter_context(start(None)) for _ in range(2))
        process = stack.enter_context(start(serving(None, options.deadline_s)))
        shared = stack.enter_context(start(serving(redis_url, options.deadline_s)))
        clients = {it.url: HttpClient(it.url, PATIENCE) for it in (off, again, process, shared)}
        await ask_until_hit(clients[process.url], known)
        await ask_until_hit(clients[process.url], streamed)
        await ask_until_hit(clients[shared.url], known)
        plans: list[tuple[str, Gateway, Callable[[], bytes], str]] = [
            ("off", off, lambda: known, ""),
            ("off_again", again, lambda: known, ""),
            ("exact_hit", process, lambda: known, "; hit"),
            ("exact_hit_stream", process, lambda: streamed, "; hit"),
            ("exact_hit_redis", shared, lambda: known, "; hit"),
            ("miss", process, lambda: body_of(new_question()), "fwd=miss"),
            ("miss_redis", shared, lambda: body_of(new_question()), "fwd=miss"),
            ("bypass", process, lambda: body_of(PAIRS[0][0], temperature=1.5), "fwd=bypass"),
        ]
        arms = [Arm(name, it, clients[it.url], body, said) for name, it, body, said in plans]
        for number in range(options.rounds):
            first = number % len(arms)
            for arm in arms[first:] + arms[:first]:
                await arm.run(options.requests)
                say(f"round {number + 1}: {arm.name} {arm.cpu_ms[-1]:.3f} ms of the gateway's processor")
        for client in clients.values():
            client.close()
    return cpu_figures({arm.name: arm.cpu_ms for arm in arms}) | {
        "unexpected_on_cpu": sum(arm.unexpected for arm in arms)
    }


def cpu_figures(cpu_ms: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and what each is by the gateway without a cache."""
    figures: dict[str, Any] = {
        f"{name}_cpu_ms": round(median(values), 4) for name, values in cpu_ms.items() if name != "off_again"
    }
    for name, key in (("off_again", "aa_ratio"), ("miss", "miss_ratio"), ("bypass", "bypass_ratio")):
        found = ratio(list(zip(cpu_ms[name], cpu_ms["off"], strict=True)))
        if found is not None:
            figures[key] = round(found.median, 3)
            figures[f"{key}_upper"] = None if found.upper is None else round(found.upper, 3)
    return figures


# --- semantic hits ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Scene:
    """A gateway with a full and well-taught cache, and its parts for themselves."""

    pid: int
    """The gateway's."""
    client: HttpClient
    store: RedisAnswers
    embedder: OnnxEmbedder
    like: StoredAnswer
    vectors: list[Vector]
    """Of the rewordings."""
    unexpected: int = 0

    @classmethod
    async def prepared(cls, semantic: Gateway, redis_url: str, entries: int) -> Scene:
        """Ask all questions once, fill the store around them, and teach it that rewordings are right."""
        client = HttpClient(semantic.url, PATIENCE)
        embedder = OnnxEmbedder(resolve_embedding_model(EMBEDDING_MODEL, phasewise_home(os.environ)))
        await embedder.start()
        store = RedisAnswers(redis_url, "semantic")
        await store.start(embedder.space, embedder.dimensions)
        for stored, _ in PAIRS:
            await ask_until_hit(client, body_of(stored))
        like = await one_stored(redis_url, "semantic")
        asked_first = [await embedder.embed(stored) for stored, _ in PAIRS]
        asked_then = [await embedder.embed(asked) for _, asked in PAIRS]
        say(f"{entries} entries are put into Redis")
        await fill(store, like, asked_first, entries - len(PAIRS))
        similarities = [cosine(one, other) for one, other in zip(asked_first, asked_then, strict=True)]
        taught = await teach(store, PAIRS, similarities, like)
        say(f"{taught} lessons taught; the rewordings' cosines begin at {min(similarities):.3f}")
        await wait_until_learned(client)
        return cls(semantic.pid, client, store, embedder, like, asked_then)

    async def ask(self, body: bytes, expected: str) -> Asked:
        """Ask, and note whether the cache did what was expected."""
        asked = await ask(self.client, body)
        if asked.status != 200 or expected not in asked.said:
            self.unexpected += 1
            say(f"expected {expected!r}, but the gateway says {asked.status} {asked.said!r}")
        return asked

    async def close(self) -> None:
        """Let everything go."""
        self.client.close()
        await self.store.close()
        await self.embedder.close()


async def wait_until_learned(client: HttpClient, within_s: float = 30.0) -> None:
    """Return when the gateway has read what was taught: asking before would teach it otherwise."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        reply = await client.fetch("GET", "/phasewise/v1/cache", headers=ADMIN)
        learned = json.loads(reply.body)["semantic"]
        if learned["judge"]["trusted"] and any(region["proven"] for region in learned["regions"]):
            return
        await asyncio.sleep(0.1)
    raise SystemExit("error: the gateway has not read its lessons in time")


async def semantic_hits(scene: Scene, rounds: int) -> dict[str, Any]:
    """The hit, the embedding alone and the search alone by turns, for every rewording in every round."""
    hits_s: list[float] = []
    embeds_s: list[float] = []
    searches_s: list[float] = []
    exact_s: list[float] = []
    hit_cpu_ns: list[int] = []
    embed_cpu_ns: list[int] = []
    for _ in range(rounds):
        for (stored, asked), vector in zip(PAIRS, scene.vectors, strict=True):
            before_ns = cpu_ns(scene.pid)
            hits_s.append((await scene.ask(body_of(asked), "; hit; detail=semantic")).took_s)
            hit_cpu_ns.append(cpu_ns(scene.pid) - before_ns)
            before_ns, began_s = cpu_ns(os.getpid()), time.perf_counter()
            await scene.embedder.embed(asked)
            embedded_s = time.perf_counter()
            embed_cpu_ns.append(cpu_ns(os.getpid()) - before_ns)
            searching_s = time.perf_counter()
            await scene.store.nearest(scene.like.scope, vector, NEIGHBOURS)
            searched_s = time.perf_counter()
            embeds_s.append(embedded_s - began_s)
            searches_s.append(searched_s - searching_s)
            exact_s.append((await scene.ask(body_of(stored), "; hit; detail=exact")).took_s)
    p50_ms = {
        "semantic_hit_p50_ms": hits_s, "embed_p50_ms": embeds_s,
        "redis_p50_ms": searches_s, "exact_hit_p50_ms": exact_s,
    }  # fmt: skip
    figures = {name: round(1e3 * median(values), 3) for name, values in p50_ms.items()}
    parts_ms = figures["embed_p50_ms"] + figures["redis_p50_ms"]
    figures["semantic_overhead_ms"] = round(figures["semantic_hit_p50_ms"] - parts_ms, 3)
    figures["semantic_hit_cpu_ms"] = round(median(hit_cpu_ns) / 1e6, 3)
    figures["embed_cpu_ms"] = round(median(embed_cpu_ns) / 1e6, 3)
    figures["semantic_hit_p99_ms"] = round(1e3 * float(np.quantile(hits_s, 0.99)), 3)
    return figures


def cosine(one: Vector, other: Vector) -> float:
    """Of vectors of unit length."""
    return float(np.frombuffer(one, "<f4") @ np.frombuffer(other, "<f4"))


# --- held up ------------------------------------------------------------------------------------------------


async def held_up(scene: Scene, redis: RedisSearch, times: int, asked_each_time: int = 20) -> dict[str, Any]:
    """Ask new questions while Redis answers nobody; it goes on at the end, and hits come back."""
    bypassing = [
        (await scene.ask(short(temperature=1.5), "fwd=bypass")).took_s for _ in range(2 * asked_each_time)
    ]
    usual_s = median(bypassing)
    delays_s: list[float] = []
    open_s: list[float] = []
    for _ in range(times):
        with stopped(redis):
            asked = [await scene.ask(short(), "fwd=miss") for _ in range(asked_each_time)]
        delays_s += [it.took_s - usual_s for it in asked]
        open_s += [it.took_s - usual_s for it in asked[asked_each_time // 2 :]]
        await ask_until_hit(scene.client, body_of(PAIRS[0][0]), within_s=20.0)
    return {
        "miss_delay_max_ms": round(1e3 * max(delays_s), 3),
        "miss_delay_open_ms": round(1e3 * median(open_s), 3),
        "bypass_p50_ms": round(1e3 * usual_s, 3),
        "bypass_max_ms": round(1e3 * max(bypassing), 3),
    }


def short(**fields: Any) -> bytes:  # noqa: ANN401 - whatever a request may hold
    """A new question whose answer is as long as all others: only then are delays seen."""
    return body_of(new_question(), **{"max_tokens": LENGTHS["min_tokens"], **fields})


@contextlib.contextmanager
def stopped(redis: RedisSearch) -> Iterator[None]:
    """It keeps its connections and answers nobody until the block is left."""
    redis.hold_up()
    try:
        yield
    finally:
        redis.go_on()


if __name__ == "__main__":
    main()
