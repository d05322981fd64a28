"""What the live view costs a gateway while somebody looks, and while nobody does.

    python benchmarks/live_cost.py [--before CHECKOUT] [--bench-folder DIR] [--rounds 8] [--seconds 10]
        [--engines 50] [--rate 200] [--quick] [--json]

Watched: fake engines (`phasewise engine fake`) behind one gateway on a core of its own, short streams at a
constant rate from another core. Every round has three windows in an order that rotates: `off` and `off_again`
with nobody looking, `on` with two clients that read the stream of the live view, as `phasewise top` and the
page do. cpu_share is the processor time of the view's own code by the time of the window, as the gateway
itself counts it (`view_cpu_s`), the largest of all rounds; process_share is what the whole process used more
than with nobody looking, which includes HTTP and noise. p99_added_ms is the median over the rounds of what
`on` adds to the p99 of TTFT, aa_p99_ms the same of `off_again`. All fake engines share one process, and each
reading of their counters holds the streams of all of them up, so the windows with nobody looking have them
read at the view's pace too, past the gateway.

Not watched: off_cpu_ratio is the processor time per plain completion of a gateway with the live view and
nobody looking, by that of --before, or of the commit before the live view; aa_ratio that of a second start by
the first. Its load generator and engine are in C, from the gateway bench's folder; without them the object
says why under `skipped`. All ratios have _lower and _upper, the ends of a 95% interval, null from fewer than
four rounds.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import random
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ending import end_in_order_when_told
from overhead.arms import ADMIN_KEY, API_KEY, MODEL, Arm, DidNotStart, our_command, running
from overhead.earlier import sources_before
from overhead.figures import Estimate, difference, ratio
from overhead.loads import Bench, Load
from overhead.tools import CannotMeasure, Command, Tools, find_bench, free_port

import phasewise
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.sse import EventSplitter
from phasewise.core.errors import UpstreamError
from phasewise.core.statistics import quantile
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.live.view import READ_PER_S

OFF, ON, AGAIN, BEFORE = "off", "on", "off_again", "before"
ADDED_WITH = "src/phasewise/gateway/live/view.py"
TIMEOUTS = Timeouts(connect_s=10.0, head_s=60.0, idle_s=60.0)
LISTENERS = 2
SETTLE_S = 2.0
OUTPUT_TOKENS = 4


def main() -> None:
    """Measure, and print one JSON object whatever there was to measure with."""
    options = parse_options()
    end_in_order_when_told()
    build = (platform.python_implementation(), platform.python_version(), *platform.python_build())
    result: dict[str, Any] = {"python": " ".join(build), "build": phasewise.__version__}
    try:
        with tempfile.TemporaryDirectory(prefix="phasewise-live-") as folder:
            result |= watched(Path(folder), options)
            try:
                tools = Tools(find_bench(options.bench_folder), Path(folder), Path("venvs"))
                result |= not_watched(tools, options)
            except CannotMeasure as reason:
                result["skipped"] = str(reason)
    except DidNotStart as error:
        raise SystemExit(f"error: {error}") from error
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))
    if result["errors"]:
        raise SystemExit(f"error: {result['errors']} requests failed")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="a checkout of the repository without the live view")
    parser.add_argument("--bench-folder", type=Path, help="default: ../shared/gateway-bench")
    parser.add_argument("--rounds", type=int, help="default: 8")
    parser.add_argument("--seconds", type=float, help="of one window; default: 10")
    parser.add_argument("--engines", type=int, help="default: 50")
    parser.add_argument("--rate", type=float, help="requests per second; default: 200")
    parser.add_argument("--quick", action="store_true", help="seconds, not minutes: proves that it runs")
    parser.add_argument("--json", action="store_true", help="print only the closing JSON object")
    options = parser.parse_args()
    quick = options.quick
    options.rounds = options.rounds or (1 if quick else 8)
    options.seconds = options.seconds or (2.0 if quick else 10.0)
    options.engines = options.engines or (5 if quick else 50)
    options.rate = options.rate or (20.0 if quick else 200.0)
    return options


def cores() -> tuple[int, int]:
    """The core of the load and its engines, and that of the gateways."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[min(1, len(usable) - 1)]


# --- with somebody looking


@dataclass(frozen=True, slots=True)
class Window:
    """One window: the TTFTs, what the process used, and what the view says it used of that."""

    arm: str
    seconds: float
    ttfts_s: tuple[float, ...]
    errors: int
    cpu_s: float
    view_cpu_s: float

    @property
    def p99_ms(self) -> float:
        """Of the TTFTs."""
        return quantile(self.ttfts_s, 0.99) * 1e3 if self.ttfts_s else 0.0


