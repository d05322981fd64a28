"""Whether a fit's form is right, told by its residuals: where like steps miss it alike, noise is no excuse.

Steps of nearly the same work form a cell. Those of one visit share the machine's mood of that second, so a
cell is as sure as its visits agree. One that is far off, by much more than that, is missed by the form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, log1p, sqrt
from statistics import median

from phasewise.costs.fit import FittedCost
from phasewise.costs.observation import Observation
from phasewise.costs.step_work import StepKind, StepWork

CELL_WIDTH = 0.15
"""Steps whose counts differ by less than about this share are alike."""
VISIT_S = 1.0
"""Readings further apart than this are of different visits."""
FEWEST_VISITS = 3
TOLERATED = 0.10
"""A cell this far off is not missed: no simple form does better on a real engine."""
CERTAIN = 4.0
"""How many standard errors a cell must be off: cells are many, and each may be off by chance."""
MISSED_SHARE = 0.2
"""When more cells than this are missed, it is the form and not the cells."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Steps of nearly the same work: `off_by` is how much longer they take than the fit says, as a share."""

    kind: StepKind
    work: StepWork
    visits: int
    off_by: float
    certain: bool

    @property
    def missed(self) -> bool:
        """Whether the fit's form cannot give this cell's time."""
        return self.certain and abs(self.off_by) > TOLERATED


@dataclass(frozen=True, slots=True)
class FormCheck:
    """The verdict on a form, with all cells, those furthest off first."""

    cells: tuple[Cell, ...]

    @property
    def missed(self) -> tuple[Cell, ...]:
        """The cells that the form cannot give."""
        return tuple(cell for cell in self.cells if cell.missed)

    @property
    def fits(self) -> bool | None:
        """Whether the form fits; None where no step was seen often enough to tell."""
        return len(self.missed) <= MISSED_SHARE * len(self.cells) if self.cells else None


def check_form(fitted: FittedCost, observations: Sequence[Observation]) -> FormCheck:
    """Look at every cell that was seen at several times."""
    members: dict[tuple[int, ...], list[Observation]] = {}
    for observation in sorted(observations, key=lambda each: each.at_s):
        members.setdefault(_cell_of(observation), []).append(observation)
    cells = [
        _cell(fitted, visits) for own in members.values() if len(visits := _visits(own)) >= FEWEST_VISITS
    ]
    return FormCheck(tuple(sorted(cells, key=lambda cell: -abs(cell.off_by))))


def _cell_of(observation: Observation) -> tuple[int, ...]:
    work = observation.typical
    counts = (
        work.prompt_tokens,
        work.decode_tokens,
        work.requests,
        work.attention_token_pairs // max(work.prompt_tokens, 1),
        work.kv_read_tokens,
    )
    steps = len(observation.works)
    return (observation.through_front_end, steps, *(round(log1p(count) / CELL_WIDTH) for count in counts))


def _visits(members: Sequence[Observation]) -> list[list[Observation]]:
    """The readings of a cell, in order of time, parted where a pause lies between them."""
    visits = [[members[0]]]
    for before, after in pairwise(members):
        if after.at_s - before.at_s > VISIT_S:
            visits.append([])
        visits[-1].append(after)
    return visits


def _cell(fitted: FittedCost, visits: Sequence[Sequence[Observation]]) -> Cell:
    errors = [median(log(each.seconds / fitted.seconds(each)) for each in visit) for visit in visits]
    centre = median(errors)
    # 1.48 makes a median deviation a standard one, 1.25 a mean's standard error a median's.
    spread = 1.48 * median(abs(error - centre) for error in errors)
    standard_error = 1.25 * spread / sqrt(len(errors))
    return Cell(
        kind=visits[0][0].kind,
        work=visits[0][0].typical,
        visits=len(visits),
        off_by=exp(centre) - 1,
        certain=abs(centre) > CERTAIN * standard_error,
    )
