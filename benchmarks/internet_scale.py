"""Thousands of engines, simulated: what stays flat, what grows, what breaks first?

    python benchmarks/internet_scale.py [--only PART,PART] [--gateways N,N] [--ways WAY,WAY]
        [--engines N] [--capacity C] [--quick] [--json]

The gateway's own scheduling runs in virtual time in front of engines with the modelled step times of a 70B
model on four H100s.
Traffic: 200 tenants, the largest a hundred times the size of a middle one, three system prompts each;
conversations of four turns, each turn about a second after the answer before. All loads are shares of the
`capacity`: the conversations per second and engine at which a single gateway that sees everything answers 95%
of requests within the objectives, found on 32 engines. Figures are of requests that arrive in a window after
the caches have filled. Parts:

`gateways`: 256 engines behind 1 to 64 gateways at 80% load. `alone` gateways get requests by chance and know
only their own; with `homes` they have a secret in common; `conversation`, `tenant` and `prefix` are what a
load balancer hashes in front of gateways that are alone; with `redis` they exchange load and prefixes as real
ones. Each gateway chooses among equal engines by an order of its own. `imbalance` is the largest by the mean
number of requests on an engine, `gateway_imbalance` that of requests per gateway.
`loads`: 16 gateways at 50%, 95% and 110%.
`cells`: the engines as eight cells that know nothing of each other; what chooses the cell?
`losses`: one of four gateways, one of eight cells, 5% of the engines of a cell.
`exchange`: processor time, messages and bytes per second of gateways that share a Redis, on this machine.
`decisions`: processor time of a placement, memory of the prefix index, series in /metrics, on this machine.

Each part prints its rows when it is done. The last line is one JSON object.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, cycle
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from affinity_cells import with_redis
from script import command_line, interpreter, say

from phasewise.core.request import Endpoint, GenerationRequest
from phasewise.core.slo import Slo
from phasewise.core.statistics import quantile
from phasewise.costs.fit.step import StepSeconds
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.gateway.processes.replicas import SENDER_BYTES, OtherReplicas
from phasewise.gateway.records.metrics import PrometheusMetrics
from phasewise.planning.figures import is_within
from phasewise.planning.fleet_plan import modelled_engine
from phasewise.scheduling.ledger import Neighbours
from phasewise.scheduling.prefix_index import MOST_BLOCKS, PrefixIndex
from phasewise.simulator.fleet import (
    HASHED_BLOCK_TOKENS,
    MODEL,
    SPREAD_BY,
    EngineOutage,
    EnginePool,
    FleetScenario,
    SimulatedFleet,
)
from phasewise.simulator.gateway import SimulatedRequest
from phasewise.simulator.requests import EngineShape
from phasewise.simulator.timelines import timeline_of
from phasewise.simulator.traffic import Content, Session, SimulatedTraffic, conversation

MODELS = Path(__file__).resolve().parent.parent / "examples" / "models"
MODEL_70B = json.loads((MODELS / "llama-3-70b.json").read_text())
TENANTS, SYSTEM_PROMPTS, TURNS, THINK_S = 200, 3, 4, 1.0
SEED = 1
TRIED = 32
"""Engines on which the capacity is found."""
ENOUGH = 0.95
"""Of requests within their objectives: a fleet at its capacity answers so many."""


@dataclass(frozen=True, slots=True)
class Case:
    """Engines that are alike, what is asked of them, and how fast answers have to be."""

    cost: StepSeconds
    shape: EngineShape
    slo: Slo
    system_tokens: int
    first_tokens: tuple[int, int]
    later_tokens: tuple[int, int]
    output_tokens: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Size:
    """How large the fleets are and how long they run. Figures are of requests that arrive in `window_s`."""

    engines: int
    gateways: tuple[int, ...]
    until_s: float
    window_s: tuple[float, float]
    quick: bool = False
    ways: tuple[str, ...] = ()
    """Only these of the part `gateways`."""
    capacity: float | None = None


FULL = Size(256, (4, 16, 64), 48.0, (20.0, 32.0))
QUICK = Size(16, (4,), 14.0, (3.0, 7.0), quick=True)


def sheet() -> Case:
    """A 70B model on four H100s, by data sheets; prompts as long as those of agents with tools."""
    deployment = Deployment(architecture_of(MODEL_70B), ACCELERATORS["H100"], 4)
    engine = modelled_engine(deployment, 131_072, 25e9)
    shape = EngineShape(
        engine.max_model_len, engine.max_num_seqs, engine.batch_tokens, 64, engine.kv_tokens // 64
    )
    return Case(engine.cost, shape, Slo(3.0, 0.1), 2_000, (4_000, 20_000), (200, 1_000), (40, 160))


# --- runs -------------------------------------------------------------------------------------------------


def traffic_of(case: Case, per_s: float, seconds: float, seed: int = SEED) -> SimulatedTraffic:
    """Conversations of tenants of all sizes."""
    rng, sessions, at_s = Random(seed), list[Session](), 0.0
    sizes = [*accumulate(1 / (1 + rank) for rank in range(TENANTS))]
    while (at_s := at_s + rng.expovariate(per_s)) < seconds:
        tenant = bisect(sizes, rng.random() * sizes[-1])
        system = Content(-1 - SYSTEM_PROMPTS * tenant - rng.randrange(SYSTEM_PROMPTS), case.system_tokens)
        turns = [(rng.randint(*case.first_tokens), rng.randint(*case.output_tokens), 0.0)]
        for _ in range(TURNS - 1):
            asked, answered = rng.randint(*case.later_tokens), rng.randint(*case.output_tokens)
            turns.append((asked, answered, rng.expovariate(1 / THINK_S)))
        made = conversation(at_s, 1 + len(sessions), turns, (system,))
        sessions.append(Session(at_s, tuple(replace(it, tenant=f"tenant-{tenant}") for it in made.turns)))
    return SimulatedTraffic(sessions)


def fleet_of(
    case: Case, engines: int, gateways: int = 1, way: str = "alone", failures: Sequence[EngineOutage] = ()
) -> SimulatedFleet:
    """Engines behind gateways that know of each other in some way, or behind a load balancer that hashes."""
    plan = FleetScenario(
        (EnginePool(engines, case.cost, case.shape),),
        gateways,
        failures=tuple(failures),
        spread_by=way if way in SPREAD_BY else None,
        homes=way == "homes",
    )
    fleet = with_redis(plan, SEED) if way == "redis" else SimulatedFleet(plan, SEED)
    workers = [it.worker for it in fleet.hosts.values()]
    for gateway in fleet.gateways:
        gateway.world.set_workers(Random(gateway.number).sample(workers, len(workers)))
    return fleet


def run(fleet: SimulatedFleet, case: Case, load: float, size: Size) -> dict[str, Any]:
    """The figures of one fleet."""
    spread: list[float] = []

    def look() -> None:
        counts = [len(it.engine.requests) for it in fleet.hosts.values()]
        spread.append(max(counts) / max(fmean(counts), 1e-9))

    for second in range(int(size.window_s[0]), int(size.window_s[1])):
        fleet.clock.at(float(second), look)
    per_s = load * capacity(case, size) * len(fleet.hosts)
    began_s = time.process_time()
    served = fleet.run(traffic_of(case, per_s, size.until_s), size.until_s)
    by_gateway = Counter(it.gateway for it in served)
    return {
        **seen(served, case.slo, *size.window_s),
        "imbalance": round(fmean(spread), 2),
        "gateway_imbalance": round(max(by_gateway.values()) * len(fleet.gateways) / len(served), 2),
        "cpu_us_per_request": round((time.process_time() - began_s) / len(served) * 1e6),
    }


def seen(served: Sequence[SimulatedRequest], slo: Slo, after_s: float, before_s: float) -> dict[str, Any]:
    """What clients of a time saw."""
    these = [it for it in served if after_s <= it.arrived_s < before_s]
    begun = [it for it in these if it.first_s is not None]
    return {
        "requests": len(these),
        "cached": round(sum(it.cached_tokens for it in begun) / sum(it.prompt_tokens for it in begun), 3),
        "ttft_p50_ms": round(quantile([it.ttft_s for it in begun], 0.5) * 1e3),
        "ttft_p99_ms": round(quantile([it.ttft_s for it in begun], 0.99) * 1e3),
        "attained": round(sum(is_within(it, slo) for it in these) / len(these), 3),
        "rejected": sum(it.rejected is not None for it in these),
    }


@cache
def capacity(case: Case, size: Size) -> float:
    """Conversations per second and engine."""
    if size.capacity is not None:
        return size.capacity

    def attained(per_s: float) -> float:
        load = traffic_of(case, per_s * TRIED, size.until_s)
        served = fleet_of(case, TRIED).run(load, size.until_s)
        return float(seen(served, case.slo, *size.window_s)["attained"])

    low, high = 0.0, 0.1
    while attained(high) >= ENOUGH:
        low, high = high, 2 * high
    for _ in range(4):
        middle = (low + high) / 2
        low, high = (middle, high) if attained(middle) >= ENOUGH else (low, middle)
    say(f"capacity: {low:.3f} conversations/s per engine")
    return low


# --- what is known where ----------------------------------------------------------------------------------

WAYS = ("alone", "homes", "conversation", "tenant", "prefix", "redis")
LARGEST = ("homes", "conversation", "prefix", "redis")


def gateways(case: Case, size: Size) -> list[dict[str, Any]]:
    """More and more gateways in front of the same engines."""
    chosen = [(1, "alone")] if not size.ways else []
    for count in size.gateways:
        ways = {4: ("alone", "conversation", "redis"), 16: WAYS}.get(count, LARGEST)
        chosen += [(count, way) for way in size.ways or ways]
    return [row(case, size, 0.8, *each) for each in chosen]


def loads(case: Case, size: Size) -> list[dict[str, Any]]:
    """The same at other loads."""
    ways = [(1, "alone"), *((16, way) for way in ("homes", "conversation", "redis"))]
    shares = (0.5,) if size.quick else (0.5, 0.95, 1.1)
    return [row(case, size, load, *way) for load in shares for way in ways]


def row(case: Case, size: Size, load: float, count: int, way: str) -> dict[str, Any]:
    """One line of a table."""
    found = run(fleet_of(case, size.engines, count, way), case, load, size)
    return shown({"load": load, "gateways": count, "way": way, **found})


def cells(case: Case, size: Size, count: int = 8) -> list[dict[str, Any]]:
    """What a load balancer chooses the cell by."""
    ways = ("alone", *SPREAD_BY)
    return [
        shown({"cells": count, "way": way, **run(_cells(case, size, count, way), case, 0.8, size)})
        for way in ways
    ]


def _cells(case: Case, size: Size, count: int, way: str) -> SimulatedFleet:
    """Each gateway has engines of its own: a cell is one that sees all of it."""
    fleet = fleet_of(case, size.engines, count, way)
    workers = [it.worker for it in fleet.hosts.values()]
    for number, gateway in enumerate(fleet.gateways):
        gateway.world.set_workers(workers[number::count])
    return fleet


# --- what is lost -----------------------------------------------------------------------------------------


def losses(case: Case, size: Size) -> list[dict[str, Any]]:
    """In the middle of a run."""
    at_s, rows = size.window_s[0], []
    for way in ("conversation", "homes", "redis"):
        rows.append(_after(fleet_of(case, size.engines, 4, way), case, 0.8, size, f"gateway of 4, {way}"))
    for load, way in ((0.6, "conversation"), (0.7, "conversation"), (0.8, "conversation"), (0.7, "prefix")):
        rows.append(_after(_cells(case, size, 8, way), case, load, size, f"cell of 8, {way}"))
    for load in (0.8, 0.9):
        dead = [EngineOutage(at_s, f"mixed-{number}") for number in range(0, size.engines, 20)]
        fleet = fleet_of(case, size.engines, failures=dead)
        rows.append(_after(fleet, case, load, size, f"{len(dead)} engines", loses_gateway=False))
    return rows


def _after(
    fleet: SimulatedFleet, case: Case, load: float, size: Size, lost: str, *, loses_gateway: bool = True
) -> dict[str, Any]:
    at_s, open_then = size.window_s[0], list[int]()

    def lose() -> None:
        held = [it.world.ledger.total_requests for it in fleet.gateways]
        open_then.append(held[0])
        del fleet.gateways[0]

    if loses_gateway:
        fleet.clock.at(at_s, lose)
    per_s = load * capacity(case, size) * len(fleet.hosts)
    served = fleet.run(traffic_of(case, per_s, size.until_s), size.until_s)
    half_s = (size.window_s[1] - at_s) / 2
    times = {"before": at_s - half_s, "at_once": at_s, "later": at_s + half_s}
    found = {name: seen(served, case.slo, since_s, since_s + half_s) for name, since_s in times.items()}
    return shown(
        {
            "lost": lost,
            "load": load,
            "streams_cut": sum(open_then),
            "streams_resumed": sum(any(it.resumes for it in each.attempts) for each in served),
            "streams_failed": sum(it.rejected is not None for it in served),
            **{
                f"{figure}_{name}": each[figure]
                for figure in ("attained", "cached", "ttft_p99_ms")
                for name, each in found.items()
            },
        }
    )


# --- what a gateway spends --------------------------------------------------------------------------------


def exchange(case: Case, size: Size) -> list[dict[str, Any]]:
    """Every sender has load on every engine; from one message to the next a tenth of it changes."""
    grid = [(4, 16)] if size.quick else [(4, 256), (16, 64), (16, 256), (64, 256), (64, 1024)]
    return [shown(_exchanged(case, senders, engines)) for senders, engines in grid]


def _exchanged(case: Case, senders: int, engines: int) -> dict[str, Any]:
    fleet, far = sharing_fleet(case, senders, engines)
    worlds, rounds = [it.world for it in fleet.gateways], []
    for every in (1, 10):
        book(fleet, every)
        rounds.append([it.message(world, 0.0) for it, world in zip(far, worlds, strict=True)][1:])
    first, world, messages = far[0], worlds[0], cycle(rounds)

    def hear_all() -> None:
        for message in next(messages):
            first.hear(message, world, 0.0)

    hear_us = least_us(hear_all) / (senders - 1)
    write_us = least_us(lambda: first.message(world, 0.0))
    per_s, message_bytes = senders / first.every_s, len(rounds[0][0])
    return {
        "senders": senders,
        "engines": engines,
        "every_ms": round(first.every_s * 1e3, 1),
        "hear_us": round(hear_us),
        "write_us": round(write_us),
        "message_bytes": message_bytes,
        "messages_per_s": round(per_s),
        "core_share_of_each": round((hear_us * (senders - 1) + write_us) / first.every_s / 1e6, 3),
        "redis_sends_mb_per_s": round(per_s * senders * message_bytes / 1e6, 1),
    }


def sharing_fleet(case: Case, senders: int, engines: int) -> tuple[SimulatedFleet, list[OtherReplicas]]:
    """Gateways that share a Redis. Each has work on all engines, and has heard all others."""
    far: list[OtherReplicas] = []

    def neighbours_of(_fleet: SimulatedFleet, number: int) -> Neighbours:
        far.append(OtherReplicas(bytes([number]) * SENDER_BYTES, b"key"))
        return far[-1]

    plan = FleetScenario((EnginePool(engines, case.cost, case.shape),), senders)
    fleet = SimulatedFleet(plan, SEED, neighbours_of)
    book(fleet)
    all_of = [*zip(far, (it.world for it in fleet.gateways), strict=True)]
    for _ in range(2):  # nobody knows the engines of others before its own first message
        for message in [others.message(world, 0.0) for others, world in all_of]:
            for others, world in all_of:
                others.hear(message, world, 0.0)
    return fleet, far


def book(fleet: SimulatedFleet, every: int = 1) -> None:
    """Another request of each gateway on every engine, or every so many."""
    rng = Random(SEED)
    for gateway in fleet.gateways:
        for host in [*fleet.hosts.values()][::every]:
            gateway.world.ledger.book(host.worker.ref, rng.randrange(1_000, 20_000), 300)


def decisions(case: Case, size: Size) -> list[dict[str, Any]]:
    """Of one gateway in front of so many engines."""
    counts = (16,) if size.quick else (16, 64, 256, 1024)
    return [shown(_spent(case, engines)) for engines in counts]


def _spent(case: Case, engines: int) -> dict[str, Any]:
    alone = fleet_of(case, engines)
    book(alone)
    sharing, _ = sharing_fleet(case, 4, engines)
    text = _metrics_of(alone, case)
    return {
        "engines": engines,
        "decision_us": round(_decision_us(alone)),
        "decision_with_redis_us": round(_decision_us(sharing)),
        "index_mib": round(_index_mib(alone)),
        "index_tokens_per_engine": MOST_BLOCKS * HASHED_BLOCK_TOKENS // engines,
        "kv_tokens_per_engine": case.shape.total_blocks * case.shape.block_size,
        "metrics_series": sum(not line.startswith(b"#") for line in text.splitlines()),
        "metrics_kib": round(len(text) / 1024),
    }


def _index_mib(fleet: SimulatedFleet) -> float:
    """Full, with prompts of a hundred blocks."""
    workers, rng = cycle(it.worker.ref for it in fleet.hosts.values()), Random(SEED)
    tracemalloc.start()
    index = PrefixIndex()
    for _ in range(2 * MOST_BLOCKS // 100):
        index.served(next(workers), [rng.getrandbits(62) for _ in range(100)], 11_100, 0)
    found, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    index.check_invariants()
    return found / 2**20


def _decision_us(fleet: SimulatedFleet) -> float:
    """A tenth of the engines hold the prompt, as they do after some time."""
    world = fleet.gateways[0].world
    hashes = tuple(range(90))
    for host in [*fleet.hosts.values()][::10]:
        world.prefixes.served(host.worker.ref, hashes, 10_000, 0)
    request = GenerationRequest(
        "r", Endpoint.CHAT, MODEL, 0.0, prompt_bytes=46_000, max_output_tokens=200, prefix_hashes=hashes
    )
    return least_us(
        lambda: world.policy(request, world.candidates(MODEL, 0.0), lambda _prefill, _decode: False)
    )


def _metrics_of(fleet: SimulatedFleet, case: Case) -> bytes:
    gateway = fleet.gateways[0]
    served = fleet_of(case, 2).run(traffic_of(case, 0.2, 20.0))
    metrics = PrometheusMetrics(gateway.world.cluster, gateway.world.ledger)
    for it in served:
        metrics.record(timeline_of(it))
    return metrics.text()


def least_us(work: Callable[[], object], seconds: float = 0.4) -> float:
    """The least of several repeats, in microseconds of processor time."""
    least_s, ends_s = float("inf"), time.process_time() + seconds
    while time.process_time() < ends_s:
        began_s = time.process_time()
        work()
        least_s = min(least_s, time.process_time() - began_s)
    return least_s * 1e6


PARTS: dict[str, Callable[[Case, Size], list[dict[str, Any]]]] = {
    "gateways": gateways,
    "loads": loads,
    "cells": cells,
    "losses": losses,
    "exchange": exchange,
    "decisions": decisions,
}


def main() -> None:
    """Run each part and print the record."""
    parser = command_line(__doc__, quick="few engines: proves that it runs")
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--gateways", help="numbers of gateways of the part of that name; default: 4,16,64")
    parser.add_argument("--ways", help="of the part `gateways`: some of alone, homes, conversation, ...")
    parser.add_argument("--capacity", type=float, help="that was found before")
    parser.add_argument("--engines", type=int, help="default: 256")
    options = parser.parse_args()
    only = options.only.split(",")
    if unknown := set(only) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    case, size = sheet(), QUICK if options.quick else FULL
    size = replace(
        size,
        engines=options.engines or size.engines,
        gateways=tuple(map(int, options.gateways.split(","))) if options.gateways else size.gateways,
        ways=tuple(options.ways.split(",")) if options.ways else (),
        capacity=options.capacity,
    )
    record: dict[str, Any] = {"simulated": True, "quick": options.quick}
    for name in only:
        began_s = time.process_time()
        record[name] = PARTS[name](case, size)
        record[f"{name}_minutes"] = round((time.process_time() - began_s) / 60, 2)
        if not options.json:
            print(json.dumps({name: record[name]}, indent=2), flush=True)
    if capacity.cache_info().currsize:
        record["capacity_per_engine_and_s"] = round(capacity(case, size), 4)
    record["python"] = interpreter()
    print(json.dumps(record))


def shown(found: dict[str, Any]) -> dict[str, Any]:
    """Progress: a line that is done."""
    say(json.dumps(found))
    return found


if __name__ == "__main__":
    main()
