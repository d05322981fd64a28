"""Plants five causes on a real engine and asks `phasewise diagnose` for each; healthy runs are mixed in.

    python benchmarks/first_verdicts.py [--runs 3] [--quick] [--json] [--home DIR]

Every run is what a user would do: `phasewise up` with a fleet file, traffic from `phasewise bench`, and
`phasewise diagnose` on the gateway while the traffic flows, all under one objective. The rules and the cases
come from the same hands, and the load of the decode case was raised once, after a trial in which its steps
were not slow: this shows that planted causes are told apart, not how often a verdict is right in the wild.
The planted delays use a slow proxy of our own before the engine.

The last line is one JSON object: runs, right, residual_share (|residual| / TTFT at p50, median over healthy
runs), residual_ms, and for each planted delay what the residual and the other parts grew by.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.step_feed import StepFeed
from phasewise.bench.generator import LoadGenerator
from phasewise.bench.target import find_target, fit_prompts
from phasewise.diagnosis.attribution import attribute
from phasewise.model.latency import TtftBreakdown, ttft_breakdown
from phasewise.model.step_log import StepLog
from phasewise.workload.arrivals import ClosedLoop
from phasewise.workload.lengths import Lengths
from phasewise.workload.plan import PlanSpec, make_plan
from phasewise.workload.presets import Shape

SLO = "ttft=1s,tpot=100ms"
HEALTHY = "healthy"
SETTLE_S = 6.0
QUICK_CASES = 2
GATEWAY_PORT, ENGINE_PORT, PROXY_PORT = 18080, 18100, 18200
DELAYS_MS = (0, 0, 20, 50, 100)
"""The first arm is what the others are compared with; the second one, delayed no more, shows the noise."""


@dataclass(frozen=True)
class Case:
    """A cause to plant: the engine it needs, the traffic that shows it, how long to watch."""

    name: str
    levers: str
    loads: tuple[str, ...]
    window_s: float


CASES = (
    Case(HEALTHY, "", ("--concurrency 2 --prompt-tokens 120 --output-tokens 32",), 20),
    Case("long_prompt_prefill", "", ("--concurrency 1 --prompt-tokens 3000 --output-tokens 8",), 30),
    Case(
        "prefill_chunks_stall_decodes",
        "",
        (
            "--concurrency 3 --prompt-tokens 40 --output-tokens 120",
            "--rate 0.15 --spacing constant --prompt-tokens 3000 --output-tokens 2",
        ),
        40,
    ),
    Case("decode_step", "", ("--concurrency 96 --prompt-tokens 24 --output-tokens 192",), 40),
    Case("queueing", "max_running: 2", ("--concurrency 10 --prompt-tokens 60 --output-tokens 32",), 30),
    Case(
        "prefix_reuse_missing",
        "prefix_cache: false",
        ("--concurrency 1 --prompt-tokens 2400 --shared-prefix-tokens 2200 --output-tokens 8",),
        30,
    ),
)


def main() -> None:
    """Run everything and print the record."""
    options = parse_options()
    os.environ.setdefault("PHASEWISE_HOME", str(options.home))
    runs: list[dict[str, object]] = []
    delays: list[dict[str, float]] = []
    chosen = CASES[:QUICK_CASES] if options.quick else CASES
    for levers in dict.fromkeys(case.levers for case in chosen):
        cases = [case for case in chosen if case.levers == levers]
        with fleet(levers):
            for number in range(options.runs):
                for case in cases:
                    runs.append(judge(case, number, options.quick))
            if not levers:
                delays = asyncio.run(plant_delays(3 if options.quick else 25))
    # Windows of the short form hold too few requests to be judged by.
    record = {"quick": options.quick, **summary(runs, delays)}
    if not options.json:
        print(json.dumps({key: value for key, value in record.items() if key != "detail"}, indent=2))
    print(json.dumps(record))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each case")
    parser.add_argument(
        "--quick", action="store_true", help="one short run of the first cases, to show that it runs"
    )
    parser.add_argument("--json", action="store_true", help="print only progress and the JSON line")
    default_home = Path(__file__).resolve().parent.parent / ".phasewise"
    parser.add_argument(
        "--home", type=Path, default=default_home, help="where engine and model are installed"
    )
    options = parser.parse_args()
    if options.quick:
        options.runs = 1
    return options


@contextlib.contextmanager
def fleet(levers: str) -> Iterator[None]:
    """A fleet of one real engine, started and stopped as a user does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.yaml"
        path.write_text(
            f"version: 1\nname: verdicts\nfirst_engine_port: {ENGINE_PORT}\n"
            f"pools:\n  - {{name: main, cores: 1, levers: {{{levers}}}}}\n"
            f"gateway: {{port: {GATEWAY_PORT}}}\n"
        )
        say(f"starting an engine with levers {{{levers}}}")
        run("up", str(path), "--detach")
        try:
            yield
        finally:
            run("down", "--name", "verdicts")


