"""What OpenTelemetry traces cost the gateway in processor time.

    python benchmarks/trace_cost.py [--bench-folder DIR] [--rounds 12] [--seconds 3] [--quick] [--json]

Gateways are processes on one core; the fake engine and the load generator (both in C, from the gateway
bench's folder) and a collector that takes all spans share another. Arms: `off` and `off_again` have no
`traces`, `sampled` keeps 1% of requests and `all` keeps every request. Every round runs both loads against
every arm, in an order that rotates: `request` is plain completions of 1 KB, the cheapest requests there are,
and `stream` is streams of 50 tokens. Processor time counts the exporter's thread, until all spans are sent.

The last line is one JSON object: otel_cpu_ratio (`sampled` by `off`), otel_all_cpu_ratio (`all` by `off`) and
aa_ratio (`off_again` by `off`), medians over the rounds of `request`, each with _lower and _upper, the ends
of a 95% interval (null from fewer than four rounds); the same under `stream`. `dropped` counts the requests
whose spans were not sent, which should be none. `lag_s` is the longest delay of an event loop while it
served, by arm. Without the bench's folder, gcc or taskset the object says so under `skipped`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from overhead.arms import Arm, DidNotStart, our_command, running
from overhead.figures import Estimate, ratio
from overhead.loads import Bench, Load, Row
from overhead.tools import CannotMeasure, Tools, find_bench
from script import command_line, interpreter, print_record, say
from stress.processes import two_cores

import phasewise
from phasewise.clients.host import allow_many_streams

OFF, AGAIN, SAMPLED, ALL = "off", "off_again", "sampled", "all"
SHARES = {SAMPLED: 0.01, ALL: 1.0}
REQUEST, STREAM = "request", "stream"
SENT_WITHIN_S = 10.0
LAG = "phasewise_event_loop_lag_seconds"


def main() -> None:
    """Measure, and print one JSON object whatever there was to measure with."""
    options = parse_options()
    allow_many_streams()
    result: dict[str, Any] = {"python": interpreter(), "build": phasewise.__version__}
    with tempfile.TemporaryDirectory(prefix="phasewise-traces-") as folder:
        try:
            tools = Tools(find_bench(options.bench_folder), Path(folder), Path("venvs"))
            result = measure(tools, options) | result
        except CannotMeasure as reason:
            result = {"skipped": str(reason), **result}
        except DidNotStart as error:
            raise SystemExit(f"error: {error}") from error
    print_record(result, options)
    if result.get("errors"):
        raise SystemExit(f"error: {result['errors']} requests failed")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__, quick="seconds, not minutes: proves that it runs")
    parser.add_argument("--bench-folder", type=Path, help="default: ../shared/gateway-bench")
    parser.add_argument("--rounds", type=int, help="default: 12")
    parser.add_argument("--seconds", type=float, default=3.0, help="of one run")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 12)
    options.seconds = 0.5 if options.quick else options.seconds
    return options


def measure(tools: Tools, options: argparse.Namespace) -> dict[str, Any]:
    """Start everything, run the rounds, end everything."""
    load_core, gateway_core = two_cores()
    os.sched_setaffinity(0, {load_core})  # the collector is a thread of this process
    loads = (
        Load(REQUEST, 8, options.seconds, prompt_bytes=1024),
        Load(STREAM, 8, options.seconds, stream_tokens=50, interval_us=1_000),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(running("fake", tools.upstream, load_core, tools.folder))
        url = stack.enter_context(collector())
        arms = []
        for name, command in commands(tools, url).items():
            arms.append(stack.enter_context(running(name, command, gateway_core, tools.folder)))
        bench = Bench(tools, load_core)
        rows, lags = run_rounds(bench, arms, loads, options.rounds)
        dropped = sum(scraped(arm, "phasewise_traces_dropped_total") for arm in arms)
    return {
        **ratios(rows, REQUEST),
        STREAM: ratios(rows, STREAM),
        "dropped": int(dropped),
        "lag_s": lags,
        "errors": sum(row.errors for row in rows),
        "rounds": options.rounds,
    }


def commands(tools: Tools, url: str) -> dict[str, Any]:
    """How every arm is started."""
    found = {}
    for name in (OFF, AGAIN, SAMPLED, ALL):
        traces = {"traces": {"endpoint": url, "sample": SHARES[name]}} if name in SHARES else None
        found[name] = our_command(tools.folder, tools.upstream_port, name, settings=traces)
    return found


def run_rounds(
    bench: Bench, arms: Sequence[Arm], loads: Sequence[Load], rounds: int
) -> tuple[list[Row], dict[str, float]]:
    """Every load against every arm, again and again; in every round another arm comes first."""
    rows: list[Row] = []
    lags = dict.fromkeys((arm.name for arm in arms), 0.0)
    for number in range(rounds):
        for load in loads:
            first = number % len(arms)
            for arm in (*arms[first:], *arms[:first]):
                scraped(arm, LAG)  # resets it
                before_s = arm.cpu_s
                row = bench.run(arm, load)
                wait_until_idle(arm)
                rows.append(replace(row, cpu_s=arm.cpu_s - before_s))
                lags[arm.name] = max(lags[arm.name], scraped(arm, LAG))
                say(f"round {number + 1}: {rows[-1]}")
    return rows, lags


def wait_until_idle(arm: Arm) -> None:
    """Until a second passes with almost no work: all spans are sent then."""
    deadline_s = time.monotonic() + SENT_WITHIN_S
    while time.monotonic() < deadline_s:
        before_s = arm.cpu_s
        time.sleep(1.2)
        if arm.cpu_s - before_s <= 0.04:
            return


def scraped(arm: Arm, metric: str) -> float:
    """The sum of a metric's series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{arm.port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    return sum(float(it) for it in re.findall(rf"^{metric}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))


def ratios(rows: Sequence[Row], load: str) -> dict[str, float | None]:
    """The processor time per request of two arms, by round."""
    costs: dict[str, list[float]] = {}
    for row in rows:
        if row.load == load:
            costs.setdefault(row.arm, []).append(row.cpu_us_per_request)
    compared = {
        "otel_cpu_ratio": (SAMPLED, OFF),
        "otel_all_cpu_ratio": (ALL, OFF),
        "aa_ratio": (AGAIN, OFF),
    }
    found: dict[str, float | None] = {}
    for name, (one, other) in compared.items():
        pairs = zip(costs[one], costs[other], strict=True)
        found |= figures(name, ratio(list(pairs)))
    return found | {f"{arm}_us": round(sorted(each)[len(each) // 2], 1) for arm, each in costs.items()}


def figures(name: str, found: Estimate | None) -> dict[str, float | None]:
    """A ratio and the ends of its interval."""
    ends = (None,) * 3 if found is None else (found.median, found.lower, found.upper)
    names = (name, f"{name}_lower", f"{name}_upper")
    return {key: None if end is None else round(end, 3) for key, end in zip(names, ends, strict=True)}


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """A server that takes every batch of spans and keeps none."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
