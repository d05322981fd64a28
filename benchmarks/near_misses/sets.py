"""The sets of questions, ready to use: development for whoever tunes, the others for whoever judges."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from .library import Library, read_library
from .pairs import QuestionPair
from .requests import Request
from .stream import Stream

CHECKLIST = Path(__file__).parents[3] / "shared" / "data" / "question_pairs_checklist.tsv"
EVEN, ODD = 0, 1
"""Rows of the checklist: the even ones may be tuned on, the odd ones judge."""
QUESTIONS = Path(__file__).parent / "questions"
LIBRARIES = {path.stem: read_library(path) for path in sorted(QUESTIONS.glob("*.toml"))}
"""By language; `development` is English too, and there to tune on."""
_A_WORD_IS_MISSING = re.compile(r"\s[^\w\s\"'(]+(?=\s|\?)")


def stream_of(name: str, seed: int, length: int, again: int, checklist: Path | None = None) -> list[Request]:
    """A stream, then the day after; English ones with rows of the checklist, if its file is named."""
    pairs: list[QuestionPair] = []
    if checklist is not None and name in {"development", "english"}:
        pairs = checklist_rows(checklist, EVEN if name == "development" else ODD)
    stream = Stream(library(name), seed, length)
    return [*stream.requests(pairs), *stream.again(again)]


def library(name: str) -> Library:
    """The questions of this name."""
    return LIBRARIES[name]


def checklist_rows(path: Path, first: int) -> list[QuestionPair]:
    """Every other pair of the file, but those in which a word is missing ("a . person"): they ask nothing."""
    with path.open(encoding="utf-8", newline="") as file:
        pairs = [
            QuestionPair(row["kind"], row["duplicate"] == "1", row["a"], row["b"])
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]
    return [pair for pair in pairs[first::2] if not _A_WORD_IS_MISSING.search(f"{pair.a}\t{pair.b}")]
