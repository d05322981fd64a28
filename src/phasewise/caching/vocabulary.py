"""How lists of words are written down in this package; the lists stand with those who read them."""

from __future__ import annotations


def vocabulary(lines: str) -> frozenset[str]:
    """The words of a text that names them, one space between each."""
    return frozenset(lines.split())


def families(lines: str) -> dict[str, str]:
    """Every word to the first of its family. Families stand apart by | or a new line, words by a space."""
    found: dict[str, str] = {}
    for family in lines.replace("\n", "|").split("|"):
        names = family.split()
        for name in names:
            found.setdefault(name, names[0])
    return found
