"""Measurements under load: of one server with its diagnosis, and of two that are compared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
import orjson

from phasewise.api.call import admin_key_or_default, check_range, run
from phasewise.api.diagnose import Diagnosis, diagnosis_of
from phasewise.api.load_options import MeasurementArguments, MeasurementOptions, takes_load_options
from phasewise.api.targets import subject_of
from phasewise.benchmark.compare.arms import arms_of
from phasewise.benchmark.compare.compare import (
    CONTROL_PAIRS,
    MOST_PAIRS,
    compare_arms,
    plan_comparison,
    requests_in_block,
)
from phasewise.benchmark.compare.verdict import ComparisonResult
from phasewise.benchmark.results import BenchReport, build_report
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.session import RunSpec, measure
from phasewise.benchmark.statistics.comparison import FEWEST_PAIRS
from phasewise.benchmark.statistics.summary import Summary
from phasewise.clients.host import allow_many_streams
from phasewise.clients.http_client import origin
from phasewise.core.errors import UsageError
from phasewise.core.slo import Slo
from phasewise.costs.fit.step_fit import StepFit
from phasewise.diagnosis.diagnose import Known
from phasewise.diagnosis.gather.costs_file import load_fit
from phasewise.diagnosis.gather.own_run import concurrency_of, observed
from phasewise.diagnosis.gather.target import identify
from phasewise.diagnosis.verdict import verdict_record
from phasewise.report.bench.measured import load_in_words

DEFAULT_REQUESTS = 32

_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What a run measured: latencies in seconds, and all figures of it in `report`.

    `itl_s` are the gaps between chunks, pooled over all requests. `seed` repeats the run's arrival times,
    lengths and words. `load` is the load in words.
    """

    ttft_s: Summary
    tpot_s: Summary
    itl_s: Summary
    e2e_s: Summary
    report: BenchReport = field(repr=False)
    seed: int
    load: str
    diagnosis: Diagnosis | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same as `to_json`, as plain JSON types."""
        facts = {"seed": self.seed, "load": self.load} | self.report.to_dict()
        if self.diagnosis is not None:
            facts["diagnosis"] = verdict_record(self.diagnosis.details)
        return facts

    def to_json(self) -> str:
        """What `phasewise bench --json` prints."""
        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2).decode()


def bench_result(report: BenchReport, seed: int, load: str, diagnosis: Diagnosis | None) -> BenchResult:
    """The result of one run."""
    latencies = report.ttft_s, report.tpot_s, report.itl_pooled_s, report.e2e_s
    return BenchResult(*latencies, report, seed, load, diagnosis)


@takes_load_options(MeasurementOptions)
def bench(
    url: str,
    *,
    warm_up: int | None = None,
    diagnose: bool = False,
    costs: str | Path | None = None,
    admin_key: str | None = None,
    steps_url: str | None = None,
    **options: Unpack[MeasurementArguments],
) -> BenchResult:
    """Measure an engine or a gateway from the client's side: TTFT, TPOT, ITL, E2E, stalls and goodput.

    Works like `phasewise bench URL`, with the same options. Raises PhasewiseError.
    """
    check_range("--warm-up", warm_up, 0)
    address = origin(url)
    load = MeasurementOptions.of(options)
    spec = load.run_spec(
        load.source(),
        requests_or_default(load.requests, load.duration),
        admin_key=admin_key_or_default(admin_key, address),
        steps_url=steps_url,
    )
    check_warm_up(warm_up, spec.plan.requests)
    objective, fit = load.objectives(), None if costs is None else load_fit(Path(costs))
    allow_many_streams()

    async def measured() -> tuple[BenchRun, Diagnosis | None]:
        if not diagnose:
            return await measure(address, spec), None
        return await diagnosed(address, spec, objective, fit, lambda: measure(address, spec), lambda run: run)

    done, diagnosis = run(measured())
    report = build_report(done, objective, np.random.default_rng(spec.seed), warm_up)
    words = load_in_words(spec.plan.load, conversations=spec.plan.conversations is not None)
    return bench_result(report, spec.seed, words, diagnosis)


async def diagnosed(
    url: str,
    spec: RunSpec,
    slo: Slo,
    fit: StepFit | None,
    measuring: Callable[[], Awaitable[_R]],
    run_of: Callable[[_R], BenchRun | None],
) -> tuple[_R, Diagnosis | None]:
    """Measure while watching the target and its engines, then diagnose the run; None if there was none."""
    target = await identify(url, spec.admin_key, spec.steps_url)
    async with observed(target, spec.admin_key) as watch:
        measured = await measuring()
        measured_run = run_of(measured)
        if measured_run is None:
            return measured, None
        evidence = await watch.evidence(measured_run)
    known = Known(fit, concurrency=concurrency_of(spec))
    return measured, diagnosis_of(evidence, slo, known, subject_of(target))


def requests_or_default(requests: int | None, duration_s: float | None) -> int | None:
    """How many requests a run sends; without a number and a duration, the default."""
    return DEFAULT_REQUESTS if requests is None and duration_s is None else requests


def check_warm_up(warm_up: int | None, planned: int | None) -> None:
    """UsageError for a warm-up that leaves out every request."""
    if warm_up is not None and planned is not None and warm_up >= planned:
        raise UsageError(
            f"--warm-up {warm_up} leaves out all {planned} requests",
            hint="lower --warm-up or raise --requests",
        )


@takes_load_options(MeasurementOptions, without={"duration"})
def compare(
    a: str,
    b: str,
    *,
    pairs: int | None = None,
    max_pairs: int = MOST_PAIRS,
    control_pairs: int = CONTROL_PAIRS,
    margin: float = 0.05,
    alpha: float = 0.05,
    warm_up: int | None = None,
    **options: Unpack[MeasurementArguments],
) -> ComparisonResult:
    """Test whether B is better than A: send the same requests to both in turn, and judge each metric.

    Works like `phasewise compare A B`, with the same options. Raises PhasewiseError.
    """
    check_range("--pairs", pairs, FEWEST_PAIRS)
    check_range("--max-pairs", max_pairs, FEWEST_PAIRS)
    check_range("--control-pairs", control_pairs, 0)
    check_range("--warm-up", warm_up, 0)
    load = MeasurementOptions.of(options, FEWEST_PAIRS)
    source = load.source()
    spec = load.run_spec(
        source,
        requests_in_block(source, load.requests),
    )
    plan = plan_comparison(
        spec,
        load.objectives(),
        warm_up=warm_up,
        alpha=alpha,
        margin=margin,
        control_pairs=control_pairs,
        pairs=pairs,
        max_pairs=max_pairs,
    )
    allow_many_streams()
    return run(compare_arms(*arms_of(a, b), plan, _measure))


async def _measure(url: str, spec: RunSpec, _label: str) -> BenchRun:
    return await measure(url, spec)
