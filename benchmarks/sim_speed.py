"""How many requests the simulator serves per second of one core, and what 10,000 engines take.

    python benchmarks/sim_speed.py [--trace FILE] [--quick] [--json]

The gateway's own flow and placement by prefix run in virtual time before engines with the modelled step times
of an 8B model on an H100. The trace (Mooncake's conversations, 12,031 requests with shared prefixes) comes
from ../shared/data unless --trace says otherwise. `mooncake_16`: all of it on 16 engines. `cell_250`: its
requests 250/16 times as fast on 250 engines. Both are requests per second of this process's CPU time, the
best of three runs: others on the machine only ever take time away. `cells_10000_minutes`: the processor
minutes of 40 cells of 250 engines, 60 s of virtual time each, one after the other; each cell begins with
another part of the trace. `peak_mib` is the most memory that the process ever had. The last line is one JSON
object. It ends with 1 where a run is not the same to the bit as the one before it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from script import command_line, interpreter, print_record, say

from phasewise.benchmark.workload.arrivals import Replay
from phasewise.benchmark.workload.traces import Trace, TracedRequest, read_trace
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.fleet.config import FleetConfig
from phasewise.fleet.config.fleet import Pool
from phasewise.planning.fleet_plan import EngineFigures, fleet_plan, modelled_engine, traffic_of
from phasewise.simulator.fleet import FleetScenario, SimulatedFleet
from phasewise.simulator.traffic import Session, SimulatedTraffic

MODELS = Path(__file__).resolve().parent.parent / "examples" / "models"
MODEL_8B = json.loads((MODELS / "llama-3-8b.json").read_text())
TRACE = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "mooncake_conversation.jsonl"
FEW, CELL, CELLS = 16, 250, 40
CELL_S = 60.0
RUNS = 3
BLOCK_TOKENS = 512
"""As the trace names them."""


def main() -> None:
    """Run and print."""
    parser = command_line(__doc__, quick="few requests: proves that it runs")
    parser.add_argument("--trace", type=Path, default=TRACE, help="a Mooncake JSONL or an Azure CSV")
    options = parser.parse_args()
    if options.trace.exists():
        trace = read_trace(options.trace)
    elif options.quick:
        trace = made_up()
    else:
        sys.exit(f"{options.trace} is not there: give --trace FILE")
    engine = h100()
    limit = 300 if options.quick else len(trace.requests)
    runs, cells = (2, 1) if options.quick else (RUNS, CELLS)
    record: dict[str, Any] = {"requests": limit, "quick": options.quick}
    record["mooncake_16"], same_few = best(FEW, traffic(trace, limit, 1.0), engine, runs)
    record["cell_250"], same_cell = best(CELL, traffic(trace, limit, CELL / FEW), engine, runs)
    record |= all_cells(trace, engine, cells, 5.0 if options.quick else CELL_S)
    record["same_to_the_bit"] = same_few and same_cell
    record["peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    record["python"] = interpreter()
    print_record(record, options)
    if not record["same_to_the_bit"]:
        sys.exit("two runs with the same seed differ")


def made_up() -> Trace:
    """A few requests, to show that it runs where no trace is."""
    requests = (
        TracedRequest(number * 0.3, 5_000, 300, (0, 1, *range(9 * number + 2, 9 * number + 9)))
        for number in range(300)
    )
    return Trace("made up", tuple(requests))


def h100() -> EngineFigures:
    """An 8B model on one H100, by data sheets."""
    deployment = Deployment(architecture_of(MODEL_8B), ACCELERATORS["H100"])
    return modelled_engine(deployment, 131_072, 25e9)


def traffic(trace: Trace, limit: int, speed: float) -> SimulatedTraffic:
    """The trace's first requests, faster."""
    return traffic_of(trace, Replay(speed), limit, None, None, 1)


def plan_of(engines: int, engine: EngineFigures) -> FleetScenario:
    """Engines that are alike behind one gateway."""
    # A fleet file has at most 64 engines in a pool.
    pools = [
        Pool(name=f"part-{number}", replicas=min(64, engines - number * 64))
        for number in range(-(-engines // 64))
    ]
    return fleet_plan(FleetConfig(pools=tuple(pools)), engine, block_tokens=BLOCK_TOKENS)


def best(engines: int, load: SimulatedTraffic, engine: EngineFigures, runs: int) -> tuple[float, bool]:
    """Requests per second of CPU time, and whether all runs were the same."""
    speeds, results = [], []
    for _ in range(runs):
        began_s = time.process_time()
        fleet = SimulatedFleet(plan_of(engines, engine))
        served = fleet.run(load)
        speeds.append(len(served) / (time.process_time() - began_s))
        results.append([(it.first_s, it.last_s) for it in served])
        answered = sum(it.answered for it in served)
        say(f"{engines} engines: {speeds[-1]:,.0f} requests/s, {answered:,} of {len(served):,} answered")
    return round(max(speeds), 1), all(it == results[0] for it in results)


def all_cells(trace: Trace, engine: EngineFigures, cells: int, seconds: float) -> dict[str, Any]:
    """One cell after the other, each with its own part of the trace."""
    sessions = traffic(trace, len(trace.requests), CELL / FEW).sessions
    began_s, requests = time.process_time(), 0
    for cell in range(cells):
        fleet = SimulatedFleet(plan_of(CELL, engine), seed=cell)
        fleet.run(part(sessions, cell, cells, seconds), until_s=seconds)
        requests += len(fleet.requests)
        if cell % 10 == 0:
            say(f"cell {cell + 1} of {cells}: {requests:,} requests so far")
    minutes = (time.process_time() - began_s) / 60
    return {
        "cells": cells,
        "cells_engines": cells * CELL,
        "cells_virtual_s": seconds,
        "cells_requests": requests,
        "cells_10000_minutes": round(minutes, 2),
    }


def part(sessions: Sequence[Session], cell: int, cells: int, seconds: float) -> SimulatedTraffic:
    """The sessions of so many seconds, beginning somewhere else in each cell."""
    ends_s = sessions[-1].at_s
    begins_s = cell * max(0.0, ends_s - seconds) / max(1, cells)
    return SimulatedTraffic(
        [Session(it.at_s - begins_s, it.turns) for it in sessions if begins_s <= it.at_s < begins_s + seconds]
    )


if __name__ == "__main__":
    main()
