"""How lists of words are written down in this package; the lists stand with those who read them."""

from __future__ import annotations


def vocabulary(lines: str) -> frozenset[str]:
    """The words of a text that names them, one space between each."""
    return frozenset(lines.split())
