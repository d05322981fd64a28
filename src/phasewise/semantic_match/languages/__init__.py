"""What each language calls its negations and numbers: a file a language, read once."""

from __future__ import annotations

import tomllib
from importlib import resources

from phasewise.core.value import value


@value
class Language:
    """The words of one language that guards count, and what a planted pair is made with.

    `common` words show the language of a text. `negate` has phrases with their negations, `opposites` words
    with theirs; what stands on both sides of one of `joins` may be exchanged without a new meaning.
    """

    name: str
    common: frozenset[str]
    negations: frozenset[str]
    negation_endings: tuple[str, ...]
    numbers: tuple[str, ...]
    names: tuple[str, ...]
    things: tuple[str, ...]
    negate: tuple[tuple[str, str], ...]
    opposites: tuple[tuple[str, str], ...]
    joins: frozenset[str]


def _read(name: str) -> Language:
    text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)
    return Language(
        name=name,
        common=frozenset(rows["common"].split()),
        negations=frozenset(rows["negations"].casefold().split()),
        negation_endings=tuple(rows.get("negation_endings", "").split()),
        numbers=tuple(rows["numbers"].casefold().split()),
        names=tuple(rows["names"].split()),
        things=tuple(rows["things"].split()),
        negate=_pairs(rows["negate"]),
        opposites=_pairs(rows["opposites"]),
        joins=frozenset(rows["joins"].split()),
    )


def _pairs(rows: list[str]) -> tuple[tuple[str, str], ...]:
    parts = (row.partition(" > ") for row in rows)
    return tuple((one, other) for one, _, other in parts)


LANGUAGES = tuple(map(_read, ("en", "de", "es", "fr", "it", "pt")))
