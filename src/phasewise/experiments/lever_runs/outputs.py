"""Compares the answers of two engines, for the table; each engine gets the same questions once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import numpy as np

from phasewise.clients.http_client import HttpClient
from phasewise.clients.sse import EventSplitter, content_text
from phasewise.core.errors import MeasurementError, PhasewiseError
from phasewise.core.request import Endpoint
from phasewise.experiments.lever_runs.accuracy import read_accuracy
from phasewise.experiments.levers.accuracy_price import AccuracyPrice, AccuracyReading, price
from phasewise.experiments.levers.agenda import Effort
from phasewise.experiments.levers.catalogue import Case, EngineSpec
from phasewise.experiments.levers.held_out_text import PASSAGES, Probe, probe_of
from phasewise.experiments.levers.results import Outputs
from phasewise.loadgen.recording import request_body
from phasewise.loadgen.target import Target, find_target
from phasewise.loadgen.workload.prompts import Message

# --- Greedy answers as text, from servers that stream but return no token ids.


async def streamed_answers(url: str, probe: Probe, tokens: int) -> tuple[str, ...]:
    """Ask every prompt of the probe."""
    client = HttpClient(url)
    try:
        target = await find_target(client)
        return await probe.ask(lambda prompt: _answer(client, target, prompt, tokens))
    finally:
        client.close()


async def _answer(client: HttpClient, target: Target, prompt: str, tokens: int) -> str:
    body = request_body(target.model, (Message("user", prompt),), tokens, fixed=False)
    reply = await client.fetch("POST", Endpoint.CHAT, headers=target.headers, body=body)
    if reply.status != 200:
        raise MeasurementError(
            f"the engine does not stream an answer (HTTP {reply.status})", hint="its own log says why"
        )
    return "".join(map(content_text, EventSplitter().feed(reply.body)))


Read = Callable[[str, Probe, int, bool], Awaitable[AccuracyReading]]
"""Asks an address a probe's questions for this many tokens, and reads the held-out text if requested."""
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
        """What switching the lever on does to the answers, or why that is unknown."""
        probe = probe_of(case.lever, effort.answer_prompts)
        try:
            off = await self._reading(case.off, off_url, probe, effort.answer_tokens)
            on = await self._reading(case.on, on_url, probe, effort.answer_tokens)
            paid = price(off, on, np.random.default_rng(self.seed))
            if paid.answers is not None:
                return outputs_of(paid)
            # A stand-in for an engine only streams text, so text is compared.
            before, after = [await self.stream(url, probe, effort.answer_tokens) for url in (off_url, on_url)]
        except PhasewiseError as error:
            return Outputs(reason=error.message)
        return _streamed_outputs(before, after, paid)

    async def _reading(self, spec: EngineSpec, url: str, probe: Probe, tokens: int) -> AccuracyReading:
        # Not by address alone: another engine may reuse the address of one that was stopped.
        engine, asked = (spec, url), (spec, url, probe)
        if asked not in self._readings:
            answers = await self.read(url, probe, tokens, engine not in self._texts)
            # The text does not depend on the questions: it is read with an engine's first ones.
            text = self._texts.setdefault(engine, answers)
            self._readings[asked] = replace(
                answers, passages=text.passages, passages_rejected=text.passages_rejected
            )
        return self._readings[asked]


def _streamed_outputs(off: tuple[str, ...], on: tuple[str, ...], paid: AccuracyPrice) -> Outputs:
    equal = sum(map(str.__eq__, off, on))
    text = "" if paid.perplexity is None else f"; {paid.perplexity_sentence}"
    sentence = f"{equal} of {len(off)} streamed answers equal{text}"
    reason = paid.perplexity_missing or ""
    reported = {"answers": len(off), "equal": equal, "sentence": sentence, "reason": reason}
    return outputs_of(paid).model_copy(update=reported)


def outputs_of(paid: AccuracyPrice) -> Outputs:
    """A price in the form of the results file."""
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
