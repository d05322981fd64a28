"""What each phase of a request would take on each worker, and each way to serve it, in seconds.

Pure arithmetic over one request and the candidates' loads; which way is taken is split.py's. Every placement
prices every worker, so what a record needs is only made of the few ways that are kept.
"""

from __future__ import annotations

from typing import NamedTuple

from phasewise.costs.pace import EnginePace
from phasewise.costs.reading_shares import Reading
from phasewise.model.decision import Candidate, Option, Terms
from phasewise.model.worker import Role

MOST_READING = 0.8
"""No share of time is taken to be higher: something is always written."""


class Size(NamedTuple):
    """How long a request's prompt and answer are taken to be."""

    prompt_tokens: int
    output_tokens: int


class Priced(NamedTuple):
    """Both phases on one worker.

    `wait_s` and `prefill_s` are the request's own time to have its prompt read there, `stalled_s` is what
    that takes from the worker's streams and from prompts that come meanwhile, and `read_cost_s` all three;
    likewise `decode_s` and `taken_s` of writing there make up `write_cost_s`.
    """

    candidate: Candidate
    pace: EnginePace
    cached_tokens: int
    wait_s: float
    prefill_s: float
    stalled_s: float
    read_cost_s: float
    decode_s: float
    taken_s: float
    write_cost_s: float


class Way(NamedTuple):
    """One way to serve a request: all of it on `worker`, or its prefill on `prefill`."""

    cost_s: float
    worker: Priced
    prefill: Priced | None = None


def price(
    load: Candidate, pace: EnginePace, cached_tokens: int, lately: Reading, read_ahead: float, size: Size
) -> Priced:
    """What each phase would take here. Reading holds every stream of the worker up while it lasts.

    The worker is to read for `read_ahead` of its time from now on.
    """
    streams, reads = load.streams, load.worker.role is Role.PREFILL
    wait_s = unread_s(load, pace) if load.unread_tokens else 0.0
    prefill_s = pace.read_s(size.prompt_tokens, cached_tokens)
    stalled_s = streams * prefill_s
    if not reads:
        # Prompts that come to it meanwhile wait for half of that on average, and others behind them as long
        # again. Those that come to a prefill worker are long, and may be read elsewhere by their own prices.
        stalled_s += lately.prompts_per_s * prefill_s * prefill_s
    # Answers that are about to begin will share its steps as well as those under way.
    beside = streams if reads else load.outstanding_requests
    steps = size.output_tokens - 1
    undisturbed_s = steps * (pace.step_s + pace.step_s_per_stream * (beside + 1))
    decode_s = undisturbed_s * _stretch(lately.share)
    # It stands in the way of prompts that come: each has to hold it up or to be read elsewhere. That counts
    # as much as its own standing still, which benchmarks/split_decision.py found to be right.
    in_the_way_s = undisturbed_s * _stretch(2.0 * read_ahead) - decode_s
    taken_s = steps * pace.step_s_per_stream * beside + (in_the_way_s if in_the_way_s > 0.0 else 0.0)
    return Priced(
        load,
        pace,
        cached_tokens,
        wait_s,
        prefill_s,
        stalled_s,
        wait_s + prefill_s + stalled_s,
        decode_s,
        taken_s,
        decode_s + taken_s,
    )


def _stretch(read_share: float) -> float:
    """How many times as long an answer takes that stands still for this share of the time."""
    return 1.0 / (1.0 - (read_share if read_share < MOST_READING else MOST_READING))


def unread_s(load: Candidate, pace: EnginePace) -> float:
    """How long the prompts that a worker was given will keep it, of which one is half done on average."""
    prompts = max(1, load.unread_requests)
    return (prompts - 0.5) * pace.read_s(load.unread_tokens / prompts)


def hand_over_s(reader: Priced, writer: Priced, size: Size) -> float:
    """From the prompt's end on one worker to the first token on another, which fetches what it lacks.

    What the writer still reads by then holds up the step that gives the first token.
    """
    still_s = writer.wait_s - reader.wait_s - reader.prefill_s
    lacking_tokens = size.prompt_tokens - writer.cached_tokens
    taken_s = writer.pace.fetch_s(lacking_tokens) + writer.pace.token_s(writer.candidate.streams + 1)
    return taken_s + still_s if still_s > 0.0 else taken_s


def taken_from_others_s(way: Way) -> float:
    """What a way costs that is not the request's own time."""
    return (way.prefill or way.worker).stalled_s + way.worker.taken_s


def option_of(way: Way, size: Size) -> Option:
    """What a record keeps of a way."""
    reader = way.prefill or way.worker
    handing_s = 0.0 if way.prefill is None else hand_over_s(way.prefill, way.worker, size)
    return Option(
        way.worker.candidate.worker.ref,
        None if way.prefill is None else way.prefill.candidate.worker.ref,
        Terms(reader.wait_s, reader.prefill_s, handing_s, way.worker.decode_s, taken_from_others_s(way)),
        size.prompt_tokens,
        reader.cached_tokens,
    )
