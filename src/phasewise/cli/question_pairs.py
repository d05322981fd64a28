"""Reads a file of question pairs, separated by tabs; mistakes are told with their line, not their words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phasewise.errors import ConfigError
from phasewise.model.noun import noun

COLUMNS = ("kind", "duplicate", "a", "b")
_DUPLICATE = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@noun
class QuestionPair:
    """Two questions, what tells them apart or not, and whether one answer fits both."""

    kind: str
    duplicate: bool
    a: str
    b: str


def read_pairs(path: Path) -> list[QuestionPair]:
    """All pairs of a file; further columns are passed over."""
    lines = _lines(path)
    places = _places(path, lines[0] if lines else "")
    pairs = [
        _pair(path, number, line.split("\t"), places)
        for number, line in enumerate(lines[1:], start=2)
        if line.strip()
    ]
    if not pairs:
        raise ConfigError(f"{path} holds no pairs", hint="write one pair per line under the first")
    return pairs


def _lines(path: Path) -> list[str]:
    try:
        # Not splitlines(): a question may hold other characters that it takes for the end of a line.
        return path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})", hint="check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not text in UTF-8 (byte {error.start})", hint="save it as UTF-8, separated by tabs"
        ) from error


def _places(path: Path, head: str) -> dict[str, int]:
    names = [name.strip() for name in head.split("\t")]
    missing = [column for column in COLUMNS if column not in names]
    if missing:
        raise ConfigError(
            f"{path}: the first line names no column {', '.join(missing)}",
            hint=f"it has to hold {', '.join(COLUMNS)}, with tabs between them",
        )
    return {column: names.index(column) for column in COLUMNS}


def _pair(path: Path, number: int, cells: list[str], places: dict[str, int]) -> QuestionPair:
    if len(cells) <= max(places.values()):
        raise ConfigError(
            f"{path}, line {number}: {len(cells)} columns where {max(places.values()) + 1} are needed",
            hint="columns are separated by tabs, and a question may hold none",
        )
    found = {column: cells[place].strip() for column, place in places.items()}
    for column in _empty(found):
        raise ConfigError(f"{path}, line {number}: {column} is empty", hint="fill it in, or remove the line")
    duplicate = _DUPLICATE.get(found["duplicate"].lower())
    if duplicate is None:
        raise ConfigError(
            f"{path}, line {number}: duplicate is neither 0 nor 1",
            hint="1 where one answer fits both questions, else 0",
        )
    return QuestionPair(found["kind"], duplicate, found["a"], found["b"])


def _empty(found: dict[str, str]) -> Iterator[str]:
    return (column for column in COLUMNS if not found[column])
