"""What is to be measured and how long it should take. Pure: what is known already is handed in.

Measuring it is procedure.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phasewise.errors import ConfigError
from phasewise.levers.catalogue import Case, Row, Workload
from phasewise.levers.results import Results

ENGINE_START_S = 18.0
"""One takes half as long again, but the next one starts beside it."""
BLOCK_OVERHEAD_S = 0.6
"""Prompts are made and counted before each block, and the engine is asked for its counters."""
OTHER_ARM = 1.3
"""A slow arm makes its blocks longer than the mean that requests are counted by."""
TOKEN_S = 0.06
"""A token of a small model on one core; faster machines only end sooner."""
MOST_REQUESTS = 600
"""In a block, however fast the machine is."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How thoroughly to measure.

    Blocks last about `block_s` where the machine is fast enough for the fewest requests. An A/A control is
    measured for every workload, or for the first one alone.
    """

    name: str
    pairs: int
    block_s: float
    control_pairs: int
    all_controls: bool
    answer_prompts: int
    answer_tokens: int

    def block_requests(self, workload: Workload, mean_wall_s: float) -> int:
        """How many requests fill a block, when the fewest took so long."""
        fewest = workload.least_requests
        steps = round(fewest * self.block_s / max(mean_wall_s, 1e-3) / workload.requests_step)
        return min(max(fewest, steps * workload.requests_step), MOST_REQUESTS)


WHOLE = Effort(
    "whole", pairs=6, block_s=4.0, control_pairs=4, all_controls=True, answer_prompts=12, answer_tokens=32
)
QUICK = Effort(
    "quick", pairs=4, block_s=2.5, control_pairs=4, all_controls=False, answer_prompts=4, answer_tokens=16
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


def steps_left(cases: Sequence[Case], effort: Effort, results: Results) -> int:
    """How many rows, noise floors and counts are still to be taken."""
    here = measurable(cases, results)
    counts = results.paging is None and any(case.by_counters for case in here)
    rows = sum(len(left_to_do(case, results)) for case in here)
    return rows + len(controls_left(here, effort, results)) + counts


def left_to_do(case: Case, results: Results) -> tuple[Row, ...]:
    """The rows of a case that were not measured yet."""
    return tuple(row for row in case.rows if case.key(row) not in results.rows)


def controls_left(cases: Sequence[Case], effort: Effort, results: Results) -> tuple[Workload, ...]:
    """The workloads for which the noise floor is still to be measured."""
    if not effort.control_pairs:
        return ()
    workloads = {row.workload.key: row.workload for case in cases for row in case.rows}
    asked = list(workloads.values())[: None if effort.all_controls else 1]
    return tuple(workload for workload in asked if workload.key not in results.floors)


def seconds_of_row(effort: Effort, pairs: int) -> float:
    """About how long a row takes: a trial of either arm, then pairs of blocks."""
    return (2 * pairs * OTHER_ARM + 2) * (effort.block_s + BLOCK_OVERHEAD_S)


def seconds_left(cases: Sequence[Case], effort: Effort, results: Results) -> float:
    """About how long everything that is left takes."""
    here = measurable(cases, results)
    pending = [(case, rows) for case in here if (rows := left_to_do(case, results))]
    engines = {spec.name for case, _ in pending for spec in (case.off, case.on)}
    rows_s = sum(len(rows) for _, rows in pending) * seconds_of_row(effort, effort.pairs)
    controls_s = len(controls_left(here, effort, results)) * seconds_of_row(effort, effort.control_pairs)
    answers_s = len(engines) * effort.answer_prompts * effort.answer_tokens * TOKEN_S
    return rows_s + controls_s + answers_s + len(engines) * ENGINE_START_S
