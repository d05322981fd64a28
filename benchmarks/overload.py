"""What is left of goodput when five times as much is asked for as the engines can serve?

    python benchmarks/overload.py [--repeats 3] [--seconds 60] [--quick] [--json]

Fake engines in a process of their own batch up to sixteen requests each, at the step costs below. The gateway
is another process, as a user starts it, with as many slots as the engines run and half the TTFT bound as the
longest wait. Users are an open loop of Poisson arrivals. Goodput is requests per second whose whole answer
came within both bounds, counted from when the request was first wanted, over all that were offered. In every
repeat, one after the other:

- a sweep of rates around what full engines get through: the best rate's mean over the repeats is the peak;
- five times that rate, by users who give up when rejected (`no_retries`);
- the same by users who come back after Retry-After, up to three times (`retries`).

Before all of them, once, five times the rate at a gateway whose slots never run out, so that everything waits
in the engines (`no_line`). A lead-in is never counted: until engines and line are full, more is let in than
can be kept up.

A user who is told to come back after a second has missed a TTFT bound of a second by then, and takes the room
of one who has not: with retries the peak can only be kept if few come back while it is full. Memory is the
gateway's resident set. Every rejection must be in docs/reference/gateway.md and have a Retry-After.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import uvloop
from script import command_line, print_record, say
from stress.arrivals import Demand, Offered, keep_full, offer
from stress.processes import MODEL, Gateway, MemoryWatch, cpu_s, fake_engines, gateway

from phasewise.clients.host import allow_many_streams
from phasewise.core.slo import DEFAULT_SLO

SLO = DEFAULT_SLO
TARGET_RATIO = 0.85
OVERLOAD = 5.0
ENGINES = 4
MAX_NUM_SEQS = 16
SHAPE = {"max_num_seqs": MAX_NUM_SEQS, "max_num_batched_tokens": 2048, "block_size": 16, "total_blocks": 4096}
# About what a model of 8 billion parameters takes on one mid-sized GPU.
COST = {
    "floor_s": 0.025,
    "knee_tokens": 256,
    "beyond_knee_s_per_token": 0.1e-3,
    "attention_s_per_token_pair": 1e-9,
    "kv_read_s_per_token": 0.5e-6,
    "per_request_s": 0.5e-3,
}
DEMAND = Demand(MODEL, prompt_tokens=(64, 448), output_tokens=(16, 48))
LINE = {
    "slo_classes": [{"name": "default", "ttft_s": SLO.ttft_s, "tpot_s": SLO.tpot_s, "max_wait_s": 0.5}],
    "queue": {"max_waiting": 1000},
    # Few, so that memory that grows is not just timelines being kept.
    "keep_timelines": 1000,
}
NO_LINE_SLOTS = 1_000_000
LATE_GROWTH_BOUND_MIB = 16.0
"""The most that the gateway may grow in the second half of an overload: what grows on is not bounded."""
REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "gateway.md"
LAG_BOUND_S = 0.05
"""A generator that sends later than this is part of what it measures, and the run is void."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long each part lasts."""

    repeats: int
    overload_s: float
    sweep_s: float
    no_line_s: float
    calibrate_s: float
    lead_in_s: float
    sweep: tuple[float, ...]


@dataclass(slots=True)
class Seen:
    """What was measured, by arm; the sweep's arms are named by their rates."""

    capacity_per_s: float
    goodputs_per_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    served_per_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    offered: Counter[str] = field(default_factory=Counter)
    tries: Counter[str] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    without_retry_after: int = 0
    retry_after_most_s: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    lag_p99_s: list[float] = field(default_factory=list)
    memory_most_mib: float = 0.0
    memory_late_growth_mib: float = 0.0
    gateway_cpu_share: float = 0.0

    def add(self, arm: str, run: Offered) -> None:
        """Count a run."""
        self.goodputs_per_s[arm].append(run.goodput_per_s(SLO))
        self.served_per_s[arm].append(run.served_per_s())
        self.offered[arm] += len(run.users)
        self.tries[arm] += len(run.answers)
        self.lag_p99_s.append(run.lag_p99_s())
        self.broken += run.broken
        for answer in run.rejections:
            self.rejections[f"{answer.status} {answer.code}"] += 1
            if answer.retry_after is None or not answer.retry_after.isdecimal():
                self.without_retry_after += 1
            else:
                self.retry_after_most_s = max(self.retry_after_most_s, int(answer.retry_after))


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__, quick="one short repeat: proves that the script runs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each overload")
    options = parser.parse_args()
    sizes = Sizes(options.repeats, options.seconds, 10.0, 12.0, 10.0, 6.0, (0.9, 1.1, 1.4))
    if options.quick:
        sizes = Sizes(1, 5.0, 3.0, 4.0, 4.0, 2.0, (0.9, 1.2))
    allow_many_streams()
    with (
        fake_engines(ENGINES, COST, SHAPE) as urls,
        gateway(urls, MAX_NUM_SEQS, LINE) as lined,
        gateway(urls, NO_LINE_SLOTS, LINE) as unlined,
    ):
        seen = uvloop.run(measure(lined, unlined, sizes))
    record = summary(seen, sizes, options.quick)
    print_record(record, options)


