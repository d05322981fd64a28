"""Parts readings by when they were taken: those of one visit share whatever slowed the machine just then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phasewise.costs.observation import Observation

VISIT_S = 1.0
"""With a longer pause between them, readings are of different visits."""


def visits_of(indices: Iterable[int], observations: Sequence[Observation]) -> list[list[int]]:
    """Indices of observations in order of time, parted where a pause lies between two of them."""
    visits: list[list[int]] = []
    for index in sorted(indices, key=lambda each: observations[each].at_s):
        began_s = observations[index].at_s - observations[index].seconds
        if not visits or began_s - observations[visits[-1][-1]].at_s > VISIT_S:
            visits.append([])
        visits[-1].append(index)
    return visits
