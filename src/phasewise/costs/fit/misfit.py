"""Checks a fit's form by its residuals: where similar steps all miss in the same direction, it is not noise.

Steps of nearly the same work form a cell. Steps of one visit share the machine's conditions at that moment,
so the certainty of a cell comes from the agreement of its visits, and of other cells of its kind, because
its own visits are too few to estimate their spread. The form misses a cell that is off by much more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, log1p, sqrt
from statistics import fmean, median, variance

from phasewise.costs.fit.observation import Observation, visits_of
from phasewise.costs.fit.solve import FittedCost
from phasewise.costs.fit.step import StepKind, StepWork

CELL_WIDTH = 0.15
"""Steps whose counts differ by less than about this share are in one cell."""
FEWEST_VISITS = 3
KIND_WEIGHS = 4
"""The spread of a cell's kind weighs as much as this many of its own visits."""
TOLERATED = 0.10
"""A cell this far off is not missed: no simple form does better on a real engine."""
CERTAIN = 3.5
"""How many standard errors a cell must be off: there are many cells, and each may be off by chance."""
CONCLUSIVE = 0.4
"""A cell is inconclusive if it is so noisy that only an error of about half would be certain."""
CONCLUSIVE_SHARE = 0.5
MISSED_SHARE = 0.08
"""When more cells than this are missed, and more than one, the form is wrong and it is not chance."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Steps of nearly the same work: `off_by` is how much longer they take than the fit says, as a share.

    It is `certain` where noise does not explain it, and `conclusive` where noise is low enough to judge.
    """

    kind: StepKind
    work: StepWork
    visits: int
    off_by: float
    certain: bool
    conclusive: bool = True

    @property
    def missed(self) -> bool:
        """Whether the fit's form cannot reproduce this cell's time."""
        return self.certain and abs(self.off_by) > TOLERATED


@dataclass(frozen=True, slots=True)
class FormCheck:
    """The verdict on a form, with all cells, those furthest off first."""

    cells: tuple[Cell, ...]

    @property
    def missed(self) -> tuple[Cell, ...]:
        """The cells that the form cannot reproduce."""
        return tuple(cell for cell in self.cells if cell.missed)

    @property
    def fits(self) -> bool | None:
        """Whether the form agrees with the cells; None where noise is too high to judge."""
        conclusive = sum(cell.conclusive for cell in self.cells)
        if not self.cells or conclusive < CONCLUSIVE_SHARE * len(self.cells):
            return None
        return len(self.missed) <= max(1, MISSED_SHARE * len(self.cells))


def check_form(fitted: FittedCost, observations: Sequence[Observation]) -> FormCheck:
    """Check every cell with enough visits."""
    members: dict[tuple[int, ...], list[Observation]] = {}
    for observation in sorted(observations, key=lambda each: each.at_s):
        members.setdefault(_cell_of(observation), []).append(observation)
    seen = [(own[0], _visit_errors(fitted, own)) for own in members.values()]
    seen = [(first, errors) for first, errors in seen if len(errors) >= FEWEST_VISITS]
    variances: dict[StepKind, list[float]] = {}
    for first, errors in seen:
        variances.setdefault(first.kind, []).append(variance(errors))
    cells = [_cell(first, errors, fmean(variances[first.kind])) for first, errors in seen]
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


def _visit_errors(fitted: FittedCost, members: Sequence[Observation]) -> list[float]:
    """How far off each visit is."""
    errors = [log(each.seconds / fitted.seconds(each)) for each in members]
    return [median(errors[index] for index in visit) for visit in visits_of(range(len(members)), members)]


def _cell(first: Observation, errors: Sequence[float], kind_variance: float) -> Cell:
    centre, own_weighs = median(errors), len(errors) - 1
    spread = sqrt((KIND_WEIGHS * kind_variance + own_weighs * variance(errors)) / (KIND_WEIGHS + own_weighs))
    # A median's standard error is 1.25 times a mean's.
    standard_error = 1.25 * spread / sqrt(len(errors))
    return Cell(
        kind=first.kind,
        work=first.typical,
        visits=len(errors),
        off_by=exp(centre) - 1,
        certain=abs(centre) > CERTAIN * standard_error,
        conclusive=CERTAIN * standard_error < CONCLUSIVE,
    )
