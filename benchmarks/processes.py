"""What does a gateway of several processes cost, what does each know, and what is lost when one is killed?

    python benchmarks/processes.py [--only placement,cpu,kill,limits] [--rounds 8] [--bench-folder DIR]
        [--quick] [--json]

`placement`: the gateway's own flow before eight virtual engines, in virtual time: conversations and system
prompts (those of affinity_cells.py), through one gateway that sees everything, through four processes that
get requests by chance and exchange loads and prefixes through Redis as often as real ones (a millisecond on
the way), through eight gateways that do the same, and through four processes and eight gateways `alone`,
which have a secret in common but no Redis: they share neither, but find the same home of a conversation. A
quality is the worse of two ratios to the one that sees all: the share of prompt tokens that were cached, and
the p90 of the queue spread (how many more tokens the fullest engine has to compute than the emptiest, at each
arrival), the larger the better for both. `ttft_ratio` is that of mean TTFT, the smaller the better.

`cpu`: processor time per request of 1 KB through two processes by that through one, on one core, between the
gateway bench's load generator and upstream in C; upper end of a 95% interval over rounds, with one process
against itself as the control.

`kill`: four processes with streams; one is killed by SIGKILL. Of the streams that break off, those that the
killed one did not hold are lost beyond its own.

`limits`: clients ask with one key without a pause: through four processes, and through eight gateways, with
one Redis each. Exact means that neither more nor fewer pass than a full bucket and its refill allow.

The last line is one JSON object. It ends with 1 where a limit was not exact or another's stream was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import psutil
import uvloop
from affinity_cells import KINDS, OURS, Cell, fleet_of, traffic_of, watch_spread
from overhead.arms import DidNotStart, our_command, running
from overhead.figures import Estimate, ratio
from overhead.loads import Bench, Load
from overhead.tools import CannotMeasure, Tools, find_bench
from script import command_line, interpreter, print_record, say
from shared_limits import COST, LIMIT_PER_MINUTE, PATIENCE, SHAPE, Redis, hammer
from stress.processes import MODEL, fake_engines, gateway, two_cores

from phasewise.clients.http_client import HttpClient
from phasewise.gateway.api.auth import key_sha256
from phasewise.simulator.gateway import SimulatedRequest

PROCESSES, GATEWAYS, ENGINES = 4, 8, 8
SEEDS = (1, 2, 3)
PARTS = ("placement", "cpu", "kill", "limits")
KEY = "limited"
SLOW = {**COST, "floor_s": 0.05}
STREAMS, STREAM_TOKENS = 120, 100


def main() -> None:
    """Measure each part and print the record."""
    parser = command_line(__doc__, quick="seconds, not minutes: proves that it runs")
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--rounds", type=int, help="of the processor's time; default: 8")
    parser.add_argument("--bench-folder", type=Path, help="default: ../shared/gateway-bench")
    options = parser.parse_args()
    only = options.only.split(",")
    if unknown := set(only) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    record: dict[str, Any] = {"processes": PROCESSES, "gateways": GATEWAYS, "quick": options.quick}
    for name in only:
        record |= MEASURE[name](options)
    record["python"] = interpreter()
    print_record(record, options)
    if record.get("streams_lost_beyond_own") or record.get("limits_exact") is False:
        raise SystemExit("error: not as promised")


# --- placement --------------------------------------------------------------------------------------------


def placement(options: argparse.Namespace) -> dict[str, Any]:
    """Against one gateway that sees everything."""
    kinds = [it for it in KINDS if it.turns > 1 or it.systems]
    loads = (0.7,) if options.quick else (0.5, 0.8)
    rows = []
    for kind in kinds[:1] if options.quick else kinds:
        for load in loads:
            seconds = 20.0 if options.quick else 120.0
            cell = Cell(kind, ENGINES, load, seconds)
            one = _placed(cell, 1)
            row = {
                "": _against(_placed(cell, PROCESSES, redis=True), one),
                "alone_": _against(_placed(cell, PROCESSES), one),
                "gateways_": _against(_placed(cell, GATEWAYS, redis=True), one),
                "gateways_alone_": _against(_placed(cell, GATEWAYS), one),
            }
            rows.append(row)
            say(f"{kind.name}, load {load}: {row}")
    found = {}
    for name in rows[0]:
        every = [row[name] for row in rows]
        worst = {key: min(it[key] for it in every) for key in ("hit_ratio", "spread_ratio")}
        found[f"{name}placement_quality"] = min(worst.values())
        found |= {f"{name}worst_{key}": value for key, value in worst.items()}
        found[f"{name}worst_ttft_ratio"] = max(it["ttft_ratio"] for it in every)
    return {"placement_cells": len(rows), **found}


def _placed(cell: Cell, replicas: int, *, redis: bool = False) -> tuple[float, float, float]:
    """The share of cached prompt tokens, the p90 of the queue spread, and the mean TTFT, over all seeds."""
    served: list[SimulatedRequest] = []
    spreads: list[int] = []
    for seed in SEEDS:
        fleet = fleet_of(OURS, cell.engines, replicas, redis=redis, seed=seed)
        watch_spread(fleet, spreads)
        served += fleet.run(traffic_of(cell, seed))
    cached, asked = sum(it.cached_tokens for it in served), sum(it.prompt_tokens for it in served)
    return cached / asked, quantiles(spreads, n=10)[-1], fmean(it.ttft_s for it in served)


def _against(these: tuple[float, float, float], one: tuple[float, float, float]) -> dict[str, float]:
    return {
        "hit_ratio": round(these[0] / one[0], 3),
        "spread_ratio": round(one[1] / these[1], 3),
        "ttft_ratio": round(these[2] / one[2], 3),
    }


# --- processor --------------------------------------------------------------------------------------------


def cpu(options: argparse.Namespace) -> dict[str, Any]:
    """One and two processes on one core, and one again."""
    rounds = options.rounds or (1 if options.quick else 8)
    load = Load("request_1kb", connections=16, seconds=1.0 if options.quick else 3.0, prompt_bytes=1024)
    with tempfile.TemporaryDirectory(prefix="phasewise-processes-") as folder, ExitStack() as stack:
        try:
            tools = Tools(find_bench(options.bench_folder), Path(folder), Path(folder))
        except CannotMeasure as reason:
            return {"cpu_skipped": str(reason)}
        load_core, gateway_core = two_cores()
        stack.enter_context(running("upstream", tools.upstream, load_core, tools.folder))
        bench, arms = Bench(tools, load_core), []
        for name, many in (("one", 1), ("two", 2), ("again", 1)):
            command = our_command(tools.folder, tools.upstream_port, name, settings={"processes": many})
            arms.append(stack.enter_context(running(name, command, gateway_core, tools.folder)))
        spent: dict[str, list[float]] = {arm.name: [] for arm in arms}
        for number in range(rounds):
            for arm in arms[number % 3 :] + arms[: number % 3]:
                row = bench.run(arm, load)
                spent[arm.name].append(row.cpu_us_per_request)
                say(f"round {number + 1}: {row}")
    one = spent["one"]
    return {
        **_estimate("cpu_per_request_ratio", ratio(list(zip(spent["two"], one, strict=True)))),
        **_estimate("cpu_aa_control", ratio(list(zip(spent["again"], one, strict=True)))),
        "cpu_us_per_request": {name: round(fmean(values), 1) for name, values in spent.items()},
        "cpu_rounds": rounds,
    }


def _estimate(name: str, found: Estimate | None) -> dict[str, Any]:
    if found is None:
        return {name: None}
    ends = {"": found.upper, "_median": found.median, "_lower": found.lower}
    return {name + end: None if value is None else round(value, 3) for end, value in ends.items()}


# --- a killed process -------------------------------------------------------------------------------------


def kill(options: argparse.Namespace) -> dict[str, Any]:
    """Streams through four processes, of which one is killed."""
    with (
        fake_engines(2, SLOW, SHAPE) as engines,
        gateway(engines, 1000, {"processes": PROCESSES}) as running_gateway,
    ):
        parent = psutil.Process(running_gateway.pid)
        found = uvloop.run(_kill_one(running_gateway.url, parent, 24 if options.quick else STREAMS))
    say(f"kill: {found}")
    return found


async def _kill_one(url: str, parent: psutil.Process, count: int) -> dict[str, Any]:
    port = int(url.rpartition(":")[2])
    streams = [Stream(port) for _ in range(count)]
    reading = [asyncio.create_task(it.read()) for it in streams]
    await asyncio.gather(*(it.begun.wait() for it in streams))
    victim = parent.children()[0]
    held = {it.raddr.port for it in victim.net_connections("tcp") if it.laddr.port == port and it.raddr}
    os.kill(victim.pid, signal.SIGKILL)
    await asyncio.gather(*reading)
    lost = {it.own_port for it in streams if not it.whole}
    return {
        "killed": 1,
        "streams": count,
        "streams_lost": len(lost),
        "streams_lost_beyond_own": len(lost - held),
    }


class Stream:
    """One stream over a connection of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.own_port = 0
        self.begun = asyncio.Event()
        self.whole = False

    async def read(self) -> None:
        """To its end, or until it breaks off."""
        body = json.dumps(
            {
                "model": MODEL, "stream": True, "max_tokens": STREAM_TOKENS, "ignore_eos": True,
                "messages": [{"role": "user", "content": "hello"}],
            }
        ).encode()  # fmt: skip
        line = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        head = line + b"content-length: %d\r\n\r\n" % len(body)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            self.own_port = writer.get_extra_info("sockname")[1]
            writer.write(head + body)
            if b" 200 " not in (status := await reader.readline()):
                raise SystemExit(f"error: a stream was answered with {status.decode().strip()}")
            while line := await reader.readline():
                if line.startswith(b"data:"):
                    self.begun.set()
                if line.startswith(b"data: [DONE]"):
                    self.whole = True
                    break
            writer.close()
        except OSError:
            self.begun.set()  # and broken off


