"""Does the load generator keep its times with a thousand streams open, on one core?

    python benchmarks/bench_lag.py [--rates 100,200,300] [--seconds 20] [--repeats 3] [--quick] [--json]

A fake engine in a process of its own, whose every step takes 0.2 s, keeps the streams open; the generator is
pinned to one core and the engine to another. An open loop sends at each rate in turn. Send lag is counted
from the intended time of a request to the moment it is handed to the transport. The machine is shared, so
each rate is run several times and the median of the runs' p99 is judged: one freeze of a tenth of a second
is more than a hundredth of a short run's requests. How long the kernel kept the generator waiting for its
core, and the host the machine, is printed beside it. The largest rate that holds the bound is the answer.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import numpy as np
import uvloop
from script import command_line

from phasewise.benchmark.results import BenchReport, HostView, build_report
from phasewise.benchmark.session import RunSpec, measure
from phasewise.benchmark.statistics.summary import Summary
from phasewise.benchmark.workload.arrivals import OpenLoop
from phasewise.benchmark.workload.plan import PlanSpec
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.clients.host import allow_many_streams
from phasewise.core.slo import DEFAULT_SLO

BOUND_S = 0.005
STEP_S = 0.2
OUTPUT_TOKENS = 18
"""Of a step each: a stream stays open for 3.5 s, so that 300 per second are a thousand at once."""
PROMPT_TOKENS = 64

ENGINE = """
import uvloop
from phasewise.costs.fit.step import StepCost
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import run_engines
from phasewise.simulator.engine import EngineShape
cost = StepCost(floor_s={step_s}, knee_tokens=10**9, beyond_knee_s_per_token=0, attention_s_per_token_pair=0,
                kv_read_s_per_token=0, per_request_s=0)
shape = EngineShape(max_num_seqs=4096, max_num_batched_tokens=10**6, total_blocks=20000)
uvloop.run(run_engines(1, FakeEngineConfig(port={port}, cost=cost, shape=shape), lambda engines: None))
"""


def main() -> None:
    """Run the rates and print a line per run, then one JSON object."""
    parser = command_line(__doc__, quick="one short run: proves that the script runs")
    parser.add_argument("--rates", default="200,300,400,600", help="requests per second, comma-separated")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each run sends")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rates = [50.0] if options.quick else [float(rate) for rate in options.rates.split(",")]
    seconds, repeats = (3.0, 1) if options.quick else (options.seconds, options.repeats)
    allow_many_streams()
    cores = sorted(os.sched_getaffinity(0))
    runs: dict[float, list[BenchReport]] = {rate: [] for rate in rates}
    waited: dict[float, list[float]] = {rate: [] for rate in rates}
    open_streams: dict[float, float] = {}
    with fake_engine(cores[-1]) as url:
        os.sched_setaffinity(0, {cores[0]})
        for repeat in range(repeats):
            for rate in rates:
                before_s = waited_for_core_s()
                report, streams = run(url, rate, seconds)
                runs[rate].append(report)
                waited[rate].append((waited_for_core_s() - before_s) / report.wall_s)
                open_streams[rate] = max(streams, open_streams.get(rate, 0.0))
                if not options.json:
                    lag = report.lag_s
                    print(
                        f"{rate:g}/s, run {repeat + 1}: lag p50 {_ms(lag.p50)} p99 {_ms(lag.p99)} max "
                        f"{_ms(lag.max)} ms, {streams:.0f} streams open, waited for its core "
                        f"{waited[rate][-1]:.0%} of the time, stolen by the host "
                        f"{host_of(report).stolen_share:.1%}, void: {bool(report.void)}",
                        flush=True,
                    )
    p99_ms = {rate: median(_worst_ms(report.lag_s) for report in reports) for rate, reports in runs.items()}
    held = [rate for rate in rates if p99_ms[rate] < BOUND_S * 1000]
    result = {
        "bound_ms": BOUND_S * 1000,
        "p99_lag_ms": {f"{rate:g}": p99_ms[rate] for rate in rates},
        "open_streams": {f"{rate:g}": round(open_streams[rate]) for rate in rates},
        "generator_cpu_share": {
            f"{rate:g}": round(median(host_of(report).generator_cpu_share for report in reports), 3)
            for rate, reports in runs.items()
        },
        "waited_for_core": {f"{rate:g}": round(median(shares), 3) for rate, shares in waited.items()},
        "stolen_by_host": {
            f"{rate:g}": round(max(host_of(report).stolen_share for report in reports), 4)
            for rate, reports in runs.items()
        },
        "failed": sum(report.offered - report.succeeded for reports in runs.values() for report in reports),
        "largest_rate_that_holds": max(held, default=None),
        "quick": options.quick,
    }
    print(json.dumps(result))


def host_of(report: BenchReport) -> HostView:
    """What the machine did during a run."""
    if report.host is None:
        raise SystemExit("error: too few CPU readings in a run. hint: give it more --seconds")
    return report.host


def run(url: str, rate: float, seconds: float) -> tuple[BenchReport, float]:
    """One run: its report, and how many streams were open on average in its second half."""
    shape = Shape("streams that stay open.", Lengths.fixed(PROMPT_TOKENS), Lengths.fixed(OUTPUT_TOKENS))
    spec = RunSpec(PlanSpec(shape, OpenLoop(rate), duration_s=seconds), seed=int(rate))
    done = uvloop.run(measure(url, spec))
    report = build_report(done, DEFAULT_SLO, np.random.default_rng(0))
    half_s = seconds / 2
    open_s = sum(
        max(min(start_s + timeline.ended_s, seconds) - max(start_s, half_s), 0.0)
        for timeline in done.timelines
        for start_s in [timeline.started_unix_s - done.started_unix_s]
    )
    return report, open_s / half_s


def waited_for_core_s() -> float:
    """How long this process was ready to run and another had the core, as the kernel counts it."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


@contextmanager
def fake_engine(core: int) -> Iterator[str]:
    """A fake engine pinned to a core, at the yielded address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen(
        ["taskset", "-c", str(core), sys.executable, "-c", ENGINE.format(step_s=STEP_S, port=port)]
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_ready(url: str) -> None:
    for _ in range(300):
        try:
            with urlopen(f"{url}/health"):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"the fake engine at {url} did not start")


def _worst_ms(lag: Summary) -> float:
    """The p99, or the longest lag of a run too short to have one."""
    return _ms(lag.p99 if lag.p99 is not None else lag.max)


def _ms(seconds: float | None) -> float:
    return float("nan") if seconds is None else round(seconds * 1000, 2)


if __name__ == "__main__":
    main()
