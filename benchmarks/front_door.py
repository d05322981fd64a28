"""Can hostile clients at the front door freeze the gateway, or hurt the streams of others?

    python benchmarks/front_door.py [--requests 1000000] [--rate 600] [--seed 1] [--quick] [--json]

A gateway process with a memory limit of 1 GiB stands before fake engines of two models, in two processes, so
that engines do not slow down each other. Five hundred healthy clients of the first model, in a process of
their own, stream one answer after the other: alone, beside the flood, and alone again. The flood for the
other model comes at a fixed rate: more than half of it hostile (hostile/: bodies that are slow to read,
smuggled and broken requests, slow and huge ones, and at least a third of the kinds written with only the docs
at hand), one in a hundred with a body over 1 MiB, the rest valid.

While a tenth of the flood goes to a second gateway, the healthy clients stream through the first: what they
lose then is not the front door's doing, but that of two cores for all.

Another tenth goes to a gateway where nobody has a key, so that the engines judge what a request means:
`without_keys` says what came back, and whether that gateway and its engine serve afterwards.

Stalls are measured inside the gateway (hostile/watched_gateway.py), in thread time: how long the callbacks of
one turn of its loop took together, and, in the second gateway, how long each one took. An idle loop in this
process shows what the host adds to wall time.

The last line is one JSON object: requests, hostile_share, kinds and how many of them docs_only;
own_5xx (no documented code), documented_5xx; hangs (nothing within 30 s); stall_p999_ms and stall_max_ms of
callbacks over a tenth of a millisecond, turn_p999_ms and turn_max_ms; wall_lag_p999_ms beside
control_lag_p999_ms; rss_max_mb of the gateway with its child;
healthy_ok (share of streams that were whole), healthy_ttft_ratio (99th quantile beside the flood over that
of both arms alone), elsewhere_ttft_ratio (the same with the flood at the second gateway), not_as_expected by
kind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from random import Random
from typing import Any

import psutil
import uvloop
from hostile import bodies, docs_only, raw
from hostile.cases import ADMIN_KEY, KEYS, MODEL, Case, RawCase, key_header, without_keys
from hostile.judge import Tally
from hostile.sending import PATIENCE, send_all, send_one, send_one_raw
from script import command_line, interpreter, say
from stress.processes import DidNotStart, fake_engines, free_port, running, steady_steps, wait_until_ready
from stress.streams import HEADERS, ask, chat_body

from phasewise.clients.host import allow_many_streams
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.request import Endpoint
from phasewise.core.statistics import quantile
from phasewise.gateway.api.auth import key_sha256

COST = steady_steps(0.2)
SHAPE = {"max_num_seqs": 2048, "max_num_batched_tokens": 200_000, "block_size": 16, "total_blocks": 400_000}
HEALTHY_KEY, HEALTHY_MODEL = "key-healthy", "healthy-model"
FLOODED_COST = {**COST, "floor_s": 0.01}
STREAMS, STREAM_TOKENS = 500, 24
QUICK_STREAMS, QUICK_REQUESTS = 20, 1_200
ALONE_S, QUICK_ALONE_S = 45.0, 6.0
HOSTILE_SHARE, LARGE_SHARE = 0.55, 0.01
MOST_UNDER_WAY = 1_500
LARGE_BYTES = 1_100_000
LAST_LINES = 40
LOOK_EVERY_S = 0.005
MIB = 2**20
Draw = Callable[[Random], Case | RawCase]


def settings(*, keys: bool) -> dict[str, Any]:
    """What is under `gateway` in its file."""
    tenants = {**KEYS, "healthy": HEALTHY_KEY} if keys else {}
    return {
        "api_keys": [
            {"sha256": key_sha256(key), "tenant": name, "priority": int(name == "healthy")}
            for name, key in tenants.items()
        ],
        "admin_key_sha256": key_sha256(ADMIN_KEY),
        "keep_timelines": 1_000,
        "limits": {"memory": "1GiB", "bodies": "256MiB", "body": "8MiB", "head_s": 5.0, "body_s": 5.0},
        "queue": {"max_waiting": 2_000},
    }


# --- the flood --------------------------------------------------------------------------------------------


def _of_wrong(rng: Random) -> Case:
    return rng.choice(bodies.WRONG)(rng, rng.choice(tuple(KEYS)))


def _of_raw(rng: Random) -> RawCase:
    return raw.draw(rng, 1)[0]


def _of_slow(rng: Random) -> RawCase:
    return rng.choice(raw.large_and_slow())


LONG_PROMPT = "many words " * (LARGE_BYTES // 11)


def _large_and_valid(rng: Random) -> Case:
    tenant = rng.choice(tuple(KEYS))
    body = {"model": MODEL, "prompt": f"{rng.random()} {LONG_PROMPT}", "max_tokens": 1}
    headers = (key_header(KEYS[tenant]),)
    return Case("large_prompt", json.dumps(body).encode(), "/v1/completions", "POST", tenant, headers)


def _short_and_valid(rng: Random) -> Case:
    tenant = rng.choice(tuple(KEYS))
    body = {"model": MODEL, "prompt": f"{rng.random()}", "max_tokens": 1}
    return bodies.served(Endpoint.COMPLETIONS, tenant, json.dumps(body).encode())


def drawn(rng: Random) -> Case | RawCase:
    """One request of the flood."""
    if rng.random() < LARGE_SHARE:
        return rng.choice((_large_and_valid, *docs_only.LARGE))(rng)
    if rng.random() >= HOSTILE_SHARE:
        return _short_and_valid(rng)
    way = rng.random()
    if way < 0.45:
        return rng.choice(docs_only.SMALL)(rng)
    return (_of_wrong if way < 0.8 else _of_raw if way < 0.99 else _of_slow)(rng)


def flooded_by(
    url: str, count: int, rate_per_s: float, seed: int, *, quiet: bool, keys: bool = True
) -> Tally:
    """A process of its own sends the flood, with what processor time the others leave: hostile clients do not
    share the gateway's machine.
    """
    context = multiprocessing.get_context("spawn")
    seen: Queue[Tally] = context.Queue()
    flood_args = (url, count, rate_per_s, seed, quiet, keys, seen)
    process = context.Process(target=_flood, args=flood_args, daemon=True)
    process.start()
    while True:
        try:
            return seen.get(timeout=5.0)
        except queue.Empty:
            if not process.is_alive():
                raise SystemExit("the flood ended early") from None


def _flood(
    url: str, count: int, rate_per_s: float, seed: int, quiet: bool, keys: bool, seen: Queue[Tally]
) -> None:
    os.nice(10)
    allow_many_streams()
    seen.put(uvloop.run(flood(url, count, rate_per_s, seed, quiet=quiet, keys=keys)))


async def flood(url: str, count: int, rate_per_s: float, seed: int, *, quiet: bool, keys: bool) -> Tally:
    """So many requests at this rate, or slower if too many are under way."""
    rng, client, tally = Random(seed), HttpClient(url, PATIENCE), Tally()
    slots, under_way = asyncio.Semaphore(MOST_UNDER_WAY), set()
    began_s = time.monotonic()

    async def send(case: Case | RawCase) -> None:
        try:
            if isinstance(case, Case):
                await send_one(client, case, tally)
            else:
                await send_one_raw(url, case, tally)
        except OSError as error:
            tally.not_as_expected[f"{case.kind}: {type(error).__name__}"] += 1
        finally:
            slots.release()

    try:
        for number in range(count):
            await asyncio.sleep(max(0.0, began_s + number / rate_per_s - time.monotonic()))
            await slots.acquire()
            case = drawn(rng)
            task = asyncio.create_task(send(case if keys else without_keys(case)))  # type: ignore[type-var]
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            if not quiet and number % 20_000 == 0:
                say(f"{number} of {count} sent")
        await asyncio.gather(*under_way)
    finally:
        client.close()
    return tally


# --- the healthy ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Healthy:
    """What healthy clients saw."""

    ttft_s: list[float] = field(default_factory=list)
    streams: int = 0
    whole: int = 0


def stream_all(url: str, streams: int, over: Event, seen: Queue[Healthy]) -> None:
    """A process: clients that stream until `over`."""
    allow_many_streams()
    seen.put(uvloop.run(_stream_all(url, streams, over)))


async def _stream_all(url: str, streams: int, over: Event) -> Healthy:
    seen = Healthy()
    client = HttpClient(url, Timeouts(connect_s=60.0, head_s=120.0, idle_s=120.0))
    headers = (*HEADERS, (b"authorization", f"Bearer {HEALTHY_KEY}".encode()))

    async def stream(number: int) -> None:
        await asyncio.sleep(number / streams * STREAM_TOKENS * COST["floor_s"])
        while not over.is_set():
            body = chat_body(HEALTHY_MODEL, f"{number} asks at {time.monotonic()}", STREAM_TOKENS)
            answer = await ask(client, body, headers=headers)
            seen.streams += 1
            seen.whole += answer.whole and answer.chunks == STREAM_TOKENS
            if answer.first_s is not None:
                seen.ttft_s.append(answer.first_s - answer.sent_s)

    try:
        await asyncio.gather(*(stream(number) for number in range(streams)))
    finally:
        client.close()
    return seen


@contextmanager
def streaming(url: str, streams: int) -> Iterator[list[Healthy]]:
    """Healthy clients until the block is left; what they saw is in the list then."""
    context = multiprocessing.get_context("spawn")
    over = context.Event()
    seen: Queue[Healthy] = context.Queue()
    found: list[Healthy] = []
    process = context.Process(target=stream_all, args=(url, streams, over, seen), daemon=True)
    process.start()
    try:
        yield found
    finally:
        over.set()
        found.append(seen.get(timeout=300))
        process.join(30)


# --- what is watched --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Watch:
    """Memory of a process with its children, and how late an idle loop is; read in a thread."""

    pid: int
    rss_mib: float = 0.0
    late_s: list[float] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        """Read until the block is left."""
        threads = [threading.Thread(target=it) for it in (self._read_memory, self._idle)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _read_memory(self) -> None:
        process = psutil.Process(self.pid)
        while not self._over.wait(0.25):
            found = 0
            for each in (process, *process.children(recursive=True)):
                try:
                    found += each.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.rss_mib = max(self.rss_mib, found / MIB)

    def _idle(self) -> None:
        async def look() -> None:
            while not self._over.is_set():
                due_s = time.monotonic() + LOOK_EVERY_S
                await asyncio.sleep(LOOK_EVERY_S)
                self.late_s.append(time.monotonic() - due_s)

        asyncio.run(look())


def quantile_ms(counts: Mapping[str, int], unit_s: float, share: float) -> float:
    """A quantile of counted stalls."""
    of, wanted, passed = sorted((int(at), count) for at, count in counts.items()), share, 0
    total = sum(counts.values())
    for at, count in of:
        passed += count
        if passed >= wanted * total:
            return at * unit_s * 1e3
    return 0.0


# --- the run ----------------------------------------------------------------------------------------------


def main() -> None:
    """Run all arms and print the record."""
    parser = command_line(__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=600.0, help="requests of the flood per second")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    allow_many_streams()
    count = QUICK_REQUESTS if options.quick else options.requests
    streams, alone_s = (QUICK_STREAMS, QUICK_ALONE_S) if options.quick else (STREAMS, ALONE_S)
    with (
        fake_engines(1, COST, SHAPE, model=HEALTHY_MODEL) as healthy,
        fake_engines(1, FLOODED_COST, SHAPE) as flooded,
        tempfile.TemporaryDirectory() as folder,
    ):
        own, other = (Path(folder) / name for name in ("own", "other"))
        with served_by(healthy[0], flooded[0], own) as (url, pid):
            arms: dict[str, Healthy] = {}
            arms["alone"] = alone(url, streams, alone_s)
            began_s = time.monotonic()
            with Watch(pid).watching() as watch, streaming(url, streams) as found:
                tally = flooded_by(url, count, options.rate, options.seed, quiet=options.json)
                took_s = time.monotonic() - began_s
            arms["beside"] = found[0]
            arms["alone_again"] = alone(url, streams, alone_s)
            with served_by(healthy[0], flooded[0], other, "callbacks") as (others, _):
                with streaming(url, streams) as found:
                    rest = flooded_by(others, count // 10, options.rate, options.seed + 1, quiet=options.json)
                arms["flood_elsewhere"] = found[0]
            tally.add(rest)
            keyless = without_any_key(healthy[0], flooded[0], Path(folder), count // 10, options)
        counted = json.loads(stalls_of(own).read_text())
        counted["callback"] = json.loads(stalls_of(other).read_text())["callback"]
    print(json.dumps(record(arms, tally, watch, counted, took_s) | {"without_keys": keyless}))


def without_any_key(
    healthy: str, flooded: str, folder: Path, count: int, options: argparse.Namespace
) -> dict[str, Any]:
    """The flood for a gateway where nobody has a key, and who serves afterwards."""
    with served_by(healthy, flooded, folder / "keyless", keys=False) as (url, _):
        tally = flooded_by(url, count, options.rate, options.seed + 2, quiet=options.json, keys=False)
        rng, after = Random(0), Tally()
        for address in (url, flooded):
            uvloop.run(send_all(address, [_short_and_valid(rng)], after))
    return {
        "requests": sum(tally.sent.values()),
        "own_5xx": tally.undocumented_5xx,
        "documented_5xx": dict(tally.documented_5xx),
        "hangs": tally.hangs,
        "serve_afterwards": after.valid_answered_200 == 2,
        "not_as_expected": dict(Counter(tally.not_as_expected).most_common(20)),
    }


@contextmanager
def served_by(
    healthy: str, flooded: str, folder: Path, *options: str, keys: bool = True
) -> Iterator[tuple[str, int]]:
    """A gateway with its files in a folder of its own: its address and its process."""
    folder.mkdir()
    port, log = free_port(), folder / "gateway.log"
    workers = [
        {"name": model, "url": url, "model": model, "slots": 2048}
        for model, url in ((HEALTHY_MODEL, healthy), (MODEL, flooded))
    ]
    file = folder / "gateway.yaml"
    file.write_text(json.dumps({"gateway": {"port": port, **settings(keys=keys)}, "workers": workers}))
    script = str(Path(__file__).parent / "hostile" / "watched_gateway.py")
    with (
        log.open("wb") as written,
        running(
            [sys.executable, script, str(file), str(stalls_of(folder)), *options], stderr=written
        ) as process,
    ):
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, process, log)
        yield url, process.pid
        for line in log.read_text(errors="replace").splitlines()[-LAST_LINES:]:
            print(line[:300], file=sys.stderr)
        if process.poll() is not None:
            raise DidNotStart(f"the gateway ended: {log.read_text(errors='replace')[-2000:]}")


def stalls_of(folder: Path) -> Path:
    """Where a gateway writes how long its loop was held up."""
    return folder / "stalls.json"


def alone(url: str, streams: int, seconds: float) -> Healthy:
    """Healthy clients and nobody else."""
    with streaming(url, streams) as found:
        time.sleep(seconds)
    return found[0]


def record(
    arms: Mapping[str, Healthy], tally: Tally, watch: Watch, counted: Mapping[str, Any], took_s: float
) -> dict[str, Any]:
    """The figures."""
    p99_s = {arm: quantile(it.ttft_s, 0.99) for arm, it in arms.items()}
    alone_s = (p99_s["alone"] + p99_s["alone_again"]) / 2
    beside, sent = arms["beside"], sum(tally.sent.values())
    kinds = set(tally.sent) - {"valid", "large_prompt"}
    by_docs_only = kinds & {kind.__name__ for kind in (*docs_only.SMALL, *docs_only.LARGE)}
    unit_s = counted["unit_s"]
    long_ones = {at: count for at, count in counted["callback"].items() if int(at) > 0}
    return {
        "requests": sent,
        "hostile_share": round(1 - (tally.sent["valid"] + tally.sent["large_prompt"]) / sent, 3),
        "kinds": len(kinds),
        "kinds_docs_only": len(by_docs_only),
        "own_5xx": tally.undocumented_5xx,
        "documented_5xx": dict(tally.documented_5xx),
        "hangs": tally.hangs,
        "stall_p999_ms": round(quantile_ms(long_ones, unit_s, 0.999), 1),
        "stall_max_ms": round(quantile_ms(long_ones, unit_s, 1.0), 1),
        "turn_p999_ms": round(quantile_ms(counted["turn"], unit_s, 0.999), 1),
        "turn_max_ms": round(quantile_ms(counted["turn"], unit_s, 1.0), 1),
        "wall_lag_p999_ms": round(quantile_ms(counted["wall"], unit_s, 0.999), 1),
        "control_lag_p999_ms": round(quantile(watch.late_s, 0.999) * 1e3, 1),
        "rss_max_mb": round(watch.rss_mib, 1),
        "healthy_ok": round(beside.whole / beside.streams, 5),
        "healthy_streams": beside.streams,
        "healthy_ttft_ratio": round(p99_s["beside"] / alone_s, 3),
        "elsewhere_ttft_ratio": round(p99_s["flood_elsewhere"] / alone_s, 3),
        "ttft_p99_s": {arm: round(value, 3) for arm, value in p99_s.items()},
        "valid_served_share": round(tally.valid_answered_200 / max(1, tally.valid), 5),
        "per_s": round(sent / took_s, 1),
        "not_as_expected": dict(Counter(tally.not_as_expected).most_common(20)),
        "python": interpreter(),
    }


if __name__ == "__main__":
    main()
