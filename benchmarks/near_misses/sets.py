"""The two sets of questions, ready to use: development for whoever tunes, held out for whoever judges."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from . import development, held_out
from .pairs import QuestionPair, make_pairs
from .stream import Request, Stream

CHECKLIST = Path(__file__).parents[3] / "shared" / "data" / "question_pairs_checklist.tsv"


def development_pairs(seed: int, count: int) -> list[QuestionPair]:
    """Pairs to tune on."""
    return make_pairs(development.LIBRARY, seed, count)


def development_stream(seed: int, length: int, checklist: Path | None = None) -> Iterator[Request]:
    """A stream to tune on, with the even rows of the checklist if its file is named."""
    return Stream(development.LIBRARY, seed, length).requests(read_pairs(checklist)[::2] if checklist else ())


def held_out_pairs(seed: int, count: int) -> list[QuestionPair]:
    """Pairs to judge by."""
    return make_pairs(held_out.LIBRARY, seed, count)


def held_out_stream(
    seed: int, length: int, checklist: Path | None = None, unrepeated: bool = False
) -> Iterator[Request]:
    """A stream to judge by, with the odd rows of the checklist if its file is named."""
    stream = Stream(held_out.LIBRARY, seed, length, unrepeated)
    return stream.requests(read_pairs(checklist)[1::2] if checklist else ())


def read_pairs(path: Path) -> list[QuestionPair]:
    """Pairs from a file with the columns kind, duplicate, a and b."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            QuestionPair(row["kind"], row["duplicate"] == "1", row["a"], row["b"])
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]
