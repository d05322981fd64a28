"""Predictions, their outcomes, the score over all of them, and the ledger on disk that keeps them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import inf
from pathlib import Path
from statistics import median

import orjson
from pydantic import TypeAdapter

from phasewise.benchmark.statistics.bootstrap import share_interval
from phasewise.benchmark.statistics.comparison import Comparison, Scale
from phasewise.core.errors import ConfigError
from phasewise.core.statistics import Interval


class PredictionCheck(StrEnum):
    """The result of comparing a prediction with a measurement."""

    HELD = "held"
    OUTSIDE = "outside"
    WRONG_SIGN = "wrong_sign"
    # The noise was too large, or the comparison cannot be trusted.
    INCONCLUSIVE = "inconclusive"
    # Nothing was predicted.
    UNPREDICTED = "unpredicted"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted effect of a fix on one figure, recorded before it is measured.

    `ratio` is the range of the figure after the fix over the figure before, and `expected` its likeliest
    value; None if it could not be predicted, for the reason in `unpredictable`. `aim` marks the figure
    that the fix aims at; others are its price or its side effects. The predictions of one fix share their
    `run`.
    """

    id: str
    run: str
    at_unix_s: float
    machine: str
    model: str
    engine_version: str
    phasewise_version: str
    cause: str
    fix: str
    lever: str
    value: str
    metric: str
    aim: bool
    ratio: Interval | None
    expected: float | None = None
    unpredictable: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredOutcome:
    """The measured ratio with its interval; None if it could not be measured."""

    id: str
    at_unix_s: float
    held: PredictionCheck
    ratio: float | None = None
    interval: Interval | None = None
    pairs: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A prediction and its outcome; without an outcome it is open."""

    prediction: Prediction
    outcome: MeasuredOutcome | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """How good predictions have been, over the figures that fixes aimed at.

    Only the figure that a fix aims at counts, because side effects in the same runs are no separate trials.
    `covered` of `judged` outcomes lay within the predicted interval; `sign_right` of `signed` changed in the
    predicted direction, if one was predicted and a change was measured. `coverage` is the confidence interval
    of the share of covered predictions. Wide intervals cover everything, so see also `median_width`: the
    median of the intervals' high end over their low end.
    """

    predictions: int
    open: int
    unpredicted: int
    inconclusive: int
    judged: int
    covered: int
    signed: int
    sign_right: int
    coverage: Interval | None
    median_width: float | None = None


def score(entries: Sequence[Entry]) -> Score:
    """Keep score of the figures that fixes aimed at."""
    aimed = [entry for entry in entries if entry.prediction.aim]
    done = [entry.outcome.held for entry in aimed if entry.outcome is not None]
    widths = [_width(entry.prediction.ratio) for entry in aimed if _is_judged(entry)]
    judged = len(widths)
    covered = done.count(PredictionCheck.HELD)
    signs = [right for entry in aimed if (right := _sign_right(entry)) is not None]
    return Score(
        predictions=len(aimed),
        open=len(aimed) - len(done),
        unpredicted=done.count(PredictionCheck.UNPREDICTED),
        inconclusive=done.count(PredictionCheck.INCONCLUSIVE),
        judged=judged,
        covered=covered,
        signed=len(signs),
        sign_right=sum(signs),
        coverage=share_interval(covered, judged),
        median_width=median(widths) if widths else None,
    )


def _is_judged(entry: Entry) -> bool:
    judged = {PredictionCheck.HELD, PredictionCheck.OUTSIDE, PredictionCheck.WRONG_SIGN}
    return entry.outcome is not None and entry.outcome.held in judged


def _width(predicted: Interval | None) -> float:
    return inf if predicted is None or predicted.low <= 0 else predicted.high / predicted.low


def _sign_right(entry: Entry) -> bool | None:
    """Whether the figure changed in the predicted direction; None if none was predicted or measured."""
    predicted, outcome = entry.prediction.ratio, entry.outcome
    if predicted is None or outcome is None or outcome.interval is None or not _is_judged(entry):
        return None
    if any(each.low <= 1.0 <= each.high for each in (predicted, outcome.interval)):
        return None
    return (outcome.interval.high < 1.0) == (predicted.high < 1.0)


# --- Whether a measurement confirms a prediction; both are ratios of after to before.


def judge_prediction(
    predicted: Interval | None, ratio: float | None, measured: Interval | None
) -> PredictionCheck:
    """Compare a predicted ratio with a measured one and its interval.

    `held`: the measured ratio lies within the prediction. If a change was predicted, a measurement that
    allows both for it and for no change is inconclusive; otherwise one that is wider than the prediction on
    both sides is. `wrong_sign`: a clear change in the other direction.
    """
    if predicted is None:
        return PredictionCheck.UNPREDICTED
    if ratio is None or measured is None:
        return PredictionCheck.INCONCLUSIVE
    if _too_coarse(predicted, measured):
        return PredictionCheck.INCONCLUSIVE
    if predicted.low <= ratio <= predicted.high:
        return PredictionCheck.HELD
    opposite = (predicted.high < 1.0 < measured.low) or (measured.high < 1.0 < predicted.low)
    return PredictionCheck.WRONG_SIGN if opposite else PredictionCheck.OUTSIDE


def _too_coarse(predicted: Interval, measured: Interval) -> bool:
    if _holds(predicted, 1.0):
        return measured.low < predicted.low and measured.high > predicted.high
    overlap = measured.low <= predicted.high and predicted.low <= measured.high
    return _holds(measured, 1.0) and overlap


def _holds(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def measured_ratio(comparison: Comparison) -> tuple[float | None, Interval | None]:
    """B over A with its interval, if the comparison is relative and had enough pairs."""
    if comparison.scale is not Scale.RELATIVE or comparison.change is None or comparison.interval is None:
        return None, None
    found = comparison.interval
    return 1.0 + comparison.change, Interval(1.0 + found.low, 1.0 + found.high, found.confidence)


# --- The ledger on disk: one JSON record per line, append-only.
#
# A record is on disk before the call returns. A killed writer leaves at most one incomplete line, which
# readers skip.

LEDGER_VERSION = 1
LEDGER_NAME = "ledger.jsonl"
_PRIVATE_FILE = 0o600
_KINDS: dict[str, TypeAdapter[Prediction | MeasuredOutcome]] = {
    "prediction": TypeAdapter(Prediction),
    "outcome": TypeAdapter(MeasuredOutcome),
}


@dataclass(frozen=True, slots=True)
class LedgerContents:
    """The contents of a ledger; `passed_over` lines are incomplete or of another version."""

    entries: tuple[Entry, ...]
    passed_over: int = 0


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """A ledger to which predictions and outcomes are appended."""

    path: Path

    def check_writable(self) -> None:
        """ConfigError if the file is not writable, before an hour of measuring."""
        os.close(self._open())

    def add(self, record: Prediction | MeasuredOutcome) -> None:
        """Append a prediction, or the outcome of one."""
        kind = "prediction" if isinstance(record, Prediction) else "outcome"
        line = orjson.dumps({"v": LEDGER_VERSION, "kind": kind} | asdict(record)) + b"\n"
        descriptor = self._open()
        try:
            # Two commands may end at once.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            ends_whole = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
            os.write(descriptor, line if ends_whole else b"\n" + line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

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
        entries = (Entry(prediction, outcomes.get(prediction.id)) for prediction in predictions.values())
        return LedgerContents(tuple(entries), passed_over)

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, _PRIVATE_FILE)
        except OSError as error:
            raise ConfigError(
                f"the ledger {self.path} cannot be written ({error.strerror})",
                hint="give another file with --ledger",
            ) from error


def _record(line: bytes) -> Prediction | MeasuredOutcome | None:
    """The record of a line; None if it is incomplete or of another version."""
    try:
        facts = orjson.loads(line)
        # Fields may be added within a version: unknown ones are ignored.
        return _KINDS[facts["kind"]].validate_python(facts) if facts["v"] == LEDGER_VERSION else None
    except (LookupError, TypeError, ValueError):
        return None
