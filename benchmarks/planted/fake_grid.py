"""The grid of virtual runs: every cause on every machine with several seeds, judged as a live window is.

Its two sets differ by seed only: both draw from the same sizes, unlike those of the real runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.verdict import verdict_record

from .cases import HEALTHY, RunSet
from .scenes import MACHINES, PLANTERS, play

SEEDS = 2
QUICK_CAUSES = (HEALTHY, "long_prompts", "batch_cap_too_low")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the grid. Its cause is what must be said."""

    cause: str
    machine: str
    seed: int


def grid(run_set: RunSet, seeds: int, *, quick: bool = False) -> tuple[Cell, ...]:
    """Every run; the two sets share no seed."""
    first = 0 if run_set is RunSet.TUNE else 500_000
    causes = QUICK_CAUSES if quick else tuple(PLANTERS)
    machines = tuple(MACHINES)[:1] if quick else tuple(MACHINES)
    return tuple(
        Cell(cause, machine, first + number)
        for cause in causes
        for machine in machines
        for number in range(1, seeds + 1)
    )


def verdict_on(cell: Cell) -> dict[str, Any]:
    """The verdict on one run, as the command would print it."""
    evidence, slo = play(cell.cause, cell.machine, cell.seed)
    return verdict_record(diagnose(evidence, slo, Known()))


def verdicts(cells: Sequence[Cell]) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """The verdicts on all of them, on every core."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        yield from zip(cells, pool.map(verdict_on, cells), strict=True)
