"""Puts the answers of two engines side by side, for the table; each engine is read once.

Reading them is accuracy.py's, comparing them accuracy_price.py's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from phasewise.errors import PhasewiseError
from phasewise.levers.accuracy import read_accuracy
from phasewise.levers.accuracy_price import AccuracyPrice, price
from phasewise.levers.accuracy_reading import AccuracyReading
from phasewise.levers.agenda import Effort
from phasewise.levers.held_out_text import PROMPTS
from phasewise.levers.results import Outputs
from phasewise.levers.streamed_answers import streamed_answers

Read = Callable[[str, Effort], Awaitable[AccuracyReading]]


async def _read(url: str, effort: Effort) -> AccuracyReading:
    return await read_accuracy(
        url, prompts=PROMPTS[: effort.answer_prompts], answer_tokens=effort.answer_tokens
    )


@dataclass(slots=True)
class OutputReader:
    """Reads and compares; `seed` fixes the resampling behind the interval."""

    seed: int
    read: Read = _read
    stream: Callable[[str, Sequence[str], int], Awaitable[tuple[str, ...]]] = streamed_answers
    _readings: dict[str, AccuracyReading] = field(default_factory=dict)

    async def compare(self, off_url: str, on_url: str, effort: Effort) -> Outputs:
        """What switching the lever on does to the answers; why that is not known, where it is not."""
        try:
            off, on = [await self._reading(url, effort) for url in (off_url, on_url)]
        except PhasewiseError as error:
            return Outputs(reason=error.message)
        if off.answers is None or on.answers is None:
            return await self._compare_texts(off_url, on_url, effort)
        return outputs_of(price(off, on, np.random.default_rng(self.seed)))

    async def _compare_texts(self, off_url: str, on_url: str, effort: Effort) -> Outputs:
        """A stand-in for an engine streams text and no more: then that has to do."""
        try:
            off, on = [
                await self.stream(url, PROMPTS[: effort.answer_prompts], effort.answer_tokens)
                for url in (off_url, on_url)
            ]
        except PhasewiseError as error:
            return Outputs(reason=error.message)
        equal = sum(map(str.__eq__, off, on))
        return Outputs(
            answers=len(off), equal=equal, sentence=f"{equal} of {len(off)} streamed answers equal"
        )

    async def _reading(self, url: str, effort: Effort) -> AccuracyReading:
        if url not in self._readings:
            self._readings[url] = await self.read(url, effort)
        return self._readings[url]


def outputs_of(paid: AccuracyPrice) -> Outputs:
    """A price in the form that results keep."""
    answers, text = paid.answers, paid.perplexity
    interval = None if text is None else text.interval
    return Outputs(
        answers=0 if answers is None else answers.asked,
        equal=0 if answers is None else answers.equal,
        perplexity_off=None if text is None else text.off,
        perplexity_on=None if text is None else text.on,
        perplexity_change=None if text is None else text.ratio - 1,
        low=None if interval is None else interval.low - 1,
        high=None if interval is None else interval.high - 1,
        sentence=paid.sentence,
        reason=paid.answers_missing or "",
    )
