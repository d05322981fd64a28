"""What our gateway costs beside others: processor time, added TTFT, memory per stream, the most chunks/s.

    python benchmarks/gateway_overhead.py [--peers vllm-router,sglang-router,nginx,litellm] [--venvs DIR]
        [--before CHECKOUT] [--bench-folder DIR] [--rounds 10] [--seconds 3] [--only LOAD,...] [--quick]
        [--json]

All gateways are real processes on one core; the upstream (fakeup) and the load generator (sseload), both in C
and from the gateway bench's folder, share another. Ours has timelines, metrics, API keys and health checks
on, as itself tells at the end (`ours_has_on`). Every round runs every load against every gateway, in an order
that rotates. Ours is started twice: the second start against the first is the control (`aa_control`). With
--before, an earlier checkout of this repository is one more gateway to compare with (`vs_before`).

Loads: `request_1kb`, `request_32kb` and `request_400kb` are plain completions with prompts of that size, as
many as the gateway manages. `chunk` is 100 streams of 200 tokens, each with a chunk every 10 ms, spread
evenly; in `chunk_in_step` the chunks of 200 streams come at once, as an engine's steps send them. `ttft` is
one short stream after the other, and is run without a gateway, too. `memory` is 5,000 streams at 5 tokens/s
through a gateway that was just started. `max_chunks` looks for the largest offered rate (50 chunks/s per
stream, evenly) that arrives in full while the p99 of a chunk's travel is less than 10 ms above what it is
without a gateway. All prompts of a load are the same.

The last line is one JSON object. `vs_PEER` has our processor time by the peer's: cpu_per_request (1 KB),
cpu_per_request_32kb, cpu_per_request_400kb, cpu_per_chunk and cpu_per_chunk_in_step are the upper ends of
two-sided 95% intervals (Student's t over the rounds' log ratios), null from fewer than four rounds; _median
and _lower stand beside each. A chunk's cost includes its share of the request's. `aa_control` has the same of
ours against itself. added_ttft_ms (the median of paired differences of p50; _upper is its interval's upper
end), kb_per_stream (growth of resident memory, in units of 1,024 bytes) and max_chunks_per_s (the median of
the repeats) are ours. `arms` has everybody's, and processor time in microseconds, for information. Rows with
failed requests are counted as `errors` and not used; if ours has any, the exit code is 1.

A peer that is not installed is named in `missing_peers` with how to install it. Without the bench's folder,
gcc or taskset nothing can be measured: the object then says why under `skipped`. With one peer a full run
takes about twenty minutes, and asks for a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from overhead.arms import Arm, DidNotStart, our_command, running, what_is_on
from overhead.limits import memory_per_stream, most_chunks
from overhead.loads import Bench, Row
from overhead.plan import TTFT, Plan, full_plan, quick_plan
from overhead.summary import AGAIN, DIRECT, OURS, Measured, rounded, summary
from overhead.tools import INSTALL, REPOSITORY, CannotMeasure, Command, PeerMissing, Tools, find_bench
from script import command_line, print_record, say
from stress.processes import two_cores

from phasewise.clients.host import allow_many_streams, read_cpu_times, stolen_share

BEFORE = "before"


def main() -> None:
    """Measure, and print one JSON object whatever there was to measure with."""
    options = parse_options()
    allow_many_streams()
    result: dict[str, Any] = {"commit": commit(), "quick": options.quick}
    with tempfile.TemporaryDirectory(prefix="phasewise-overhead-") as folder:
        try:
            tools = Tools(find_bench(options.bench_folder), Path(folder), options.venvs.resolve())
            result = measure(tools, options) | result
        except CannotMeasure as reason:
            result = {"skipped": str(reason), **result}
        except DidNotStart as error:
            raise SystemExit(f"error: {error}") from error
    print_record(result, options)
    if failed := result.get("arms", {}).get(OURS, {}).get("errors"):
        raise SystemExit(
            f"error: {failed} requests failed through our gateway; its rows say under which load"
        )


def parse_options() -> argparse.Namespace:
    """The command line, with the plan it asks for."""
    parser = command_line(__doc__, quick="seconds, not minutes: proves that it runs")
    parser.add_argument("--peers", help=f"comma-separated, of: {', '.join(INSTALL)}; default: vllm-router")
    venvs = Path(os.environ.get("VENVS", "venvs"))
    parser.add_argument("--venvs", type=Path, default=venvs, help="where the peers' environments are")
    parser.add_argument("--before", type=Path, help="an earlier checkout of this repository to compare with")
    parser.add_argument("--bench-folder", type=Path, help="default: ../shared/gateway-bench")
    parser.add_argument("--rounds", type=int, help="default: 10")
    parser.add_argument("--seconds", type=float, default=3.0, help="of one run of a request load")
    parser.add_argument("--only", help="run these loads alone, comma-separated")
    parser.add_argument("--streams", type=int, default=5000, help="open at once in the memory load")
    options = parser.parse_args()
    if options.peers is None:
        options.peers = "vllm-router,nginx" if options.quick else "vllm-router"
    options.peers = [name for name in options.peers.split(",") if name]
    if unknown := set(options.peers) - INSTALL.keys():
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}; known: {', '.join(INSTALL)}")
    options.plan = quick_plan() if options.quick else full_plan(options.seconds, options.streams)
    if options.rounds is not None:
        options.plan = replace(options.plan, rounds=options.rounds)
    if options.only is not None:
        only = set(options.only.split(","))
        if unknown := only - options.plan.names:
            known = ", ".join(sorted(options.plan.names))
            parser.error(f"unknown loads: {', '.join(sorted(unknown))}; known: {known}")
        options.plan = options.plan.only(only)
    return options


def measure(tools: Tools, options: argparse.Namespace) -> dict[str, Any]:
    """Start everything, run the plan, end everything."""
    plan: Plan = options.plan
    load_core, gateway_core = two_cores()
    bench = Bench(tools, load_core)
    before = read_cpu_times()
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(running(DIRECT, tools.upstream, load_core, tools.folder))
        commands, missing = found_peers(tools, options.peers, options.before)
        with contextlib.ExitStack() as gateways:
            arms = start(commands, missing, gateway_core, tools.folder, gateways)
            rows = run_rounds(bench, list(arms.values()), upstream, plan)
            compared = [arm for name, arm in arms.items() if name != AGAIN]
            held_rates = most_chunks(bench, compared, upstream, plan, say)
            on = what_is_on(arms[OURS])
        measured = Measured(rows, held_rates)
        if plan.memory is not None:
            fresh = {arm.name: commands[arm.name] for arm in compared}
            per_stream, its_rows = memory_per_stream(
                bench, fresh, gateway_core, tools.folder, plan.memory, say
            )
            measured = replace(measured, kib_per_stream=per_stream, memory_rows=its_rows)
    after = read_cpu_times()
    stolen = stolen_share(before, after) if before is not None and after is not None else None
    return {
        **summary(measured),
        "missing_peers": missing,
        "ours_has_on": on,
        "rounds": plan.rounds,
        "host": host(stolen),
    }


def found_peers(
    tools: Tools, names: Sequence[str], before: Path | None = None
) -> tuple[dict[str, Command], dict[str, str]]:
    """How to start every gateway that is here, ours last; and of those that are not, how to install them."""
    commands: dict[str, Command] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            commands[name] = tools.peer(name)
        except PeerMissing as error:
            missing[name] = str(error)
            say(f"{name} is left out: {error}")
    if before is not None:
        commands[BEFORE] = our_command(tools.folder, tools.upstream_port, BEFORE, checkout=before)
    for name in (OURS, AGAIN):
        commands[name] = our_command(tools.folder, tools.upstream_port, name)
    return commands, missing


def start(
    commands: Mapping[str, Command],
    missing: dict[str, str],
    core: int,
    folder: Path,
    stack: contextlib.ExitStack,
) -> dict[str, Arm]:
    """Start the gateways; a peer that does not answer is left out like one that is not installed."""
    arms: dict[str, Arm] = {}
    for name, command in commands.items():
        try:
            arms[name] = stack.enter_context(running(name, command, core, folder))
        except DidNotStart as error:
            if name in (OURS, AGAIN):
                raise
            missing[name] = str(error)
            say(f"{name} is left out: {error}")
    return arms


def run_rounds(bench: Bench, arms: Sequence[Arm], upstream: Arm, plan: Plan) -> list[Row]:
    """Every load against every gateway, again and again; in every round another gateway comes first."""
    rows: list[Row] = []
    for number in range(plan.rounds):
        for load in plan.loads:
            compared = [*arms, *([upstream] if load.name == TTFT else [])]
            first = number % len(compared)
            for arm in compared[first:] + compared[:first]:
                rows.append(bench.run(arm, load))
                say(f"round {number + 1}: {rows[-1]}")
    return rows


def commit() -> str:
    """What the tree was when the run was made, with a mark when the sources had changed since."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


def host(stolen: float | None) -> dict[str, Any]:
    """What the figures hold for."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "processor": next(named, platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": [round(each, 2) for each in os.getloadavg()],
        "stolen_share": rounded(stolen, 4),
    }


if __name__ == "__main__":
    main()