def watched(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Many engines and a steady load, with and without anybody looking."""
    load_core, gateway_core = cores()
    base = free_ports(options.engines)
    engines = ("engine", "fake", "--count", str(options.engines), "--port", str(base), "--model", MODEL)
    ours = (sys.executable, "-m", "phasewise.cli")
    with (
        running("engines", Command(base, (*ours, *engines, "--no-steps"), {}), load_core, folder),
        running("gateway", gateway_command(folder, base, options.engines), gateway_core, folder) as gateway,
    ):
        os.sched_setaffinity(0, {load_core})
        windows = asyncio.run(rounds(gateway, base, options))
    by_round = [windows[first : first + 3] for first in range(0, len(windows), 3)]
    named = [{it.arm: it for it in three} for three in by_round]
    added = difference([it[ON].p99_ms - it[OFF].p99_ms for it in named])
    control = difference([it[AGAIN].p99_ms - it[OFF].p99_ms for it in named])
    more = [(it[ON].cpu_s - (it[OFF].cpu_s + it[AGAIN].cpu_s) / 2) / it[ON].seconds for it in named]
    return {
        "engines": options.engines,
        "rate": options.rate,
        "rounds": options.rounds,
        "cpu_share": round(max(it.view_cpu_s / it.seconds for it in windows), 5),
        **estimated("process_share", difference(more)),
        **estimated("p99_added_ms", added),
        **estimated("aa_p99_ms", control),
        "p99_off_ms": round(difference([it[OFF].p99_ms for it in named]).median, 3),
        "requests": sum(len(it.ttfts_s) for it in windows),
        "errors": sum(it.errors for it in windows),
    }


def gateway_command(folder: Path, base: int, engines: int) -> Command:
    """A gateway in front of that many engines."""
    port, file = free_port(), folder / "watched.yaml"
    gateway = {
        "port": port,
        "api_keys": [{"sha256": key_sha256(API_KEY), "tenant": "load"}],
        "admin_key_sha256": key_sha256(ADMIN_KEY),
    }
    workers = [
        {"name": f"w{number}", "url": f"http://127.0.0.1:{base + number}", "model": MODEL}
        for number in range(engines)
    ]
    file.write_text(json.dumps({"version": 1, "gateway": gateway, "workers": workers}))
    return Command(port, (sys.executable, "-m", "phasewise.cli", "gateway", str(file)), {})


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free now."""
    for _ in range(100):
        base = random.randrange(20_000, 30_000)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise SystemExit(f"error: no {count} free ports in a row")


async def rounds(gateway: Arm, base: int, options: argparse.Namespace) -> list[Window]:
    """All windows, in an order that rotates."""
    client = HttpClient(f"http://127.0.0.1:{gateway.port}", TIMEOUTS)
    found = []
    await offered(client, options.rate, min(options.seconds, 3.0))  # connections, caches
    for number in range(options.rounds):
        order = (OFF, ON, AGAIN)
        for arm in (*order[number % 3 :], *order[: number % 3]):
            found.append(await window(gateway, client, arm, base, options))
            last = found[-1]
            words = f"p99 {last.p99_ms:.2f} ms, cpu {last.cpu_s / last.seconds:.1%} of a core"
            of_view = f", view {last.view_cpu_s / last.seconds:.2%}" if arm == ON else ""
            print(f"round {number + 1} {arm}: {words}{of_view}", file=sys.stderr, flush=True)
    client.close()
    return found


async def window(
    gateway: Arm, client: HttpClient, arm: str, base: int, options: argparse.Namespace
) -> Window:
    """One window under load; whoever looks has looked for some seconds before it begins."""
    async with (
        looking(gateway, LISTENERS if arm == ON else 0) as view_cpu_s,
        reading(base, 0 if arm == ON else options.engines),
    ):
        await offered(client, options.rate, min(options.seconds, SETTLE_S))
        began_s, cpu_s, view_s = time.monotonic(), gateway.cpu_s, view_cpu_s[-1]
        ttfts_s, errors = await offered(client, options.rate, options.seconds)
        if arm == ON:
            await asyncio.sleep(1.1)  # the last second's snapshot
        seconds = time.monotonic() - began_s
        return Window(arm, seconds, tuple(ttfts_s), errors, gateway.cpu_s - cpu_s, view_cpu_s[-1] - view_s)


@contextlib.asynccontextmanager
async def reading(base: int, engines: int) -> AsyncIterator[None]:
    """So many engines are asked for their counters in turn, as often as the view does."""
    clients = [HttpClient(f"http://127.0.0.1:{base + number}", TIMEOUTS) for number in range(engines)]

    async def read() -> None:
        for client in itertools.cycle(clients):
            await client.fetch("GET", "/metrics")
            await asyncio.sleep(1 / READ_PER_S)

    task = asyncio.create_task(read())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for client in clients:
            client.close()


@contextlib.asynccontextmanager
async def looking(gateway: Arm, listeners: int) -> AsyncIterator[list[float]]:
    """So many clients that read the live view; the list holds what the view says that it has used."""
    client, seen = HttpClient(f"http://127.0.0.1:{gateway.port}", TIMEOUTS), [0.0]
    begun = asyncio.Event()
    headers = [(b"authorization", b"Bearer " + ADMIN_KEY.encode()), (b"accept", b"text/event-stream")]

    async def look() -> None:
        events = EventSplitter()
        async with await client.send("GET", "/phasewise/v1/live", headers=headers) as reply:
            while data := await reply.read():
                for event in events.feed(data):
                    # The rest is not read: this process also measures the TTFTs.
                    seen.append(float(event.rpartition(b'"view_cpu_s":')[2].rstrip(b"}\n")))
                    begun.set()

    tasks = [asyncio.create_task(look()) for _ in range(listeners)]
    try:
        if tasks:
            await begun.wait()
        yield seen
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client.close()


async def offered(client: HttpClient, rate: float, seconds: float) -> tuple[list[float], int]:
    """Short streams at a constant rate: their TTFTs, and how many failed."""
    ttfts_s: list[float] = []
    errors = 0

    async def ask(due_s: float) -> None:
        nonlocal errors
        try:
            async with await client.send("POST", "/v1/chat/completions", headers=HEADERS, body=BODY) as reply:
                ttfts_s.append(time.monotonic() - due_s)
                await reply.read_all(2**20)
                errors += reply.status != 200
        except UpstreamError:
            errors += 1

    began_s = time.monotonic()
    tasks = []
    for number in range(round(rate * seconds)):
        due_s = began_s + number / rate
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        tasks.append(asyncio.create_task(ask(max(due_s, time.monotonic()))))
    await asyncio.gather(*tasks)
    return ttfts_s, errors


HEADERS = [(b"content-type", b"application/json"), (b"authorization", b"Bearer " + API_KEY.encode())]
BODY = json.dumps(
    {
        "model": MODEL,
        "messages": [{"role": "user", "content": "word " * 100}],
        "max_tokens": OUTPUT_TOKENS,
        "stream": True,
    }
).encode()


# --- with nobody looking


def not_watched(tools: Tools, options: argparse.Namespace) -> dict[str, Any]:
    """Two starts of this gateway and one of the sources before the live view, under plain completions."""
    load_core, gateway_core = cores()
    before = options.before or sources_before(ADDED_WITH, tools.folder / "before")
    commands = {name: our_command(tools.folder, tools.upstream_port, name) for name in (OFF, AGAIN)}
    if before is not None:
        commands[BEFORE] = our_command(tools.folder, tools.upstream_port, BEFORE, checkout=before)
    load = Load("request", 8, min(options.seconds, 3.0), prompt_bytes=1024)
    with contextlib.ExitStack() as stack:
        stack.enter_context(running("fake", tools.upstream, load_core, tools.folder))
        arms = [
            stack.enter_context(running(name, command, gateway_core, tools.folder))
            for name, command in commands.items()
        ]
        costs = list(costs_of(Bench(tools, load_core), arms, load, options.rounds))
    compared = {"off_cpu_ratio": (OFF, BEFORE), "aa_ratio": (AGAIN, OFF)}
    found: dict[str, Any] = {}
    for name, (ours, theirs) in compared.items():
        pairs = [(it[ours], it[theirs]) for it in costs if ours in it and theirs in it]
        found |= estimated(name, ratio(pairs))
    return found


def costs_of(bench: Bench, arms: Sequence[Arm], load: Load, rounds: int) -> Iterator[dict[str, float]]:
    """Microseconds per request of each arm, round by round; in every round another arm comes first."""
    for number in range(rounds):
        first = number % len(arms)
        rows = [bench.run(arm, load) for arm in (*arms[first:], *arms[:first])]
        for row in rows:
            print(f"round {number + 1}: {row}", file=sys.stderr, flush=True)
        yield {row.arm: row.cpu_us_per_request for row in rows if not row.errors}


def estimated(name: str, found: Estimate | None) -> dict[str, float | None]:
    """An estimate under its name, with both ends of its interval."""
    values = (None, None, None) if found is None else (found.median, found.lower, found.upper)
    rounded = [None if value is None else round(value, 4) for value in values]
    return {f"{name}{end}": value for end, value in zip(("", "_lower", "_upper"), rounded, strict=True)}


if __name__ == "__main__":
    main()
