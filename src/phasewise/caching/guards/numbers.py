"""Numbers: a figure, a version or an identifier with digits stands in both questions or in neither."""

from __future__ import annotations

import re
from collections import Counter

from phasewise.caching.guards.reading import Reading

_OPERATORS = re.compile(r"[+*^=<>≤≥≠±×÷|&~√∞]|(?<=[\d\s)])[-−–](?=\s?\d)|(?<=\d)/(?=\d)|^[-−](?=\d)")
_ORDINAL_ENDINGS = re.compile(r"(\d+)(?:st|nd|rd|th)")


def numbers_differ(one: Reading, other: Reading) -> str | None:
    """The numbers, and the signs that reckon with them, that only one of two questions has."""
    ours, theirs = _figures(one), _figures(other)
    if ours == theirs:
        return None
    return f"{_listed(ours - theirs)} | {_listed(theirs - ours)}"


def _listed(figures: Counter[str]) -> str:
    return ", ".join(sorted(figures)) or "-"


def _figures(reading: Reading) -> Counter[str]:
    figures = Counter(
        _ORDINAL_ENDINGS.sub(r"\1th", lower)
        for lower in reading.lowers
        if any(letter.isdigit() for letter in lower)
    )
    figures.update(_OPERATORS.findall(reading.text))
    return figures
