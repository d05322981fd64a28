"""What may be the cause of the lost time besides the load, and its neutral form in a replay of the window.

A setting without its limit, arrivals at independent times, prompts without their repeated text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from statistics import median

import numpy as np

from phasewise.diagnosis.finding import Cause, Phase
from phasewise.diagnosis.predict.replay import least_outstanding
from phasewise.diagnosis.predict.setup import Setup
from phasewise.diagnosis.predict.traffic import RecordedRequest, Traffic
from phasewise.diagnosis.predict.unnamed import Unnamed

MANY = 8
"""A limit is removed by a value this many times as large."""
SMALL_CHUNK, TYPICAL_CHUNK = 256, 1024
FEW_RUNNING = 64
FEW_HELD = 24
"""A KV cache that holds fewer typical requests than this is small."""
LONG_AGAIN = 3.0
"""A prompt that is this many times as long as the median is one of a few long ones."""

SLOWER, PER_PROMPT, IN_STRETCHES, STARVED = "slower", "per prompt", "in stretches", "starved"
LIMITS = frozenset({"cap", "kv"})
LEAST_OF_LIMIT = 0.3
"""Without a limit, requests wait less and slow each other down more: both phases count."""

Change = Callable[[Setup, Traffic], tuple[Setup, Traffic]]


@dataclass(frozen=True, slots=True)
class Hints:
    """What else is known of the window.

    `repeated` is why text is computed again, and its share of the computed prompt tokens. `bursty` says that
    requests come together. `unnamed` is what steps have that no rule has a name for. `engines` could have
    served them, even if some had none. Steps waited for a core in a share `starved` of their time.
    """

    repeated: tuple[Cause, float] | None = None
    bursty: bool = False
    unnamed: Unnamed = Unnamed()  # noqa: RUF009 - frozen
    window_s: float = 0.0
    ended_unix_s: float = inf
    engines: int = 1
    starved: float = 0.0


@dataclass(frozen=True, slots=True)
class Suspect:
    """Something that may be removed, and its name in each phase; None if no rule has one."""

    neutral: Change
    start: Cause | None
    stream: Cause | None

    def named(self, phase: Phase) -> Cause | None:
        """Its name in this phase."""
        return self.start if phase is Phase.START else self.stream


def suspects_of(setup: Setup, traffic: Traffic, hints: Hints) -> dict[str, Suspect]:
    """What may be the cause besides the load."""
    shape = setup.shape
    found = {"long": Suspect(_without_long, Cause.LONG_PROMPTS, Cause.CHUNKS_STALL)}
    if shape.max_num_seqs < FEW_RUNNING:
        found["cap"] = Suspect(_uncapped, Cause.BATCH_CAP_LOW, Cause.BATCH_CAP_LOW)
    each = median(it.prompt_tokens + it.output_tokens for it in traffic.requests)
    if shape.total_blocks * shape.block_size < FEW_HELD * each:
        found["kv"] = Suspect(_roomy, Cause.KV_EXHAUSTED, Cause.KV_EXHAUSTED)
    if shape.max_num_batched_tokens < SMALL_CHUNK:
        larger = chunks_of(TYPICAL_CHUNK)
        found[f"chunk {TYPICAL_CHUNK}"] = Suspect(larger, Cause.CHUNKS_SMALL, Cause.CHUNKS_SMALL)
    if hints.bursty:
        found["bursts"] = Suspect(_by_chance(hints.window_s), Cause.BURSTS, Cause.BURSTS)
    if hints.engines > 1:
        found["uneven"] = Suspect(_balanced(hints.engines), Cause.UNEVEN_LOAD, Cause.UNEVEN_LOAD)
    if hints.repeated is not None:
        cause, share = hints.repeated
        found["repeated"] = Suspect(_once(share), cause, cause)
    unnamed = {
        SLOWER: hints.unnamed.slower > 1.0,
        PER_PROMPT: hints.unnamed.per_prompt_s > 0.0,
        IN_STRETCHES: hints.unnamed.in_stretches > 0.0,
    }
    found |= {name: Suspect(_as_it_is, None, None) for name, is_there in unnamed.items() if is_there}
    if hints.starved > 0.0:
        found[STARVED] = Suspect(_as_it_is, Cause.ENGINE_STARVED, Cause.ENGINE_STARVED)
    return found


def _as_it_is(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
    return setup, traffic


def running_at_most(running: int) -> Change:
    """With this cap on the requests that run at once."""

    def change(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
        within = min(running, setup.shape.max_num_batched_tokens)
        return replace(setup, shape=replace(setup.shape, max_num_seqs=within), most_running=running), traffic

    return change


def _uncapped(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
    return running_at_most(max(256, MANY * setup.shape.max_num_seqs))(setup, traffic)


def _roomy(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
    return replace(setup, shape=replace(setup.shape, total_blocks=MANY * setup.shape.total_blocks)), traffic


def chunks_of(tokens: int) -> Change:
    """With prompts in chunks of so many tokens."""

    def change(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
        running = min(setup.most_running or setup.shape.max_num_seqs, tokens)
        shape = replace(setup.shape, max_num_batched_tokens=tokens, max_num_seqs=running)
        return replace(setup, shape=shape), traffic

    return change


def _by_chance(window_s: float) -> Change:
    """The same requests at independent times within the window."""

    def change(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
        requests = traffic.requests
        span_s = max(window_s, requests[-1].came_s - requests[0].came_s)
        # A fixed seed: the same window gives the same verdict.
        drawn = np.random.default_rng(0).uniform(0.0, span_s, len(requests))
        times = sorted(requests[0].came_s + float(at_s) for at_s in drawn)
        return setup, with_requests(traffic, map(moved, requests, times))

    return change


def _without_long(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
    usual = round(median(it.prompt_tokens for it in traffic.requests))
    return setup, with_requests(
        traffic,
        (_shortened(it, usual) if it.prompt_tokens > LONG_AGAIN * usual else it for it in traffic.requests),
    )


def _once(share: float) -> Change:
    def change(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
        return setup, with_requests(
            traffic,
            (
                _shortened(it, it.prompt_tokens - round(share * max(0, it.prompt_tokens - it.cached_tokens)))
                for it in traffic.requests
            ),
        )

    return change


def _balanced(engines: int) -> Change:
    def change(setup: Setup, traffic: Traffic) -> tuple[Setup, Traffic]:
        even = least_outstanding(traffic, engines)
        return replace(setup, engines=len(even.engines)), even

    return change


def with_requests(traffic: Traffic, requests: Iterable[RecordedRequest]) -> Traffic:
    """The same traffic with other requests."""
    return replace(traffic, requests=tuple(requests))


def moved(request: RecordedRequest, came_s: float) -> RecordedRequest:
    """The same request at another time."""
    return replace(request, came_s=came_s, went_s=came_s + request.went_s - request.came_s)


def _shortened(request: RecordedRequest, tokens: int) -> RecordedRequest:
    """The beginning of the same prompt."""
    tokens = max(1, tokens)
    part = tokens / request.prompt_tokens
    kept = max(0, int(len(request.marks) * part))
    return replace(
        request,
        prompt_tokens=tokens,
        cached_tokens=min(request.cached_tokens, tokens),
        prompt_bytes=round(request.prompt_bytes * part),
        marks=request.marks[:kept],
    )
