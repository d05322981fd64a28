"""What is to be measured and how long it should take. Pure: what is known already is handed in.

Measuring it is procedure.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phasewise.bench.comparison import Metric
from phasewise.errors import ConfigError
from phasewise.levers.cases import RESTARTED
from phasewise.levers.catalogue import LEVER_METRICS, STALLS, THROUGHPUT, TPOT, TTFT, Case, Row, Workload
from phasewise.levers.results import Results
from phasewise.levers.workloads import ONE_STREAM
from phasewise.workload.arrivals import ClosedLoop
from phasewise.workload.lengths import Lengths
from phasewise.workload.presets import Shape
from phasewise.workload.traces import Trace

ENGINE_START_S = 22.0
"""One takes half as long again, but the next one starts beside it."""
BLOCK_OVERHEAD_S = 0.6
"""Prompts are made and counted before each block, and the engine is asked for its counters."""
OTHER_ARM = 1.15
"""The fewest requests may take a slower arm longer than the base engine, and some pairs are void."""
TOKEN_S = 0.035
"""A step of a small model on one core, for one stream or a few; faster machines only end sooner."""
PROMPT_TOKEN_S = 0.0007
"""A token of a prompt, there."""
WRITTEN_PROMPT_TOKENS = 200
FIRST_LOG_PROBABILITIES_S = 50.0
"""The first engine that is asked for log-probabilities compiles what counts them; the others find it made."""
TEXT_S = 8.0
"""An engine reads the held-out text for its perplexity."""
MOST_PROBES = 4
"""In so many ways questions are asked, depending on the lever."""
COUNTING_S = 25.0
"""A run of mixed traffic in which blocks of KV are counted."""
MOST_REQUESTS = 576
"""In a block, however fast the machine is: a multiple of every workload's step."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How thoroughly to measure.

    Blocks last about `block_s` where the machine is fast enough for the fewest requests. The noise floor has
    as many pairs as a row; it is measured for the first `most_floors` workloads, None for all. `restarts`
    says that the base engine is also measured against a second process of the same.
    """

    name: str
    pairs: int
    block_s: float
    most_floors: int | None
    restarts: bool
    answer_prompts: int
    answer_tokens: int

    def block_requests(self, workload: Workload, request_s: float) -> int:
        """How many requests fill a block, when each adds so long to it."""
        steps = round(self.block_s / max(request_s, 1e-6) / workload.requests_step)
        return min(max(workload.least_requests, steps * workload.requests_step), MOST_REQUESTS)


WHOLE = Effort(
    "whole", pairs=5, block_s=2.5, most_floors=6, restarts=True, answer_prompts=12, answer_tokens=32
)
QUICK = Effort(
    "quick", pairs=4, block_s=1.5, most_floors=1, restarts=False, answer_prompts=4, answer_tokens=16
)


def chosen(cases: Sequence[Case], only: Sequence[str], effort: Effort) -> tuple[Case, ...]:
    """The cases of these levers, all without any; a quick run leaves the second of similar ones out."""
    known = {name for case in cases for name in (case.lever, case.name)}
    for name in only:
        if name not in known:
            levers = dict.fromkeys(case.lever for case in cases)
            raise ConfigError(f"there is no lever {name!r}", hint=f"accepted: {', '.join(levers)}")
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
    """The figures that a row is judged by: every further one would widen the intervals of all."""
    return _metrics(row.workload, stalls=STALLS in row.expected)


def metrics_of_floor(cases: Sequence[Case], workload: Workload) -> tuple[Metric, ...]:
    """The figures of the noise floor: those of all rows with this workload."""
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
        raise TypeError("levers are tried with traffic that is made, not recorded")
    return source.output


def steps_left(cases: Sequence[Case], effort: Effort, results: Results) -> int:
    """How many rows, noise floors and counts are still to be taken."""
    here = measurable(cases, results)
    counts = results.paging is None and any(case.by_counters for case in here)
    rows = sum(len(left_to_do(case, results)) for case in here)
    floors = len(controls_left(here, effort, results)) + restart_left(here, effort, results)
    return rows + floors + counts


def left_to_do(case: Case, results: Results) -> tuple[Row, ...]:
    """The rows of a case that were not measured yet."""
    return tuple(row for row in case.rows if case.key(row) not in results.rows)


def answers_left(case: Case, results: Results) -> bool:
    """Whether a case's answers are still to be read, or to be tried again after they could not be."""
    known = results.cases.get(case.engines_key)
    if known is None:
        return bool(case.rows)
    return known.outputs is not None and not known.outputs.has_price(quality=case.quality)


def controls_left(cases: Sequence[Case], effort: Effort, results: Results) -> tuple[Workload, ...]:
    """The workloads for which the noise floor is still to be measured."""
    workloads = {row.workload.key: row.workload for case in cases for row in case.rows}
    asked = list(workloads.values())[: effort.most_floors]
    return tuple(workload for workload in asked if workload.key not in results.floors)


def restart_left(cases: Sequence[Case], effort: Effort, results: Results) -> bool:
    """Whether the base engine is still to be measured against another process of the same."""
    return effort.restarts and RESTARTED not in results.floors and any(case.rows for case in cases)


def floor_reason(key: str) -> str:
    """Under which key results say why this noise floor was not measured."""
    return f"floor/{key}"


def seconds_of_row(effort: Effort, workload: Workload) -> float:
    """About how long a row takes: a trial of either arm, then pairs of blocks."""
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
        # An engine that is new is also warmed by one whole block.
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
    # Once for the engine that a case has of its own; the base engine again for each lever's own questions.
    readings = len(cases) + min(len({case.lever for case in cases}), MOST_PROBES)
    return readings * (answers_s + TEXT_S) + FIRST_LOG_PROBABILITIES_S