def judge(case: Case, number: int, quick: bool) -> dict[str, object]:
    """Put the case's traffic on the gateway and ask for a verdict while it flows."""
    window_s = min(case.window_s, 12.0) if quick else case.window_s
    url = f"http://127.0.0.1:{GATEWAY_PORT}"
    duration = ("--duration", str(window_s + SETTLE_S + 4))
    traffic = [
        subprocess.Popen(
            [*PHASEWISE, "bench", url, *load.split(), *duration, "--seed", str(1000 + 100 * number + index)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for index, load in enumerate(case.loads)
    ]
    try:
        time.sleep(SETTLE_S)
        verdict = json.loads(run("diagnose", url, "--window", str(window_s), "--slo", SLO, "--json"))
    finally:
        for process in traffic:
            process.wait(timeout=180)
    said = verdict["cause"] or verdict["verdict"]
    say(f"{case.name} #{number + 1}: {said}{'' if said == case.name else '   <-- wrong'}")
    for finding in verdict["findings"][:1]:
        for fact in finding["evidence"]:
            say(f"    {fact}")
    return {"case": case.name, "said": said, "right": said == case.name, "verdict": verdict}


def run(*arguments: str) -> str:
    """A phasewise command; its stdout, or the end of the benchmark."""
    done = subprocess.run([*PHASEWISE, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"phasewise {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


PHASEWISE = (sys.executable, "-m", "phasewise.cli")


async def plant_delays(rounds: int) -> list[dict[str, float]]:
    """Send the same traffic through proxies that hold requests back, interleaved; who shows the delay?"""
    engine = f"http://127.0.0.1:{ENGINE_PORT}"
    feed = StepFeed(f"http://127.0.0.1:{ENGINE_PORT + 10_000}")
    arms: list[list[TtftBreakdown]] = [[] for _ in DELAYS_MS]
    async with contextlib.AsyncExitStack() as stack:
        for index, delay in enumerate(DELAYS_MS):
            await stack.enter_async_context(slow_proxy(PROXY_PORT + index, ENGINE_PORT, delay / 1000))
        for number in range(rounds + 1):
            for turn in range(len(arms)):
                index = (number + turn) % len(arms)  # no arm is always the first of a round
                found = await one_request(f"http://127.0.0.1:{PROXY_PORT + index}", engine, feed, number)
                if number:  # the first round warms connections up
                    arms[index].append(found)
    feed.close()
    return [delay_record(delay, arm, arms[0]) for delay, arm in list(zip(DELAYS_MS, arms, strict=True))[1:]]


async def one_request(proxy: str, engine: str, feed: StepFeed, seed: int) -> TtftBreakdown:
    """One prompt of 120 tokens through a proxy; its breakdown with the step record's help."""
    client = HttpClient(proxy)
    rng = Random(f"{proxy}-{seed}-{time.time_ns()}")
    target = await find_target(client)
    spec = PlanSpec(Shape("delay", Lengths.fixed(120), Lengths.fixed(4)), ClosedLoop(1), requests=1)
    plan = await fit_prompts(client, target, make_plan(spec, rng), rng)
    run_id = f"delay-{seed}-{rng.getrandbits(40):x}"
    done = await LoadGenerator(client, target, plan, run_id).run()
    client.close()
    steps = (await feed.poll()).steps
    found = ttft_breakdown(attribute(done.timelines[0], StepLog(steps)))
    if found is None:
        raise SystemExit(f"{engine} gave no answer through {proxy}")
    return found


@contextlib.asynccontextmanager
async def slow_proxy(port: int, engine_port: int, delay_s: float) -> AsyncIterator[None]:
    """A TCP proxy that holds back what the client sends."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hold_s: float) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await asyncio.sleep(hold_s)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", engine_port)
        await asyncio.gather(pump(reader, up_writer, delay_s), pump(up_reader, writer, 0.0))

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


def delay_record(delay_ms: int, arm: list[TtftBreakdown], undelayed: list[TtftBreakdown]) -> dict[str, float]:
    """What grew against the undelayed arm, round by round, at the median: residual and other parts."""
    pairs = list(zip(arm, undelayed, strict=True))
    residual_s = median(mine.residual_s - theirs.residual_s for mine, theirs in pairs)
    elsewhere_s = median(
        (mine.ttft_s - mine.residual_s) - (theirs.ttft_s - theirs.residual_s) for mine, theirs in pairs
    )
    record = {
        "planted_ms": float(delay_ms),
        "residual_ms": round(residual_s * 1000, 1),
        "elsewhere_ms": round(elsewhere_s * 1000, 1),
    }
    say(
        f"a planted delay of {delay_ms} ms: residual {record['residual_ms']:+} ms, "
        f"elsewhere {record['elsewhere_ms']:+} ms"
    )
    return record


def summary(runs: list[dict[str, object]], delays: list[dict[str, float]]) -> dict[str, object]:
    """The record."""
    healthy = [run_["verdict"]["start"] for run_ in runs if run_["case"] == HEALTHY]
    return {
        "runs": len(runs),
        "right": sum(bool(run_["right"]) for run_ in runs),
        "residual_share": round(median(start["residual_share_p50"] for start in healthy), 4),
        "residual_ms": round(median(start["residual_abs_p50_ms"] for start in healthy), 2),
        "healthy_ttft_p50_ms": round(median(start["ttft_p50_ms"] for start in healthy), 1),
        "delays": delays,
        "by_case": {
            case.name: [run_["said"] for run_ in runs if run_["case"] == case.name] for case in CASES
        },
    }


def say(line: str) -> None:
    """Progress, as it happens."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
