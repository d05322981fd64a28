"""What each way to serve a request is expected to take, part by part, in seconds.

Pure arithmetic over one request and the candidates' loads; which way is taken is split.py's.
"""

from __future__ import annotations

from typing import NamedTuple

from phasewise.costs.pace import EnginePace
from phasewise.model.decision import Candidate, Option, Terms
from phasewise.model.worker import Role

MOST_READING = 0.8
"""No share of time is taken to be higher: something is always written."""


class Size(NamedTuple):
    """How long a request's prompt and answer are taken to be."""

    prompt_tokens: int
    output_tokens: int


class Way(NamedTuple):
    """One way to serve a request, and its price. `Option` is what a record keeps of it."""

    cost_s: float
    worker: Candidate
    prefill: Candidate | None
    cached_tokens: int
    wait_s: float
    prefill_s: float
    hand_over_s: float
    decode_s: float
    delay_s: float

    def option(self, size: Size) -> Option:
        """For the record."""
        prefill = None if self.prefill is None else self.prefill.worker.ref
        terms = Terms(self.wait_s, self.prefill_s, self.hand_over_s, self.decode_s, self.delay_s)
        return Option(self.worker.worker.ref, prefill, terms, size.prompt_tokens, self.cached_tokens)


class Known(NamedTuple):
    """A candidate, its pace, and what of the prompt it should hold.

    It has read for `reading_share` of its time, and is expected to read for `reading_ahead`.
    """

    candidate: Candidate
    pace: EnginePace
    cached_tokens: int
    reading_share: float
    reading_ahead: float


class Reading(NamedTuple):
    """The prompt computed on one worker."""

    cost_s: float
    by: Known
    wait_s: float
    prefill_s: float
    delay_s: float


def unread_s(known: Known) -> float:
    """How long the prompts that a worker was given will keep it, of which one is half done on average."""
    load = known.candidate
    if not load.unread_tokens:
        return 0.0
    prompts = max(1, load.outstanding_requests - load.streams)
    return (prompts - 0.5) * known.pace.read_s(load.unread_tokens / prompts)


def streams_beside(load: Candidate) -> int:
    """The answers that a new one will share its steps with: also those that are about to begin."""
    return load.streams if load.worker.role is Role.PREFILL else load.outstanding_requests


def reading(known: Known, size: Size) -> Reading:
    """Computing the prompt there: every stream on the worker stands still for as long."""
    wait_s = unread_s(known)
    prefill_s = known.pace.read_s(size.prompt_tokens, known.cached_tokens)
    delay_s = known.candidate.streams * prefill_s
    return Reading(wait_s + prefill_s + delay_s, known, wait_s, prefill_s, delay_s)


def _writing(known: Known, size: Size) -> tuple[float, float]:
    """Seconds to write the answer there, and what that takes from others.

    While prompts are read it stands still. And it stands in the way of those that come: each has to hold it
    up or to be read elsewhere. That is counted as much again; benchmarks/split_decision.py measures what for.
    """
    beside, steps = streams_beside(known.candidate), size.output_tokens - 1
    undisturbed_s = steps * known.pace.token_s(beside + 1)
    decode_s = undisturbed_s / (1.0 - min(known.reading_share, MOST_READING))
    in_the_way_s = undisturbed_s / (1.0 - min(2.0 * known.reading_ahead, MOST_READING)) - decode_s
    taken_s = steps * known.pace.step_s_per_stream * beside
    return decode_s, taken_s + max(0.0, in_the_way_s)


def whole_way(read: Reading, size: Size) -> Way:
    """Both phases on one worker."""
    decode_s, taken_s = _writing(read.by, size)
    return Way(
        read.cost_s + decode_s + taken_s,
        read.by.candidate,
        None,
        read.by.cached_tokens,
        read.wait_s,
        read.prefill_s,
        0.0,
        decode_s,
        read.delay_s + taken_s,
    )


def split_way(read: Reading, decoder: Known, size: Size) -> Way:
    """The prompt computed on one worker, the answer written on another, which fetches what it lacks."""
    load, pace = decoder.candidate, decoder.pace
    decode_s, taken_s = _writing(decoder, size)
    # What the decoder still reads when the KV is ready holds up its first step.
    still_s = max(0.0, unread_s(decoder) - read.wait_s - read.prefill_s)
    fetched_tokens = max(1, size.prompt_tokens - decoder.cached_tokens)
    hand_over_s = pace.fetch_s(fetched_tokens) + pace.token_s(load.streams + 1) + still_s
    return Way(
        read.cost_s + hand_over_s + decode_s + taken_s,
        load,
        read.by.candidate,
        read.by.cached_tokens,
        read.wait_s,
        read.prefill_s,
        hand_over_s,
        decode_s,
        read.delay_s + taken_s,
    )
