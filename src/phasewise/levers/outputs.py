"""Puts the answers of two engines side by side, for the table; each is asked the same, and that once.

Reading them is accuracy.py's, comparing them accuracy_price.py's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import numpy as np

from phasewise.errors import PhasewiseError
from phasewise.levers.accuracy import read_accuracy
from phasewise.levers.accuracy_price import AccuracyPrice, price
from phasewise.levers.accuracy_reading import AccuracyReading
from phasewise.levers.agenda import Effort
from phasewise.levers.catalogue import Case, EngineSpec
from phasewise.levers.held_out_text import PASSAGES
from phasewise.levers.probes import Probe, probe_of
from phasewise.levers.results import Outputs
from phasewise.levers.streamed_answers import streamed_answers

Read = Callable[[str, Probe, int, bool], Awaitable[AccuracyReading]]
"""Asks an address a probe's questions for so many tokens, and reads the held-out text there if so wanted."""
Stream = Callable[[str, Probe, int], Awaitable[tuple[str, ...]]]


async def _read(url: str, probe: Probe, tokens: int, with_text: bool) -> AccuracyReading:
    return await read_accuracy(url, probe, passages=PASSAGES if with_text else (), answer_tokens=tokens)


@dataclass(slots=True)
class OutputReader:
    """Reads and compares; `seed` fixes the resampling behind the interval."""

    seed: int
    read: Read = _read
    stream: Stream = streamed_answers
    _readings: dict[tuple[EngineSpec, str, Probe], AccuracyReading] = field(default_factory=dict)
    _texts: dict[tuple[EngineSpec, str], AccuracyReading] = field(default_factory=dict)

    async def compare(self, case: Case, off_url: str, on_url: str, effort: Effort) -> Outputs:
        """What switching the lever on does to the answers; why that is not known, where it is not."""
        probe = probe_of(case.lever, effort.answer_prompts)
        try:
            off = await self._reading(case.off, off_url, probe, effort.answer_tokens)
            on = await self._reading(case.on, on_url, probe, effort.answer_tokens)
            paid = price(off, on, np.random.default_rng(self.seed))
            if paid.answers is not None:
                return outputs_of(paid)
            # A stand-in for an engine streams text and no more: then that has to do.
            before, after = [await self.stream(url, probe, effort.answer_tokens) for url in (off_url, on_url)]
        except PhasewiseError as error:
            return Outputs(reason=error.message)
        return _streamed_outputs(before, after, paid)

    async def _reading(self, spec: EngineSpec, url: str, probe: Probe, tokens: int) -> AccuracyReading:
        # An address alone does not do: another engine may take it over from one that was stopped.
        engine, asked = (spec, url), (spec, url, probe)
        if asked not in self._readings:
            answers = await self.read(url, probe, tokens, engine not in self._texts)
            # The text does not hang on the questions: it is read with an engine's first ones.
            text = self._texts.setdefault(engine, answers)
            self._readings[asked] = replace(
                answers, passages=text.passages, passages_refused=text.passages_refused
            )
        return self._readings[asked]


def _streamed_outputs(off: tuple[str, ...], on: tuple[str, ...], paid: AccuracyPrice) -> Outputs:
    equal = sum(map(str.__eq__, off, on))
    text = "" if paid.perplexity is None else f"; {paid.perplexity_sentence}"
    sentence = f"{equal} of {len(off)} streamed answers equal{text}"
    reason = paid.perplexity_missing or ""
    told = {"answers": len(off), "equal": equal, "sentence": sentence, "reason": reason}
    return outputs_of(paid).model_copy(update=told)


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
        reason=paid.answers_missing or paid.perplexity_missing or "",
    )
