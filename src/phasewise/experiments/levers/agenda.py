"""What is to be measured and how long it should take. Pure: known results are arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phasewise.core.errors import UsageError
from phasewise.experiments.levers.cases import RESTARTED
from phasewise.experiments.levers.catalogue import (
    LEVER_METRICS,
    STALLS,
    THROUGHPUT,
    TPOT,
    TTFT,
    Case,
    Row,
    Workload,
)
from phasewise.experiments.levers.results import Results
from phasewise.experiments.levers.workloads import ONE_STREAM
from phasewise.loadgen.statistics.comparison import Metric
from phasewise.loadgen.workload.arrivals import ClosedLoop
from phasewise.loadgen.workload.lengths import Lengths
from phasewise.loadgen.workload.presets import Shape
from phasewise.loadgen.workload.traces import Trace

ENGINE_START_S = 22.0
"""The start of an engine takes half as long again, but the next one starts beside it."""
BLOCK_OVERHEAD_S = 0.6
"""Per block: prompts are made and counted, and the engine's counters are read."""
OTHER_ARM = 1.15
"""A slower arm needs longer for the fewest requests than the base engine, and some pairs are void."""
TOKEN_S = 0.035
"""A step of a small model on one core, for a few streams; faster machines only finish sooner."""
PROMPT_TOKEN_S = 0.0007
"""A prompt token on the same machine."""
WRITTEN_PROMPT_TOKENS = 200
FIRST_LOG_PROBABILITIES_S = 50.0
"""The first request for log-probabilities compiles their kernel; later engines find it cached."""
TEXT_S = 8.0
"""Reading the held-out text for its perplexity on one engine."""
MOST_PROBES = 4
"""The number of different probes, depending on the lever."""
COUNTING_S = 25.0
"""A run of mixed traffic in which KV blocks are counted."""
MOST_REQUESTS = 576
"""The most per block, even on a fast machine: a multiple of every workload's step."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How thoroughly to measure.

    Blocks last about `block_s` where the machine is fast enough for the fewest requests. The noise floor has
    as many pairs as a row; it is measured for the first `most_floors` workloads, None for all. With
    `restarts` the base engine is also measured against a second process of the same.
    """

    name: str
    pairs: int
    block_s: float
    most_floors: int | None
    restarts: bool
    answer_prompts: int
    answer_tokens: int

    def block_requests(self, workload: Workload, request_s: float) -> int:
        """How many requests fill a block, if each adds this long to it."""
        steps = round(self.block_s / max(request_s, 1e-6) / workload.requests_step)
        return min(max(workload.least_requests, steps * workload.requests_step), MOST_REQUESTS)


WHOLE = Effort(
    "whole", pairs=5, block_s=2.5, most_floors=6, restarts=True, answer_prompts=12, answer_tokens=32
)
QUICK = Effort(
    "quick", pairs=4, block_s=1.5, most_floors=1, restarts=False, answer_prompts=4, answer_tokens=16
)


def chosen(cases: Sequence[Case], only: Sequence[str], effort: Effort) -> tuple[Case, ...]:
    """The cases of these levers, all if none is named; a quick run skips the second of similar ones."""
    known = {name for case in cases for name in (case.lever, case.name)}
    for name in only:
        if name not in known:
            levers = dict.fromkeys(case.lever for case in cases)
            raise UsageError(f"there is no lever {name!r}", hint=f"accepted: {', '.join(levers)}")
    quick = effort.name == QUICK.name
    named = [case for case in cases if not only or {case.lever, case.name} & {*only}]
    return tuple(
        replace(case, rows=tuple(row for row in case.rows if row.quick or not quick))
        for case in named
        if case.quick or only or not quick
    )


def measurable(cases: Sequence[Case], results: Results) -> tuple[Case, ...]:
    """The cases whose levers the engines here have."""
    return tuple(case for case in cases if case.runs_on(results.circumstances.device))


def metrics_of(row: Row) -> tuple[Metric, ...]:
    """The metrics by which a row is judged: each additional one would widen the intervals of all."""
    return _metrics(row.workload, stalls=STALLS in row.expected)


def metrics_of_floor(cases: Sequence[Case], workload: Workload) -> tuple[Metric, ...]:
    """The metrics of the noise floor: those of all rows with this workload."""
    rows = [row for case in cases for row in case.rows if row.workload == workload]
    return _metrics(workload, stalls=any(STALLS in row.expected for row in rows))


