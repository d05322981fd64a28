"""What does it cost the gateway to place a request, to keep a long line, and to watch many workers?

    python benchmarks/decision_cost.py [--workers 16,256,1000] [--seconds 20] [--quick] [--json]

Processor time of this process, so that others on the machine matter little; the smallest of several repeats.
A decision is what a flow does between its admission and its first attempt, with every worker busy to a
different degree; `pricing_us` is one in which every way to serve the request is priced, whole or split, in a
fleet of which every fourth worker is for prefill; `affinity_us` is one by prefix, where each worker holds all
of a prompt of 8,192 tokens, and `hashing_us` what hashing that prompt takes. A queued request is one that
joins behind a thousand others, is granted and leaves. A look is the health watcher's, at a server in a
process of its own that answers at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.queues import Queue

import uvloop

from phasewise.core.kv_transfer import SplitRule
from phasewise.core.prefixes import prefix_hashes
from phasewise.core.request import Endpoint, GenerationRequest
from phasewise.core.worker import Role, Worker
from phasewise.gateway.api.prompt_prefix import PrefixHashing
from phasewise.gateway.api.quotas import ProcessQuotas
from phasewise.gateway.health import PROBE_TIMEOUTS, HealthWatcher
from phasewise.gateway.upstream.engines import Engines
from phasewise.scheduling import CacheMiss, Generate, Prefill, World, request_flow
from phasewise.scheduling.breakers import Breakers, RetryBudget
from phasewise.scheduling.disaggregation import SplitPolicy
from phasewise.scheduling.engine_speed import EngineSpeeds
from phasewise.scheduling.ledger import LoadLedger
from phasewise.scheduling.policies import Policy, least_outstanding, prefix_affinity, whole
from phasewise.scheduling.prefix_index import PrefixIndex
from phasewise.scheduling.queue import WaitingQueue
from phasewise.scheduling.world import ClusterView

WAITING = 1_000
REQUEST = GenerationRequest("r", Endpoint.CHAT, "m", arrived_s=0.0, prompt_bytes=4_000)
LONG_PROMPT = b"river fish " * 2_979
"""8,192 tokens at four bytes each."""


def main() -> None:
    """Measure, and print a table or one JSON object."""
    options = _options()
    counts = [int(it) for it in options.workers.split(",")]
    repeats = 5 if options.quick else 15
    result: dict[str, object] = {
        "decision_us": {count: round(_decision_us(count, repeats), 1) for count in counts},
        "pricing_us": {count: round(_pricing_us(count, repeats), 1) for count in counts},
        "affinity_us": {count: round(_affinity_us(count, repeats), 1) for count in counts},
        "hashing_us": round(_hashing_us(repeats), 1),
        "line_us": round(_line_us(repeats), 2),
        **_watching(max(16, min(counts[-1], 256)), 3.0 if options.quick else options.seconds),
    }
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name}: {value}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", default="16,256,1000")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _fleet(count: int, url: str = "http://127.0.0.1") -> list[Worker]:
    return [Worker(name=f"w{index}", url=url, model="m", incarnation="1") for index in range(count)]


def _decision_us(count: int, repeats: int) -> float:
    return _placing_us(count, REQUEST, whole(least_outstanding), repeats, f"{count} workers")


def _pricing_us(count: int, repeats: int) -> float:
    roles = (Role.PREFILL, Role.DECODE, Role.DECODE, Role.DECODE)
    workers = [replace(it, role=roles[index % 4]) for index, it in enumerate(_fleet(count))]
    paces = EngineSpeeds(workers)
    for worker in workers[:16]:
        for tokens in (50, 400, 2_000):
            paces.learn_read(worker.ref, tokens, 0, 1e-3 * tokens)
            paces.learn_fetch(worker.ref, tokens, 0.01 + 5e-6 * tokens)
            paces.learn_step(worker.ref, tokens // 50, 0.06 + 2e-5 * tokens)
    policy = SplitPolicy(SplitRule.AUTO, 512, least_outstanding, paces, PrefixIndex())
    request = replace(REQUEST, splittable=True)
    return _placing_us(count, request, policy, repeats, f"{count} workers, disaggregated", workers=workers)


def _affinity_us(count: int, repeats: int) -> float:
    hashes = prefix_hashes(b"m", LONG_PROMPT, b"key")
    prefixes = PrefixIndex()
    for worker in _fleet(count):
        prefixes.served(worker.ref, hashes, len(LONG_PROMPT) // 4, 0)
    request = replace(REQUEST, prompt_bytes=len(LONG_PROMPT), prefix_hashes=hashes)
    policy = whole(prefix_affinity(prefixes))
    return _placing_us(count, request, policy, repeats, f"{count} workers that hold a prompt", prefixes)


def _hashing_us(repeats: int) -> float:
    hashing = PrefixHashing(b"key")
    fields = {"model": "m", "messages": [{"role": "user", "content": LONG_PROMPT.decode()}]}
    return _least_us(lambda: hashing.hashes(Endpoint.CHAT, fields, None), 500, repeats, "hashing")


def _placing_us(
    count: int,
    request: GenerationRequest,
    policy: Policy,
    repeats: int,
    what: str,
    prefixes: PrefixIndex | None = None,
    workers: list[Worker] | None = None,
) -> float:
    workers = workers or _fleet(count)
    cluster, ledger = ClusterView(workers), LoadLedger()
    for index, worker in enumerate(workers):
        cluster.mark_up(worker.name, worker.incarnation)
        for _ in range(3):
            ledger.book(worker.ref, index * 7919 % 997)
    world = World(
        cluster,
        ledger,
        RetryBudget(),
        policy,
        Breakers(),
        WaitingQueue(),
        ProcessQuotas(),
        prefixes=prefixes or PrefixIndex(),
    )

    def decide() -> None:
        flow = request_flow(request, world)
        next(flow)
        if not isinstance(flow.send(CacheMiss(0.0)), Generate | Prefill):
            raise TypeError("nothing was decided")
        flow.close()

    return _least_us(decide, max(20, 20_000 // count), repeats, what)


def _line_us(repeats: int) -> float:
    line = WaitingQueue(capacity=2 * WAITING)
    for index in range(WAITING):
        line.join("m", index % 3, float(index), float(index))

    def pass_through() -> None:
        ticket = line.join("m", 1_000, 0.0, 1_000.0)
        if ticket is None:
            raise ValueError("the line is full")
        line.grant("m", 1, 0.0)
        line.leave(ticket)

    return _least_us(pass_through, 2_000, repeats, f"{WAITING} waiting")


def _least_us(work: Callable[[], object], times: int, repeats: int, what: str) -> float:
    print(f"measuring: {what}", file=sys.stderr)
    least_s = float("inf")
    for _ in range(repeats):
        began_s = time.process_time()
        for _ in range(times):
            work()
        least_s = min(least_s, time.process_time() - began_s)
    return least_s / times * 1e6


# --- watching ---------------------------------------------------------------------------------------------


def _watching(count: int, seconds: float) -> dict[str, object]:
    print(f"measuring: looks at {count} workers for {seconds:g} s", file=sys.stderr)
    context = get_context("spawn")
    ports: Queue[int] = context.Queue()
    server = context.Process(target=_serve, args=(ports,), daemon=True)
    server.start()
    try:
        return uvloop.run(_watch(_fleet(count, f"http://127.0.0.1:{ports.get(timeout=30)}"), seconds))
    finally:
        server.terminate()
        server.join()


async def _watch(workers: list[Worker], seconds: float) -> dict[str, object]:
    looks = 0

    def look(_worker: str) -> None:
        nonlocal looks
        looks += 1

    watcher = HealthWatcher(ClusterView(workers), Engines(PROBE_TIMEOUTS).connect, on_look=look)
    await watcher.start()
    await asyncio.sleep(1.0)
    looks, cpu_s, began_s = 0, time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    cpu_s, passed_s = time.process_time() - cpu_s, time.monotonic() - began_s
    await watcher.stop()
    if not looks:
        raise SystemExit("no worker was looked at")
    return {
        "watched": len(workers),
        "looks_per_s": round(looks / passed_s, 1),
        "look_us": round(cpu_s / looks * 1e6, 1),
        "watching_core_share": round(cpu_s / passed_s, 4),
    }


def _serve(ports: Queue[int]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ports.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(serve())


if __name__ == "__main__":
    main()
