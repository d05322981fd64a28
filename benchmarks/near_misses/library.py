"""A set of frames with the manners of those who ask, and the wordings that both allow."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from .grammar import Frame, Kind, Pool, Question, frame, pool, put, usual_form
from .manners import Manner, Manners, draw_manner, in_manner, plain_manner

SURFACE, COURTESY, SYNONYM, REWORDED = "surface", "courtesy", "synonym", "reworded"
"""How deep a paraphrase goes: case and contractions; politeness; other words; another sentence."""


@dataclass(frozen=True)
class Library:
    """Everything that questions are made of. `late` kinds of near miss are for the end of a stream."""

    name: str
    frames: tuple[Frame, ...]
    manners: Manners
    late: frozenset[Kind]

    def __post_init__(self) -> None:
        if len({frame.name for frame in self.frames}) < len(self.frames):
            raise ValueError(
                f"{self.name}: two frames have one name, so their answers would be taken for the same"
            )


def read_library(path: Path) -> Library:
    """The library of a file: manners, pools of values by name, and frames, whose slots name or hold pools."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    pools = {name: _pool(text) for name, text in rows["pools"].items()}
    mends = rows.get("mends_articles", True)
    return Library(
        name=rows["name"],
        frames=tuple(replace(_frame(row, pools), mends_articles=mends) for row in rows["frames"]),
        manners=Manners(**{name: tuple(phrases) for name, phrases in rows["manners"].items()}),
        late=frozenset(map(Kind, rows["late"])),
    )


def _frame(row: Mapping[str, Any], pools: Mapping[str, Pool]) -> Frame:
    slots = {name: pools.get(text) or _pool(text) for name, text in row["slots"].items()}
    return frame(
        row["name"], row["domain"], row["forms"], tuple(row["swap"]) if "swap" in row else None, **slots
    )


def _pool(text: str) -> Pool:
    """A pool as "kind: groups"; numbers in a row are written as 61..159."""
    kind, _, groups = text.partition(": ")
    first, is_range, last = groups.partition("..")
    if is_range:
        groups = "|".join(map(str, range(int(first), int(last) + 1)))
    return pool(Kind(kind), groups)


@dataclass(frozen=True)
class Wording:
    """How to put a question. Two questions of one wording differ in their values only."""

    form: int
    choices: int
    manner: Manner

    def of(self, question: Question) -> str:
        """The question in this wording."""
        return in_manner(put(question, self.form, Random(self.choices)), self.manner)


def first_wording(library: Library, frame: Frame, rng: Random) -> Wording:
    """How somebody asks, in any of the ways there are."""
    manner = draw_manner(library.manners, rng) if rng.random() < 0.5 else plain_manner(library.manners, rng)
    return Wording(usual_form(frame, rng), rng.getrandbits(32), manner)


def reworded(
    library: Library, question: Question, wording: Wording, rng: Random
) -> tuple[Wording, str] | None:
    """Another wording of the same question, and how deep it goes; None where chance found the same words."""
    now = wording.of(question)
    depth = rng.random()
    other = wording
    if depth <= 0.2 or rng.random() < 0.5:
        other = replace(other, manner=draw_manner(library.manners, rng))
    if depth > 0.2:
        other = replace(other, choices=rng.getrandbits(32))
    if depth > 0.45:
        other = replace(other, form=rng.randrange(len(question.frame.forms)))
    then = other.of(question)
    if then == now:
        return None
    return other, _depth(question, wording, other)


def _depth(question: Question, one: Wording, other: Wording) -> str:
    if one.form != other.form:
        return REWORDED
    if put(question, one.form, Random(one.choices)) != put(question, other.form, Random(other.choices)):
        return SYNONYM
    courtesy = [
        (manner.greeting, manner.thanks, manner.filler, manner.asking)
        for manner in (one.manner, other.manner)
    ]
    return COURTESY if courtesy[0] != courtesy[1] else SURFACE