async def measure(lined: Gateway, unlined: Gateway, sizes: Sizes) -> Seen:
    """All arms, repeat by repeat."""
    say("how much do the full engines get through?")
    capacity_per_s = await keep_full(lined.url, DEMAND, ENGINES * MAX_NUM_SEQS, sizes.calibrate_s, seed=1)
    seen, overload_per_s = Seen(capacity_per_s), OVERLOAD * capacity_per_s
    say(f"{capacity_per_s:.1f} requests per second")
    await no_line(seen, unlined, overload_per_s, sizes)
    for repeat in range(sizes.repeats):
        seed = 1000 * (repeat + 1)
        for factor in sizes.sweep:
            rate_per_s = factor * capacity_per_s
            run = await offer(lined.url, DEMAND, rate_per_s, sizes.sweep_s, seed, lead_in_s=sizes.lead_in_s)
            note(seen, f"{factor:g}", run)
        # Which of the two comes first changes with the repeats.
        for arm in ("no_retries", "retries")[:: 1 if repeat % 2 == 0 else -1]:
            await overload(seen, lined, arm, overload_per_s, sizes, seed + 1)
    return seen


async def no_line(seen: Seen, unlined: Gateway, rate_per_s: float, sizes: Sizes) -> None:
    """The overload where everything is handed to the engines."""
    run = await offer(unlined.url, DEMAND, rate_per_s, sizes.no_line_s, seed=1, lead_in_s=sizes.lead_in_s)
    note(seen, "no_line", run)
    # What was left in the engines is taken back; that takes them a step.
    await asyncio.sleep(1.0)


async def overload(seen: Seen, lined: Gateway, arm: str, rate_per_s: float, sizes: Sizes, seed: int) -> None:
    """One overload, with an eye on the gateway."""
    used_s = cpu_s(lined.pid)
    with MemoryWatch(lined.pid).watching() as memory:
        run = await offer(
            lined.url,
            DEMAND,
            rate_per_s,
            sizes.overload_s,
            seed,
            lead_in_s=sizes.lead_in_s,
            retries=arm == "retries",
        )
    note(seen, arm, run)
    seen.memory_most_mib = max(seen.memory_most_mib, memory.most_mib)
    seen.memory_late_growth_mib = max(seen.memory_late_growth_mib, memory.late_growth_mib)
    share = (cpu_s(lined.pid) - used_s) / (sizes.lead_in_s + sizes.overload_s)
    seen.gateway_cpu_share = max(seen.gateway_cpu_share, share)


def note(seen: Seen, arm: str, run: Offered) -> None:
    """Count a run and tell of it."""
    seen.add(arm, run)
    say(
        f"{arm}: {len(run.users)} offered, {run.goodput_per_s(SLO):.1f}/s good, "
        f"{run.served_per_s():.1f}/s served, "
        f"{len(run.answers)} tries, lag p99 {run.lag_p99_s() * 1000:.0f} ms, broken {dict(run.broken)}"
    )


def summary(seen: Seen, sizes: Sizes, quick: bool) -> dict[str, Any]:
    """The record that is printed."""
    peak_per_s = max(mean(seen.goodputs_per_s[f"{factor:g}"]) for factor in sizes.sweep)
    ratios = {
        arm: [round(each / peak_per_s, 3) for each in seen.goodputs_per_s[arm]]
        for arm in ("no_retries", "retries", "no_line")
    }
    documented = documented_codes()
    undocumented = {code: n for code, n in seen.rejections.items() if code not in documented}
    held = (
        all(mean(ratios[arm]) >= TARGET_RATIO for arm in ("no_retries", "retries"))
        and not (undocumented or seen.without_retry_after or seen.broken)
        and seen.memory_late_growth_mib <= LATE_GROWTH_BOUND_MIB
    )
    return {
        "slo": {"ttft_s": SLO.ttft_s, "tpot_s": SLO.tpot_s},
        "capacity_per_s": round(seen.capacity_per_s, 1),
        "overload_per_s": round(OVERLOAD * seen.capacity_per_s, 1),
        "peak_goodput_per_s": round(peak_per_s, 1),
        "sweep_goodput_per_s": {
            f"{factor:g}": round(mean(seen.goodputs_per_s[f"{factor:g}"]), 1) for factor in sizes.sweep
        },
        "goodput_ratio": {arm: round(mean(each), 3) for arm, each in ratios.items()},
        "goodput_ratio_by_repeat": ratios,
        "target_ratio": TARGET_RATIO,
        "held": held,
        "served_per_s": {arm: round(mean(each), 1) for arm, each in seen.served_per_s.items()},
        "offered": dict(seen.offered),
        "tries": dict(seen.tries),
        "refusals": dict(seen.rejections),
        "rejections_undocumented": undocumented,
        "rejections_without_retry_after": seen.without_retry_after,
        "retry_after_most_s": seen.retry_after_most_s,
        "broken": dict(seen.broken),
        "gateway_memory_most_mib": round(seen.memory_most_mib, 1),
        "gateway_memory_late_growth_mib": round(seen.memory_late_growth_mib, 1),
        "gateway_cpu_share": round(seen.gateway_cpu_share, 2),
        "lag_p99_ms": round(max(seen.lag_p99_s) * 1000, 1),
        "void": max(seen.lag_p99_s) > LAG_BOUND_S,
        "repeats": sizes.repeats,
        "overload_s": sizes.overload_s,
        "quick": quick,
    }


def documented_codes() -> set[str]:
    """Status and code of every error that the reference tells of."""
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    return {f"{status} {code}" for code, status in rows}


if __name__ == "__main__":
    main()
