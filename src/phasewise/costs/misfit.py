"""Whether a fit's form is right, told by its residuals: where like steps miss it alike, noise is no excuse.

Steps of nearly the same work form a cell. Those of one visit share the machine's mood of that second, so a
cell is as sure as its visits agree, and those of other cells of its kind: its own are too few to tell their
spread. A cell that is far off, by much more than that, is missed by the form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, log1p, sqrt
from statistics import fmean, median, variance

from phasewise.costs.fit import FittedCost
from phasewise.costs.observation import Observation
from phasewise.costs.step_work import StepKind, StepWork
from phasewise.costs.visits import visits_of

CELL_WIDTH = 0.15
"""Steps whose counts differ by less than about this share are alike."""
FEWEST_VISITS = 3
KIND_WEIGHS = 4
"""The spread of a cell's kind counts like so many visits of its own."""
TOLERATED = 0.10
"""A cell this far off is not missed: no simple form does better on a real engine."""
CERTAIN = 3.5
"""How many standard errors a cell must be off: cells are many, and each may be off by chance."""
TELLING = 0.4
"""A cell so noisy that it would have to be off by half to be certain tells nothing of the form."""
TELLING_SHARE = 0.5
MISSED_SHARE = 0.08
"""When more cells than this are missed, and more than one, it is the form and not chance."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Steps of nearly the same work: `off_by` is how much longer they take than the fit says, as a share.

    It is `certain` where their noise does not explain it, and `telling` where noise leaves room to see it.
    """

    kind: StepKind
    work: StepWork
    visits: int
    off_by: float
    certain: bool
    telling: bool = True

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
        """Whether nothing speaks against the form; None where noise would hide what does."""
        telling = sum(cell.telling for cell in self.cells)
        if not self.cells or telling < TELLING_SHARE * len(self.cells):
            return None
        return len(self.missed) <= max(1, MISSED_SHARE * len(self.cells))


def check_form(fitted: FittedCost, observations: Sequence[Observation]) -> FormCheck:
    """Look at every cell that was seen at several times."""
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
        telling=CERTAIN * standard_error < TELLING,
    )
