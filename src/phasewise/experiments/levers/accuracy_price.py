"""What a lever costs in accuracy: an engine's outputs with it off and on."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt
from statistics import median

import numpy as np
from numpy.typing import NDArray

from phasewise.core.errors import MeasurementError
from phasewise.core.statistics import Interval
from phasewise.loadgen.statistics.bootstrap import (
    FEWEST_BLOCKS,
    block_length,
    circular_block_draws,
    t_quantile,
)

# --- What one engine answered and how well it predicted a text.


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """A greedy answer: its tokens, and by how much each was likelier than the next best, in nats.

    `leads` is None where the engine does not report it; one entry is None without a second candidate.
    """

    token_ids: tuple[int, ...]
    leads: tuple[float | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class AccuracyReading:
    """An engine's answers to fixed prompts and its log-probabilities of fixed passages.

    What the engine rejected is None, with the reason in another field.
    """

    model: str
    answers: tuple[GreedyAnswer, ...] | None
    passages: tuple[tuple[float, ...], ...] | None
    answers_rejected: str | None = None
    passages_rejected: str | None = None

    @property
    def perplexity(self) -> float | None:
        """The number of equally likely tokens that the engine's uncertainty equals, over all passages."""
        if self.passages is None:
            return None
        tokens = sum(map(len, self.passages))
        return exp(-sum(map(sum, self.passages)) / tokens)


NEAR_TIE_NATS = 0.25
"""Two candidates this close are a near-tie: scores in bfloat16 have steps of 0.125 where they are large."""
WINDOW_TOKENS = 16
"""Neighbouring tokens depend on each other, so they are resampled in windows of this many."""
RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class AnswerChange:
    """How the answers differ. Equal tokens and near-ties are over the answers that do differ."""

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
        """All of it as a sentence."""
        return f"{_answers_words(self.answers, self.answers_missing)}; {self.perplexity_sentence}"

    @property
    def perplexity_sentence(self) -> str:
        """The perplexity part as a sentence."""
        return _text_words(self.perplexity, self.perplexity_missing)


def price(off: AccuracyReading, on: AccuracyReading, rng: np.random.Generator) -> AccuracyPrice:
    """Compare two readings of the same prompts and passages."""
    answers_missing = off.answers_rejected or on.answers_rejected
    perplexity_missing = off.passages_rejected or on.passages_rejected or _unlike(off, on)
    answers = None if off.answers is None or on.answers is None else _answers(off.answers, on.answers)
    perplexity = None if perplexity_missing else _perplexity(off, on, rng)
    return AccuracyPrice(answers, perplexity, answers_missing, perplexity_missing)


def _answers(off: tuple[GreedyAnswer, ...], on: tuple[GreedyAnswer, ...]) -> AnswerChange:
    if len(off) != len(on) or not off:
        raise MeasurementError(
            f"{len(off)} answers cannot be compared with {len(on)}", hint="read both with the same prompts"
        )
    beginnings = [(one, _equal_tokens(one, other)) for one, other in zip(off, on, strict=True)]
    changes = [(one, tokens) for one, tokens in beginnings if tokens is not None]
    leads = [_lead_at(one, tokens) for one, tokens in changes]
    known = [lead for lead in leads if lead is not None]
    return AnswerChange(
        asked=len(off),
        equal=len(off) - len(changes),
        equal_tokens_median=median(tokens for _, tokens in changes) if changes else None,
        near_ties=sum(lead <= NEAR_TIE_NATS for lead in known) if len(known) == len(changes) else None,
    )


def _equal_tokens(one: GreedyAnswer, other: GreedyAnswer) -> int | None:
    """How many tokens two answers have in common at their beginning, None if they are equal."""
    if one.token_ids == other.token_ids:
        return None
    pairs = zip(one.token_ids, other.token_ids, strict=False)
    shorter = min(len(one.token_ids), len(other.token_ids))
    return next((place for place, (left, right) in enumerate(pairs) if left != right), shorter)


def _lead_at(answer: GreedyAnswer, place: int) -> float | None:
    """By how much the token there was likelier than the next best; None if the engine did not report it."""
    return answer.leads[place] if answer.leads is not None and place < len(answer.leads) else None


def _unlike(off: AccuracyReading, on: AccuracyReading) -> str | None:
    if off.passages is None or on.passages is None:
        return "the text was not read"
    if list(map(len, off.passages)) != list(map(len, on.passages)):
        return "the engines tokenize the text differently, so that perplexities cannot be compared"
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
    """How far the mean may be off on other text of this kind; None for too little text.

    Windows are drawn in blocks of neighbours, as a lever may affect one passage more than another. Few blocks
    vary less than new text would; Student's t and the factor beside it compensate for that.
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
    ties = change.near_ties
    return words if ties is None else f"{words}, {ties} of them diverging at a near-tie"


def _text_words(change: PerplexityChange | None, missing: str | None) -> str:
    if change is None:
        return f"perplexity not compared: {missing}"
    words = f"perplexity {change.off:.3g} -> {change.on:.3g}"
    if change.ratio == 1.0:
        return f"{words} (no token's probability differs)"
    spread = change.interval
    reach = "" if spread is None else f", {spread.low - 1:+.1%} to {spread.high - 1:+.1%}"
    return f"{words} ({change.ratio - 1:+.1%}{reach})"
