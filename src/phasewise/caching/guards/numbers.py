"""Numbers: a figure, a version or an identifier with digits stands in both questions or in neither."""

from __future__ import annotations

import re
from collections import Counter

from phasewise.caching.guards.reading import Reading, once

_HAS_DIGIT = re.compile(r"\d")
_SIGNS = re.compile(
    r"[^\w\s.,;:!?…'\"`´“”‘’‚„«»‹›()\-–—‐/¿¡·•、。,?!:;「」$€£¥₹%°]"
    r"|(?<=[\d\s(=*+/^])[-−–](?=\s?\d)|^[-−](?=\d)|(?<=\d)\s?/(?=\s?\d)|!(?=[\w(])|\$(?!\s?\d)"
)
"""Whatever is neither a word nor plain punctuation, and dashes, slashes and marks where they reckon."""
_ORDINAL = re.compile(r"(\d{1,9})(?:st|nd|rd)")


def numbers_differ(one: Reading, other: Reading) -> str | None:
    """The numbers, and the signs beside words (of sums, of code, little pictures), that only one has."""
    ours, theirs = _figures(one), _figures(other)
    if ours == theirs:
        return None
    return f"{_listed(ours - theirs)} | {_listed(theirs - ours)}"


def _as_ordinal(lower: str) -> str:
    """1st as 1th: one spelling for what is spelled out as "first" too."""
    ordinal = _ORDINAL.fullmatch(lower)
    return f"{ordinal[1]}th" if ordinal else lower


def _listed(figures: Counter[str]) -> str:
    return ", ".join(sorted(figures)) or "-"


@once
def _figures(reading: Reading) -> Counter[str]:
    figures = Counter(
        _as_ordinal(lower) for lower in reading.lowers if not lower.isalpha() and _HAS_DIGIT.search(lower)
    )
    figures.update(map(str.strip, _SIGNS.findall(reading.text)))
    return figures
