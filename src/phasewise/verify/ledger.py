"""The ledger's nouns: a prediction, what then came of it, and the score over all of them. Pure.

How records are kept on disk is ledger_file.py's; what makes a prediction hold is judgement.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, sqrt
from statistics import NormalDist, median

from phasewise.model.interval import Interval

SCORE_CONFIDENCE = 0.95


class Held(StrEnum):
    """What a measurement says of a prediction."""

    HELD = "held"
    OUTSIDE = "outside"
    WRONG_SIGN = "wrong_sign"
    # Noise was too large to tell, or the comparison cannot be trusted.
    INCONCLUSIVE = "inconclusive"
    # Nothing was predicted, so nothing could be refuted.
    UNPREDICTED = "unpredicted"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a fix was said to do to one figure, before anybody measured it.

    `ratio` is the range of the figure after the fix over the figure before, and `expected` its likeliest
    value; None where it could not be predicted, for the reason in `unpredictable`. `aim` marks the figure
    that the fix is for; others are its price or its side effects. The predictions of one fix share their
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
class Outcome:
    """What was measured of a prediction: the ratio with its interval, None where it could not be told."""

    id: str
    at_unix_s: float
    held: Held
    ratio: float | None = None
    interval: Interval | None = None
    pairs: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A prediction beside its outcome; one that nobody has measured yet is open."""

    prediction: Prediction
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """How good predictions have been, over the figures that fixes aimed at.

    One figure of a fix counts: what else it changed in the same runs is no trial of its own. `covered` of
    `judged` lay within what was predicted; `sign_right` of `signed` went the way that was predicted, where
    a way was, and something surely changed. `coverage` is the range that the true share of covered
    predictions lies in. An interval that is wide holds everything, so coverage counts for little without
    `median_width`: half of the judged intervals reach from their low end to less than so many times it.
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


def paired(predictions: Sequence[Prediction], outcomes: Mapping[str, Outcome]) -> tuple[Entry, ...]:
    """Every prediction with its outcome, in the order they were made."""
    return tuple(Entry(prediction, outcomes.get(prediction.id)) for prediction in predictions)


def score(entries: Sequence[Entry]) -> Score:
    """Keep score of the figures that fixes aimed at."""
    aimed = [entry for entry in entries if entry.prediction.aim]
    done = [entry.outcome.held for entry in aimed if entry.outcome is not None]
    widths = [_width(entry.prediction.ratio) for entry in aimed if _is_judged(entry)]
    judged = len(widths)
    covered = done.count(Held.HELD)
    signs = [right for entry in aimed if (right := _sign_right(entry)) is not None]
    return Score(
        predictions=len(aimed),
        open=len(aimed) - len(done),
        unpredicted=done.count(Held.UNPREDICTED),
        inconclusive=done.count(Held.INCONCLUSIVE),
        judged=judged,
        covered=covered,
        signed=len(signs),
        sign_right=sum(signs),
        coverage=share_interval(covered, judged),
        median_width=median(widths) if widths else None,
    )


def _is_judged(entry: Entry) -> bool:
    judged = {Held.HELD, Held.OUTSIDE, Held.WRONG_SIGN}
    return entry.outcome is not None and entry.outcome.held in judged


def _width(predicted: Interval | None) -> float:
    return inf if predicted is None or predicted.low <= 0 else predicted.high / predicted.low


def _sign_right(entry: Entry) -> bool | None:
    """Whether the figure went the way that was predicted; None where no way was, or none was surely seen."""
    predicted, outcome = entry.prediction.ratio, entry.outcome
    if predicted is None or outcome is None or outcome.interval is None or not _is_judged(entry):
        return None
    if any(each.low <= 1.0 <= each.high for each in (predicted, outcome.interval)):
        return None
    return (outcome.interval.high < 1.0) == (predicted.high < 1.0)


def share_interval(hits: int, trials: int, confidence: float = SCORE_CONFIDENCE) -> Interval | None:
    """The range of a share of which `hits` of `trials` were seen (Wilson's); None without a trial.

    It stays within 0 and 1, and says something even when every trial hit.
    """
    if trials == 0:
        return None
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    seen, spread = hits / trials, z * z / trials
    middle = (seen + spread / 2) / (1 + spread)
    half = z * sqrt(seen * (1 - seen) / trials + spread / (4 * trials)) / (1 + spread)
    return Interval(max(0.0, middle - half), min(1.0, middle + half), confidence)
