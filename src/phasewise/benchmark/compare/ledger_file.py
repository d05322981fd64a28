"""The ledger on disk: one JSON record per line, append-only.

A record is on disk before the call returns. A killed writer leaves at most one incomplete line, which
readers skip.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import orjson

from phasewise.benchmark.compare.ledger import Entry, MeasuredOutcome, Prediction, PredictionCheck, paired
from phasewise.core.errors import ConfigError
from phasewise.core.statistics import Interval

LEDGER_VERSION = 1
LEDGER_NAME = "ledger.jsonl"
_PRIVATE_FILE = 0o600

_Record = TypeVar("_Record", Prediction, MeasuredOutcome)


@dataclass(frozen=True, slots=True)
class LedgerContents:
    """The contents of a ledger; `passed_over` lines are incomplete or of another version."""

    entries: tuple[Entry, ...]
    passed_over: int = 0


def default_ledger(home: Path) -> Path:
    """The default path of the ledger."""
    return home / LEDGER_NAME


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """A ledger to which predictions and outcomes are appended."""

    path: Path

    def check_writable(self) -> None:
        """ConfigError if the file is not writable, before an hour of measuring."""
        os.close(self._open())

    def add_prediction(self, prediction: Prediction) -> None:
        """Append a prediction."""
        self._append("prediction", prediction)

    def add_outcome(self, outcome: MeasuredOutcome) -> None:
        """Append an outcome."""
        self._append("outcome", outcome)

    def read(self) -> LedgerContents:
        """All readable entries; a missing file is an empty ledger."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return LedgerContents(())
        except OSError as error:
            raise ConfigError(
                f"the ledger {self.path} cannot be read ({error.strerror})",
                hint="give another file with --ledger",
            ) from error
        predictions: dict[str, Prediction] = {}
        outcomes: dict[str, MeasuredOutcome] = {}
        passed_over = 0
        for line in filter(None, lines):
            found = _record(line)
            if isinstance(found, Prediction):
                predictions[found.id] = found
            elif isinstance(found, MeasuredOutcome):
                outcomes[found.id] = found
            else:
                passed_over += 1
        return LedgerContents(paired(tuple(predictions.values()), outcomes), passed_over)

    def _append(self, kind: str, record: Prediction | MeasuredOutcome) -> None:
        line = orjson.dumps({"v": LEDGER_VERSION, "kind": kind} | asdict(record)) + b"\n"
        descriptor = self._open()
        try:
            # Two commands may end at once.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _ends_whole(descriptor):
                line = b"\n" + line
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, _PRIVATE_FILE)
        except OSError as error:
            raise ConfigError(
                f"the ledger {self.path} cannot be written ({error.strerror})",
                hint="give another file with --ledger",
            ) from error


def _ends_whole(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"


def _record(line: bytes) -> Prediction | MeasuredOutcome | None:
    """The record of a line; None if it is incomplete or of another version."""
    try:
        facts = orjson.loads(line)
        if not isinstance(facts, dict) or facts.get("v") != LEDGER_VERSION:
            return None
        read = _READERS.get(str(facts.get("kind")))
        return None if read is None else read(facts)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None


def _prediction(facts: dict[str, Any]) -> Prediction:
    return _built(Prediction, facts | {"ratio": _interval(facts["ratio"])})


def _outcome(facts: dict[str, Any]) -> MeasuredOutcome:
    return _built(
        MeasuredOutcome,
        facts | {"held": PredictionCheck(facts["held"]), "interval": _interval(facts["interval"])},
    )


def _built(kind: type[_Record], facts: dict[str, Any]) -> _Record:
    # Fields may be added within a version: unknown ones are ignored.
    return kind(**{each.name: facts[each.name] for each in fields(kind) if each.name in facts})


def _interval(facts: dict[str, float] | None) -> Interval | None:
    return None if facts is None else Interval(**facts)


_READERS: dict[str, Callable[[dict[str, Any]], Prediction | MeasuredOutcome]] = {
    "prediction": _prediction,
    "outcome": _outcome,
}
