"""Units of measure and currencies: 5 km is not 5 miles, and a price in euros is not one in dollars."""

from __future__ import annotations

from itertools import pairwise

from phasewise.caching.guards.question_words import TIMES_ASKED_FOR
from phasewise.caching.guards.reading import Reading, either_alone, once
from phasewise.caching.guards.unit_names import ONLY_AFTER_A_NUMBER, UNITS

_ASKS = frozenset({"what", "which"})


def units_differ(one: Reading, other: Reading) -> str | None:
    """The units that only one of two questions names."""
    return either_alone(_units(one), _units(other))


@once
def _units(reading: Reading) -> frozenset[str]:
    found = {UNITS[lower] for lower in reading.lowers[:1] if lower in UNITS}
    for before, lower in pairwise(reading.lowers):
        if before in _ASKS and lower in TIMES_ASKED_FOR:
            continue
        if lower in UNITS:
            found.add(UNITS[lower])
        elif lower in ONLY_AFTER_A_NUMBER and before[0].isdigit():
            found.add(ONLY_AFTER_A_NUMBER[lower])
    return frozenset(found)
