"""What a lever costs in accuracy: an engine's outputs with it off and on, side by side.

Reading the outputs is left to accuracy.py. Whether the price is worth paying is left to people.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt
from statistics import median

import numpy as np
from numpy.typing import NDArray

from phasewise.bench.bootstrap import FEWEST_BLOCKS, block_length, circular_block_draws
from phasewise.bench.student import t_quantile
from phasewise.errors import MeasurementError
from phasewise.levers.accuracy_reading import AccuracyReading, Answer
from phasewise.model.interval import Interval

NEAR_TIE_NATS = 0.25
"""Two candidates this close are a toss-up: scores in bfloat16 come in steps of 0.125 where they are large."""
WINDOW_TOKENS = 16
"""Neighbouring tokens depend on each other, so they are resampled in windows of this many."""
RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class AnswerChange:
    """How the answers differ. Tokens until a difference and near-ties are over the answers that do differ."""

    asked: int
    equal: int
    equal_tokens_median: float | None
    near_ties: int | None


@dataclass(frozen=True, slots=True)
class PerplexityChange:
    """How well the text is predicted, off and on; `ratio` is on / off, with its interval."""

    off: float
    on: float
    ratio: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class AccuracyPrice:
    """What switching a lever on does to the outputs; what could not be compared is None, with the reason."""

    answers: AnswerChange | None
    perplexity: PerplexityChange | None
    answers_missing: str | None
    perplexity_missing: str | None

    @property
    def sentence(self) -> str:
        """All of it in words."""
        return f"{_answers_words(self.answers, self.answers_missing)}; {self.perplexity_sentence}"

    @property
    def perplexity_sentence(self) -> str:
        """What became of the text, in words."""
        return _text_words(self.perplexity, self.perplexity_missing)


def price(off: AccuracyReading, on: AccuracyReading, rng: np.random.Generator) -> AccuracyPrice:
    """Compare two readings of the same prompts and passages."""
    answers_missing = off.answers_refused or on.answers_refused
    perplexity_missing = off.passages_refused or on.passages_refused or _unlike(off, on)
    answers = None if off.answers is None or on.answers is None else _answers(off.answers, on.answers)
    perplexity = None if perplexity_missing else _perplexity(off, on, rng)
    return AccuracyPrice(answers, perplexity, answers_missing, perplexity_missing)


def _answers(off: tuple[Answer, ...], on: tuple[Answer, ...]) -> AnswerChange:
    if len(off) != len(on) or not off:
        raise MeasurementError(
            f"{len(off)} answers cannot be compared with {len(on)}", hint="read both with the same prompts"
        )
    parted = [(one, _equal_tokens(one, other)) for one, other in zip(off, on, strict=True)]
    changes = [(one, tokens) for one, tokens in parted if tokens is not None]
    leads = [_lead_at(one, tokens) for one, tokens in changes]
    known = [lead for lead in leads if lead is not None]
    return AnswerChange(
        asked=len(off),
        equal=len(off) - len(changes),
        equal_tokens_median=median(tokens for _, tokens in changes) if changes else None,
        near_ties=sum(lead <= NEAR_TIE_NATS for lead in known) if len(known) == len(changes) else None,
    )


def _equal_tokens(one: Answer, other: Answer) -> int | None:
    """How many tokens two answers begin with alike, None if they are equal."""
    if one.token_ids == other.token_ids:
        return None
    pairs = zip(one.token_ids, other.token_ids, strict=False)
    shorter = min(len(one.token_ids), len(other.token_ids))
    return next((place for place, (left, right) in enumerate(pairs) if left != right), shorter)


def _lead_at(answer: Answer, place: int) -> float | None:
    """By how much the token there was likelier than the next best; None where the engine did not tell."""
    return answer.leads[place] if answer.leads is not None and place < len(answer.leads) else None


def _unlike(off: AccuracyReading, on: AccuracyReading) -> str | None:
    if off.passages is None or on.passages is None:
        return "the text was not read"
    if list(map(len, off.passages)) != list(map(len, on.passages)):
        return "the engines cut the text into tokens differently, so that perplexities cannot be compared"
    return None


def _perplexity(
    off: AccuracyReading, on: AccuracyReading, rng: np.random.Generator
) -> PerplexityChange | None:
    if off.passages is None or on.passages is None or off.perplexity is None or on.perplexity is None:
        return None
    pairs = zip(off.passages, on.passages, strict=True)
    windows = [window for before, after in pairs for window in _windows(np.subtract(before, after))]
    lost_nats = float(np.concatenate(windows).mean())
    reach = _reach_nats(windows, rng)
    return PerplexityChange(
        off=off.perplexity,
        on=on.perplexity,
        ratio=exp(lost_nats),
        interval=None
        if reach is None
        else Interval(exp(lost_nats - reach), exp(lost_nats + reach), CONFIDENCE),
    )


def _windows(differences: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    return np.array_split(differences, max(1, round(len(differences) / WINDOW_TOKENS)))


def _reach_nats(windows: list[NDArray[np.float64]], rng: np.random.Generator) -> float | None:
    """How far the mean may be off on other text of this kind; None from too little text.

    Windows are drawn in blocks of neighbours, as one passage may suffer more than another. Few blocks spread
    less than fresh text would, which Student's t and the factor beside it make up for.
    """
    if len(windows) < FEWEST_BLOCKS:
        return None
    draws = circular_block_draws(len(windows), RESAMPLES, rng)
    sums = draws @ np.array([window.sum() for window in windows])
    tokens = draws @ np.array([len(window) for window in windows])
    blocks = len(windows) // block_length(len(windows))
    factor = t_quantile((1 + CONFIDENCE) / 2, blocks - 1) * sqrt(blocks / (blocks - 1))
    return float((sums / tokens).std()) * factor


def _answers_words(change: AnswerChange | None, missing: str | None) -> str:
    if change is None:
        return f"answers not compared: {missing}"
    words = f"{change.equal} of {change.asked} answers equal"
    if change.equal_tokens_median is None:
        return words
    words += f", the others for {change.equal_tokens_median:g} tokens (median)"
    return words if change.near_ties is None else f"{words}, {change.near_ties} of them parting at a near-tie"


def _text_words(change: PerplexityChange | None, missing: str | None) -> str:
    if change is None:
        return f"perplexity not compared: {missing}"
    words = f"perplexity {change.off:.3g} -> {change.on:.3g}"
    if change.ratio == 1.0:
        return f"{words} (no token's probability differs)"
    spread = change.interval
    reach = "" if spread is None else f", {spread.low - 1:+.1%} to {spread.high - 1:+.1%}"
    return f"{words} ({change.ratio - 1:+.1%}{reach})"
