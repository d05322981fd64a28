"""How well does the simulator predict what clients of real engines will see?

    python benchmarks/sim_fidelity.py [--repeats 3] [--calibrate 90] [--quick] [--json] [--record FILE]

Real engines with the demo model, a core each, in four arrangements: one; one with small chunks; two; two
apart (prefill and decode, the KV of every prompt transferred). Each is calibrated as `phasewise engine
calibrate` does it, two engines while both run. Then come workloads that were not fitted: chat, RAG, code,
bursts, shared prefixes, sessions (the next turn follows the answer and a pause), clients that ask without a
pause. Rates are shares of what the arrangement carries by the simulator. Each workload is measured several
times with the same lengths, times and pauses, forced output lengths and new words. The simulator gets the
same requests at the same times, the calibrated costs and the gateway's own scheduling.

Figures per workload: ITL (mean gap), TTFT p50 and p90 over all turns, the median conversation's time, and
tokens per second where clients wait for their answers. `error` is of the prediction against the median of
the repeats, `repeat` how far one repeat is from the others, `excess` = error / max(target, 1.3 x repeat).
Targets: ITL and tokens 8%, TTFT p50 and conversations 12%, TTFT p90 20%. 80% intervals come from runs with
costs drawn from the calibration; `coverage` is the share of single repeats within them, `width` the median
of their upper over their lower end. `refused` are workloads called saturated, which get no TTFT; below 80%
of what the fleet carries (`load`) there should be none.

The last line is one JSON object. `--quick` runs a few requests on fake engines, to show that it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from fidelity import simulated
from fidelity.figures import TARGETS, error, figures_of, measured_answers, repeat_error
from fidelity.simulated import CalibratedEngine
from fidelity.workloads import ARRANGEMENTS, Arrangement, Workload, shortened
from kv_transfers.fakes import fake_engines
from kv_transfers.fleets import Engines, Layout, gateway_with, real_engines
from kv_transfers.load import until_idle
from script import command_line, say, use_home

from phasewise.benchmark.calibrate.calibrate import CalibrateSpec, calibrate
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.session import RunSpec, measure
from phasewise.benchmark.workload.plan import PlanSpec, make_plan
from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.host import read_cpu_times, stolen_share
from phasewise.clients.http_client import HttpClient
from phasewise.core.statistics import Interval, quantile
from phasewise.core.worker import Role
from phasewise.simulator.requests import EngineShape

SEED = 20261118
CONFIDENCE = 0.8
DRAWS = 20
REPEATS_ALLOWED = 1.3
GATEWAY: dict[Layout, dict[str, Any]] = {
    Layout.MIXED: {},
    Layout.DISAGGREGATED: {"kv_transfer": {"when": "always"}},
}
BUSY = 0.8


@dataclass(frozen=True)
class Measured:
    """The runs of one workload, and the engines that served them."""

    arrangement: str
    workload: Workload
    engines: tuple[CalibratedEngine, ...]
    runs: tuple[BenchRun, ...]


@dataclass(frozen=True)
class Compared:
    """One figure of one workload: predicted, with its interval, and measured several times."""

    name: str
    predicted: float
    interval: Interval
    repeats: tuple[float, ...]

    @property
    def error(self) -> float:
        """Of the prediction."""
        return error(self.predicted, median(self.repeats))

    @property
    def excess(self) -> float:
        """The error in units of what is allowed."""
        return self.error / max(TARGETS[self.name], REPEATS_ALLOWED * repeat_error(self.repeats))


def main() -> None:
    """Measure, simulate, and print one JSON object."""
    options = parser().parse_args()
    use_home()
    before = read_cpu_times()
    chosen = (
        [shortened(it) for it in ARRANGEMENTS if it.pools[0]["replicas"] == 2]
        if options.quick
        else ARRANGEMENTS
    )
    repeats, budget_s = (2, 5.0) if options.quick else (options.repeats, options.calibrate)
    found: list[Measured] = []
    for arrangement in chosen:
        found += measured(arrangement, repeats, budget_s, quick=options.quick)
    after = read_cpu_times()
    result = judged(found)
    result["stolen_share"] = round(stolen_share(before, after), 4) if before and after else None
    result |= {
        "quick": options.quick,
        "python": platform.python_version(),
        "build": " ".join(platform.python_build()),
    }
    if options.record is not None:
        options.record.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    options = command_line(__doc__, quick="short workloads on fake engines")
    options.add_argument("--repeats", type=int, default=3, help="how often every workload is measured")
    options.add_argument("--calibrate", type=float, default=90.0, help="seconds for each calibration")
    options.add_argument("--record", type=Path, help="keep the result in a file too")
    return options


# --- Measuring.


def measured(arrangement: Arrangement, repeats: int, budget_s: float, *, quick: bool) -> list[Measured]:
    """Start the engines, calibrate them, and run every workload several times, one after the other."""
    say(f"{arrangement.name}: starting, then {budget_s:.0f} s of calibration")
    with started(arrangement, quick=quick) as engines:
        calibrated = asyncio.run(calibrated_engines(arrangement, engines, budget_s))
        specs = {it.name: spec_of(it, calibrated) for it in arrangement.workloads}
        runs: dict[str, list[BenchRun]] = {it.name: [] for it in arrangement.workloads}
        for number in range(repeats):
            for workload in arrangement.workloads:
                with gateway_with(engines, GATEWAY[arrangement.layout]) as url:
                    runs[workload.name].append(asyncio.run(ran(url, specs[workload.name], engines)))
                say(f"{arrangement.name}, {workload.name}: {number + 1} of {repeats}")
    return [Measured(arrangement.name, it, calibrated, tuple(runs[it.name])) for it in arrangement.workloads]


@contextmanager
def started(arrangement: Arrangement, *, quick: bool) -> Iterator[Engines]:
    """The engines of an arrangement."""
    if quick:
        with fake_engines(arrangement.layout) as engines:
            yield engines
    else:
        with real_engines(arrangement.layout, list(arrangement.pools)) as engines:
            yield engines


def spec_of(workload: Workload, engines: Sequence[CalibratedEngine]) -> PlanSpec:
    """The workload at a rate that is its share of what these engines carry."""
    nominal = workload.spec(1.0)
    if workload.load is None:
        return nominal
    traffic = simulated.traffic_of(make_plan(nominal, Random(SEED)))
    return workload.spec(workload.load * simulated.carried(engines, traffic))


async def ran(url: str, spec: PlanSpec, engines: Engines) -> BenchRun:
    """One run, from idle to idle."""
    run = await measure(url, RunSpec(spec, SEED))
    await until_idle(engines.urls)
    return run


async def calibrated_engines(
    arrangement: Arrangement, engines: Engines, budget_s: float
) -> tuple[CalibratedEngine, ...]:
    """All engines at the same time, so that each has the neighbours that it will have."""
    specs = [
        CalibrateSpec(budget_s, steps_url=engines.steps_urls.get(str(it["name"]))) for it in engines.workers
    ]
    calibrations = await asyncio.gather(
        *(calibrate(url, spec) for url, spec in zip(engines.urls, specs, strict=True))
    )
    found = []
    for worker, calibration in zip(engines.workers, calibrations, strict=True):
        shape = await engine_shape(str(worker["url"]), arrangement)
        role = Role(worker.get("role", "mixed"))
        found.append(CalibratedEngine(str(worker["name"]), role, shape, calibration.fit))
    return tuple(found)


async def engine_shape(url: str, arrangement: Arrangement) -> EngineShape:
    """The sizes that an engine reports, and those that it was started with."""
    client = HttpClient(url)
    try:
        metrics = await fetch_metrics(client)
    finally:
        client.close()
    default, levers = EngineShape(), arrangement.pools[0]["levers"]
    block_tokens = metrics.block_tokens or default.block_size
    return EngineShape(
        max_num_seqs=levers["max_num_seqs"],
        max_num_batched_tokens=levers["max_num_batched_tokens"],
        block_size=block_tokens,
        total_blocks=(metrics.kv_tokens or default.total_blocks * default.block_size) // block_tokens,
    )


# --- Judging.


def judged(found: Sequence[Measured]) -> dict[str, Any]:
    """Every workload simulated and compared, and the figures over all of them."""
    rows, compared, refused_below = [], [], 0
    for each in found:
        row, figures = compare(each)
        rows.append(row)
        compared += figures
        refused_below += row["refused"] and row["load"] < BUSY
        say(json.dumps(row))
    excesses = [it.excess for it in compared]
    within = [it.interval.low <= value <= it.interval.high for it in compared for value in it.repeats]
    below = sum(it["load"] < BUSY for it in rows)
    return {
        "workloads": len(found),
        "figures": len(compared),
        "median_error": rounded(median(it.error for it in compared)),
        "worst_error": rounded(max(it.error for it in compared)),
        "aa_error": rounded(median(repeat_error(it.repeats) for it in compared)),
        "excess_median": rounded(median(excesses)),
        "excess_worst": rounded(max(excesses)),
        "coverage": rounded(sum(within) / len(within)),
        "width": rounded(median(it.interval.high / it.interval.low for it in compared)),
        "refused_below_80": rounded(refused_below / below) if below else None,
        "by_figure": {name: by_figure([it for it in compared if it.name == name]) for name in TARGETS},
        "rows": rows,
    }


def by_figure(compared: Sequence[Compared]) -> dict[str, Any] | None:
    """The errors of one figure over all workloads."""
    if not compared:
        return None
    return {
        "median_error": rounded(median(it.error for it in compared)),
        "worst_error": rounded(max(it.error for it in compared)),
        "repeat": rounded(median(repeat_error(it.repeats) for it in compared)),
    }


def compare(each: Measured) -> tuple[dict[str, Any], list[Compared]]:
    """One workload: as a row of the result, and its figures."""
    engines, workload = each.engines, each.workload
    traffic = simulated.traffic_of(each.runs[0].plan, each.runs[0].timelines)
    kind = {"conversations": workload.conversations is not None, "closed": workload.load is None}
    repeats = [figures_of(measured_answers(it.plan, it.timelines), **kind) for it in each.runs]
    answers, saturated = simulated.answers(engines, simulated.fitted(engines), traffic)
    predicted = figures_of(answers, **kind)
    draws = [
        figures_of(simulated.answers(engines, simulated.drawn(engines, number), traffic)[0], **kind)
        for number in range(DRAWS)
    ]
    compared = []
    for name, value in predicted.items():
        if saturated and name.startswith("ttft"):
            continue
        spread = [value, *(it[name] for it in draws)]
        outside = (1 - CONFIDENCE) / 2
        interval = Interval(quantile(spread, outside), quantile(spread, 1 - outside), CONFIDENCE)
        compared.append(Compared(name, value, interval, tuple(it[name] for it in repeats)))
    load = None if workload.load is None else 1 / simulated.carried(engines, traffic)
    row = {
        "arrangement": each.arrangement,
        "workload": workload.name,
        "requests": traffic.requests,
        "load": 0.0 if load is None else rounded(load),
        "refused": saturated,
        **{it.name: figure_row(it) for it in compared},
    }
    return row, compared


def figure_row(compared: Compared) -> dict[str, Any]:
    """One figure as JSON: times in seconds."""
    return {
        "predicted": rounded(compared.predicted),
        "interval": [rounded(compared.interval.low), rounded(compared.interval.high)],
        "measured": [rounded(it) for it in compared.repeats],
        "error": rounded(compared.error),
        "excess": rounded(compared.excess),
    }


def rounded(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main()