def _metrics(workload: Workload, *, stalls: bool) -> tuple[Metric, ...]:
    wanted = {TTFT, THROUGHPUT}
    if _output_of(workload).high_tokens > 1:
        # A single token has no time per further token, and no gaps.
        wanted |= {TPOT, STALLS} if stalls else {TPOT}
    return tuple(metric for metric in LEVER_METRICS if metric.name in wanted)


def _output_of(workload: Workload) -> Lengths:
    source = workload.plan.source
    if isinstance(source, Trace):
        raise TypeError("levers are tried with generated traffic, not with recorded traffic")
    return source.output


def steps_left(cases: Sequence[Case], effort: Effort, results: Results) -> int:
    """How many rows, noise floors and counts are left."""
    here = measurable(cases, results)
    counts = results.paging is None and any(case.by_counters for case in here)
    rows = sum(len(left_to_do(case, results)) for case in here)
    floors = len(controls_left(here, effort, results)) + restart_left(here, effort, results)
    return rows + floors + counts


def left_to_do(case: Case, results: Results) -> tuple[Row, ...]:
    """The rows of a case that are not measured yet."""
    return tuple(row for row in case.rows if case.key(row) not in results.rows)


def answers_left(case: Case, results: Results) -> bool:
    """Whether a case's answers must be read, or read again after a failure."""
    result = results.cases.get(case.engines_key)
    if result is None:
        return bool(case.rows)
    return result.outputs is not None and not result.outputs.has_price(quality=case.quality)


def controls_left(cases: Sequence[Case], effort: Effort, results: Results) -> tuple[Workload, ...]:
    """The workloads whose noise floor is not measured yet."""
    workloads = {row.workload.key: row.workload for case in cases for row in case.rows}
    asked = list(workloads.values())[: effort.most_floors]
    return tuple(workload for workload in asked if workload.key not in results.floors)


def restart_left(cases: Sequence[Case], effort: Effort, results: Results) -> bool:
    """Whether the base engine must still be measured against another process of the same."""
    return effort.restarts and RESTARTED not in results.floors and any(case.rows for case in cases)


def floor_reason(key: str) -> str:
    """The results key under which the reason for an unmeasured noise floor is stored."""
    return f"floor/{key}"


def seconds_of_row(effort: Effort, workload: Workload) -> float:
    """About how long a row takes: a trial of each arm, then pairs of blocks."""
    return (2 * effort.pairs * OTHER_ARM + 2) * _block_s(effort, workload)


def seconds_of_floor(effort: Effort, workload: Workload) -> float:
    """About how long it takes to measure the base engine against itself."""
    return (2 * effort.pairs + 1) * _block_s(effort, workload)


def _block_s(effort: Effort, workload: Workload) -> float:
    source, streams = workload.plan.source, 1
    if isinstance(workload.load, ClosedLoop):
        streams = workload.load.concurrency
    prompt_tokens = source.prompt.median_tokens if isinstance(source, Shape) else WRITTEN_PROMPT_TOKENS
    request_s = prompt_tokens * PROMPT_TOKEN_S + _output_of(workload).median_tokens * TOKEN_S / streams
    return max(effort.block_s, workload.least_requests * request_s) + BLOCK_OVERHEAD_S


def seconds_left(cases: Sequence[Case], effort: Effort, results: Results) -> float:
    """About how long everything that is left takes."""
    here = measurable(cases, results)
    rows = [row for case in here for row in left_to_do(case, results)]
    pending = [case for case in here if left_to_do(case, results) or answers_left(case, results)]
    engines = {spec.name for case in pending for spec in (case.off, case.on)}
    counts = results.paging is None and any(case.by_counters for case in here)
    return (
        sum(seconds_of_row(effort, row.workload) for row in rows)
        + sum(seconds_of_floor(effort, workload) for workload in controls_left(here, effort, results))
        # One complete block also warms up each new engine.
        + len(engines) * (ENGINE_START_S + effort.block_s)
        + _reading_s([case for case in pending if answers_left(case, results)], effort)
        + (ENGINE_START_S + seconds_of_row(effort, ONE_STREAM)) * restart_left(here, effort, results)
        + COUNTING_S * counts
    )


def _reading_s(cases: Sequence[Case], effort: Effort) -> float:
    """About how long reading answers and the held-out text takes."""
    if not cases:
        return 0.0
    answers_s = effort.answer_prompts * effort.answer_tokens * TOKEN_S
    # Once for a case's own engine; again on the base engine for each lever's own questions.
    readings = len(cases) + min(len({case.lever for case in cases}), MOST_PROBES)
    return readings * (answers_s + TEXT_S) + FIRST_LOG_PROBABILITIES_S