# --- limits -----------------------------------------------------------------------------------------------


def limits(options: argparse.Namespace) -> dict[str, Any]:
    """One key through processes, and through gateways, which count it together in Redis."""
    seconds = 1.5 if options.quick else 20.0
    keys = [{"sha256": key_sha256(KEY), "requests_per_minute": LIMIT_PER_MINUTE}]
    found = {}
    with fake_engines(1, COST, SHAPE) as engines:
        redis = Redis()
        settings = {"api_keys": keys, "redis": {"url": redis.url}}
        with redis.running(), gateway(engines, 1000, {**settings, "processes": PROCESSES}) as one:
            found["processes"] = uvloop.run(_hammered([one.url] * 32, seconds))
        redis = Redis()
        settings["redis"] = {"url": redis.url}
        with redis.running(), ExitStack() as stack:
            many = [stack.enter_context(gateway(engines, 1000, settings)) for _ in range(GATEWAYS)]
            found["gateways"] = uvloop.run(_hammered([it.url for it in many] * 4, seconds))
    say(f"limits: {found}")
    return {"limits_exact": not any(map(_is_wrong, found.values())), "limits": found}


def _is_wrong(found: dict[str, Any]) -> bool:
    # A machine that stands still may not ask for all that it could get; then nothing was rejected.
    too_few = found["under_use"] and found["asked"] > found["passed"]
    return bool(found["over_limit_passed"] or found["failed"] or too_few)


async def _hammered(urls: list[str], seconds: float) -> dict[str, Any]:
    asking = [HttpClient(url, PATIENCE) for url in urls]
    try:
        return (await hammer(asking, KEY, seconds, len(asking))).against_limit()
    finally:
        for client in asking:
            client.close()


MEASURE = {"placement": placement, "cpu": cpu, "kill": kill, "limits": limits}


if __name__ == "__main__":
    try:
        main()
    except DidNotStart as error:
        raise SystemExit(f"error: {error}") from error
