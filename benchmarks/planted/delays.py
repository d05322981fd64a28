"""Known delays before the engine: do they show as residual, and only there?"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from random import Random
from statistics import median

from phasewise.clients.http_client import HttpClient
from phasewise.clients.step_feed import StepFeed
from phasewise.core.latency import TtftBreakdown, ttft_breakdown
from phasewise.core.step_log import StepLog
from phasewise.diagnosis.analysis.attribution import attribute
from phasewise.loadgen.generator import LoadGenerator
from phasewise.loadgen.target import find_target, fit_prompts
from phasewise.loadgen.workload.arrivals import ClosedLoop
from phasewise.loadgen.workload.lengths import Lengths
from phasewise.loadgen.workload.plan import PlanSpec, make_plan
from phasewise.loadgen.workload.presets import Shape

from .fleet import CommandFailed, Engine, wait_for
from .processes import running

FIRST_PORT = 19210
DELAYS_MS = (0, 0, 20, 50, 100)
"""The first arm is what the others are compared with; the second one, delayed no more, shows the noise."""
PROXY = Path(__file__).resolve().parent / "proxy.py"


async def plant_delays(engine: Engine, rounds: int, rng: Random) -> list[dict[str, float]]:
    """Send the same traffic through proxies that hold answers back, interleaved; who shows the delay?"""
    port = engine.url.rpartition(":")[2]
    routes = [f"{FIRST_PORT + index}:{port}:{delay}" for index, delay in enumerate(DELAYS_MS)]
    arms: list[list[TtftBreakdown]] = [[] for _ in DELAYS_MS]
    feed = StepFeed(engine.steps_url)
    with contextlib.closing(feed), running((sys.executable, str(PROXY), *routes)):
        wait_for(f"http://127.0.0.1:{FIRST_PORT}/health")
        for number in range(rounds + 1):
            for turn in range(len(arms)):
                index = (number + turn) % len(arms)  # no arm is always the first of a round
                found = await _one_request(f"http://127.0.0.1:{FIRST_PORT + index}", feed, rng)
                if number:  # the first round warms connections up
                    arms[index].append(found)
    return [_record(delay, arm, arms[0]) for delay, arm in list(zip(DELAYS_MS, arms, strict=True))[1:]]


async def _one_request(proxy: str, feed: StepFeed, rng: Random) -> TtftBreakdown:
    """One prompt of 120 tokens through a proxy; its breakdown with the step record's help."""
    client = HttpClient(proxy)
    target = await find_target(client)
    spec = PlanSpec(Shape("delay", Lengths.fixed(120), Lengths.fixed(4)), ClosedLoop(1), requests=1)
    plan = await fit_prompts(client, target, make_plan(spec, rng), rng)
    done = await LoadGenerator(client, target, plan, f"delay-{rng.getrandbits(60):x}").run()
    client.close()
    found = ttft_breakdown(attribute(done.timelines[0], StepLog((await feed.poll()).steps)))
    if found is None:
        raise CommandFailed(f"no answer through {proxy}")
    return found


def _record(delay_ms: int, arm: list[TtftBreakdown], undelayed: list[TtftBreakdown]) -> dict[str, float]:
    """What grew against the undelayed arm, round by round, at the median: residual and other parts."""
    pairs = list(zip(arm, undelayed, strict=True))
    unexplained_s = median(mine.unexplained_s - theirs.unexplained_s for mine, theirs in pairs)
    elsewhere_s = median(
        (mine.ttft_s - mine.unexplained_s) - (theirs.ttft_s - theirs.unexplained_s) for mine, theirs in pairs
    )
    return {
        "planted_ms": float(delay_ms),
        "unexplained_ms": round(unexplained_s * 1000, 1),
        "elsewhere_ms": round(elsewhere_s * 1000, 1),
    }
