"""A measurement of a server under load, and its diagnosis."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
import orjson

from phasewise.api.call import admin_key_or_default, check_range, run
from phasewise.api.diagnose import Diagnosis, diagnosis_of
from phasewise.api.load_options import LoadArguments, LoadOptions, takes_load_options
from phasewise.api.targets import subject_of
from phasewise.benchmark.results import BenchReport, build_report
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.session import CacheState, RunSpec, measure
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


@takes_load_options()
def bench(
    url: str,
    *,
    cache: str = CacheState.COLD,
    warm_up: int | None = None,
    diagnose: bool = False,
    costs: str | Path | None = None,
    admin_key: str | None = None,
    model: str | None = None,
    api_key: str | None = None,
    timeout: float = 600.0,
    steps_url: str | None = None,
    **options: Unpack[LoadArguments],
) -> BenchResult:
    """Measure an engine or a gateway from the client's side: TTFT, TPOT, ITL, E2E, stalls and goodput.

    Works like `phasewise bench URL`, with the same options. Raises PhasewiseError.
    """
    check_range("--warm-up", warm_up, 0)
    address = origin(url)
    load = LoadOptions.of(options)
    spec = load.run_spec(
        load.source(),
        requests_or_default(load.requests, load.duration),
        cache=cache,
        model=model,
        api_key=api_key,
        timeout_s=timeout,
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
