"""Order and roles: the same words in another order ask something else, unless English leaves it open."""

from __future__ import annotations

from collections import Counter

from phasewise.caching.guards.reading import Reading, once
from phasewise.caching.guards.rearranged import is_rearranged, joins_nationality
from phasewise.caching.guards.roles import parts_swapped
from phasewise.caching.guards.voice import voices_agree


def order_differs(one: Reading, other: Reading) -> str | None:
    """The words of both questions as they stand in each, if who does what to whom may not be the same."""
    agree = voices_agree(one, other)
    if agree is not None:
        return None if agree else _told(one.contents, other.contents)
    ours, theirs = _shared(one, other), _shared(other, one)
    if ours != theirs:
        return None if is_rearranged(one, other) else _told(ours, theirs)
    if _joints(one) != _joints(other) and not joins_nationality(one, other):
        return "and | -"
    return parts_swapped(one, other)


def _told(ours: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    return f"{' '.join(ours)} | {' '.join(theirs)}"


def _shared(reading: Reading, other: Reading) -> tuple[str, ...]:
    """The content that both have, in the order of one."""
    left = Counter(reading.contents) & Counter(other.contents)
    shared: list[str] = []
    for content in reading.contents:
        if left[content]:
            left[content] -= 1
            shared.append(content)
    return tuple(shared)


@once
def _joints(reading: Reading) -> int:
    return sum(word.lower in ("and", "but") and not word.opens for word in reading.words)
