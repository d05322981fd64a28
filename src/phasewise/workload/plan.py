"""The plan of a run: a frozen list of requests with their times, made from a specification and a seed.

Nothing here is sent or measured; the load generator works the list off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, takewhile
from math import ceil
from random import Random
from typing import Self

from phasewise.errors import ConfigError
from phasewise.workload.arrivals import ClosedLoop, Load, OpenLoop, arrival_times_s
from phasewise.workload.presets import Shape
from phasewise.workload.prompts import Message, resized, write_messages, write_text

CONTEXT_TOKENS = 8192
"""The context that is assumed where the engine does not tell its own."""
CONTEXT_MARGIN_TOKENS = 64
"""Kept free of prompt and output: a prompt's length is a guess until it is tokenized."""
SLOT_RATE_PER_S = 4.0
"""How many requests per second a closed loop's slot is given for a run limited by time alone,"""
PLAN_LIMIT = 20_000
"""and how many requests a plan may hold at all: their text lies in memory."""


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """What to plan: sizes, load, and where to end, by count or by time or whichever comes first."""

    source: Shape
    load: Load
    requests: int | None = None
    duration_s: float | None = None
    context_tokens: int = CONTEXT_TOKENS

    def __post_init__(self) -> None:
        if self.requests is None and self.duration_s is None:
            raise ConfigError("a run without an end", hint="give a number of requests or a duration")
        if self.requests is not None and not 1 <= self.requests <= PLAN_LIMIT:
            raise ConfigError(f"{self.requests} requests", hint=f"use 1 to {PLAN_LIMIT}")
        if self.duration_s is not None and self.duration_s <= 0:
            raise ConfigError(f"a duration of {self.duration_s:g} s", hint="use one above 0")


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to be sent: at a time (open loop), or when a slot is free (`at_s` is None).

    A later turn of a conversation has `turn` above 0. Its `messages` are the new user message alone, to be
    put behind the history with the engine's real replies; it is due `think_s` after the reply before it
    ended, and its `prompt_tokens` are an estimate of the whole.
    """

    index: int
    at_s: float | None
    messages: tuple[Message, ...]
    max_tokens: int
    prompt_tokens: int
    shared_prefix: str | None = None
    conversation: int | None = None
    turn: int = 0
    think_s: float = 0.0


Thread = tuple[PlannedRequest, ...]
"""A conversation's turns, each sent after the reply to the one before; a single request is one turn."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Threads in the order they are to be begun. Not everything is sent: a run may end by time first.

    `exact_prompts` says that the engine's own tokenizer counted every prompt that is known beforehand.
    """

    threads: tuple[Thread, ...]
    load: Load
    duration_s: float | None
    exact_prompts: bool = False
    left_out: int = 0

    @classmethod
    def of_singles(
        cls, requests: Iterable[PlannedRequest], load: Load, duration_s: float | None = None
    ) -> Self:
        """A plan of requests that have nothing to do with each other."""
        return cls(tuple((planned,) for planned in requests), load, duration_s)

    @property
    def requests(self) -> tuple[PlannedRequest, ...]:
        """Every request of every thread, by index."""
        return tuple(chain.from_iterable(self.threads))


def make_plan(spec: PlanSpec, rng: Random) -> Plan:
    """Plan a run. The same specification and seed give the same plan; another load keeps the prompts."""
    # One source each: how many numbers one of them draws does not change the others.
    times_rng, sizes_rng, words_rng = (Random(rng.getrandbits(64)) for _ in range(3))  # noqa: S311 - no secrets
    shape = fitted(spec.source, spec.context_tokens)
    shared = write_text(shape.shared_prefix_tokens, words_rng) if shape.shared_prefix_tokens else None
    requests = []
    for index, at_s in enumerate(_times_s(spec, times_rng)):
        prompt_tokens, max_tokens = shape.prompt.draw(sizes_rng), shape.output.draw(sizes_rng)
        # Drawn in any case, so that the sizes do not depend on whether a prefix is shared.
        shares = sizes_rng.random() < shape.shared_share and shared is not None
        requests.append(
            PlannedRequest(
                index=index,
                at_s=at_s,
                messages=write_messages(prompt_tokens, shared if shares else None, words_rng),
                max_tokens=max_tokens,
                prompt_tokens=prompt_tokens,
                shared_prefix="shared-0" if shares else None,
            )
        )
    return Plan.of_singles(requests, spec.load, spec.duration_s)


def fitted(shape: Shape, context_tokens: int) -> Shape:
    """The shape cut to a context: prompts give way to outputs. What was asked for exactly is refused."""
    room = context_tokens - CONTEXT_MARGIN_TOKENS - shape.output.high_tokens
    exact = shape.prompt.spread == 0
    if room < shape.prompt.low_tokens or (exact and room < shape.prompt.high_tokens):
        raise ConfigError(
            f"prompts of {shape.prompt.low_tokens} and outputs of up to {shape.output.high_tokens} tokens "
            f"do not fit a context of {context_tokens}",
            hint="lower --prompt-tokens or --output-tokens",
        )
    return replace(shape, prompt=shape.prompt.capped(room))


def refitted(planned: PlannedRequest, counted_tokens: int, rng: Random) -> PlannedRequest:
    """The request with its last message made longer or shorter by what a tokenizer says it is off."""
    *earlier, last = planned.messages
    text = resized(last.content, planned.prompt_tokens - counted_tokens, rng)
    return replace(planned, messages=(*earlier, Message(last.role, text)))


def _times_s(spec: PlanSpec, rng: Random) -> Iterator[float | None]:
    if isinstance(spec.load, ClosedLoop):
        return iter([None] * _closed_loop_requests(spec, spec.load))
    return islice(_open_loop_times_s(spec.load, spec.duration_s, rng), spec.requests or PLAN_LIMIT)


def _open_loop_times_s(loop: OpenLoop, duration_s: float | None, rng: Random) -> Iterator[float]:
    times_s = arrival_times_s(loop, rng)
    return times_s if duration_s is None else takewhile(lambda at_s: at_s < duration_s, times_s)


def _closed_loop_requests(spec: PlanSpec, loop: ClosedLoop) -> int:
    if spec.requests is not None:
        return spec.requests
    per_slot = ceil((spec.duration_s or 0.0) * SLOT_RATE_PER_S)
    return min(max(per_slot, 1) * loop.concurrency, PLAN_LIMIT)
