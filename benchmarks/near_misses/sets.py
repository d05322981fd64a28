"""The two sets of questions, ready to use: development for whoever tunes, held out for whoever judges."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from . import development, held_out
from .pairs import QuestionPair, make_pairs
from .requests import Request
from .stream import Stream

CHECKLIST = Path(__file__).parents[3] / "shared" / "data" / "question_pairs_checklist.tsv"
EVEN, ODD = 0, 1
"""Rows of the checklist: the even ones may be tuned on, the odd ones judge."""
_A_WORD_IS_MISSING = re.compile(r"\s[^\w\s\"'(]+(?=\s|\?)")


def development_stream(seed: int, length: int, checklist: Path | None = None) -> Iterator[Request]:
    """A stream to tune on, with the even rows of the checklist if its file is named."""
    pairs = checklist_rows(checklist, EVEN) if checklist else ()
    return Stream(development.LIBRARY, seed, length).requests(pairs)


def held_out_pairs(seed: int, count: int) -> list[QuestionPair]:
    """Pairs to judge by."""
    return make_pairs(held_out.LIBRARY, seed, count)


def held_out_stream(
    seed: int, length: int, checklist: Path | None = None, unrepeated: bool = False
) -> Iterator[Request]:
    """A stream to judge by, with the odd rows of the checklist if its file is named."""
    pairs = checklist_rows(checklist, ODD) if checklist else ()
    return Stream(held_out.LIBRARY, seed, length, unrepeated).requests(pairs)


def all_checklist_rows(path: Path) -> list[QuestionPair]:
    """Every pair of a file with the columns kind, duplicate, a and b, as it stands there."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            QuestionPair(row["kind"], row["duplicate"] == "1", row["a"], row["b"])
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]


def checklist_rows(path: Path, first: int) -> list[QuestionPair]:
    """Every other pair of the file, but those in which a word is missing ("a . person"): they ask nothing."""
    pairs = all_checklist_rows(path)
    return [pair for pair in pairs[first::2] if not _A_WORD_IS_MISSING.search(f"{pair.a}\t{pair.b}")]
