"""The plan of a run: a frozen list of requests with their times, made from a specification and a seed.

Nothing here is sent or measured; the load generator works the list off. What a request asks is drafted from
a shape, a trace or written prompts elsewhere; here it gets its number, its time and its thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat, takewhile
from math import ceil, floor
from random import Random
from typing import Self

from phasewise.errors import ConfigError
from phasewise.workload.adjustments import ContextCut, Fit
from phasewise.workload.arrivals import ClosedLoop, Load, OpenLoop, Replay, arrival_times_s
from phasewise.workload.conversations import Conversations, later_turns
from phasewise.workload.drafts import (
    Draft,
    drafts_of_shape,
    drafts_of_trace,
    drafts_of_written,
    written_tokens,
)
from phasewise.workload.presets import Shape
from phasewise.workload.prompts import TEMPLATE_TOKENS, Message, resized, word_count
from phasewise.workload.streams import stream
from phasewise.workload.traces import Trace, TracedRequest
from phasewise.workload.written import Written

CONTEXT_TOKENS = 8192
"""The context that is assumed where the engine does not tell its own."""
CONTEXT_MARGIN_TOKENS = 64
"""Kept free of prompt and output: a prompt's length is a guess until it is tokenized."""
SLOT_RATE_PER_S = 4.0
"""How many requests per second a closed loop's slot is given for a run limited by time alone,"""
PLAN_LIMIT = 20_000
"""and how many requests a plan may hold at all: their text lies in memory."""
PLAN_LIMIT_TOKENS = 64_000_000
"""Of a trace's long prompts fewer fit: so many words take some 350 MB."""


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """What to plan: sizes, load, and where to end, by count or by time or whichever comes first.

    A trace also ends by itself. It gives its times to a replay; any other load takes only its lengths and
    prefixes. `requests` counts every turn of a conversation, which only a shape can have.
    """

    source: Shape | Trace | Written
    load: Load
    requests: int | None = None
    duration_s: float | None = None
    context_tokens: int = CONTEXT_TOKENS
    conversations: Conversations | None = None

    def __post_init__(self) -> None:
        if self.requests is not None and not 1 <= self.requests <= PLAN_LIMIT:
            raise ConfigError(f"{self.requests} requests", hint=f"use 1 to {PLAN_LIMIT}")
        if self.duration_s is not None and not self.duration_s > 0:
            raise ConfigError(f"a duration of {self.duration_s:g} s", hint="use one above 0")
        if self.conversations is not None and not isinstance(self.source, Shape):
            named = f"the trace {self.source.name}" if isinstance(self.source, Trace) else "written prompts"
            raise ConfigError(
                f"conversations with {named}",
                hint="its requests stand for themselves: leave one of the two out",
            )
        if isinstance(self.source, Trace):
            return
        if isinstance(self.load, Replay):
            raise ConfigError("a replay without a trace", hint="give a trace, or a rate or concurrency")
        if self.requests is None and self.duration_s is None:
            raise ConfigError("a run without an end", hint="give a number of requests or a duration")
        if isinstance(self.load, OpenLoop) and self.requests is None and self.duration_s is not None:
            self._check_arrivals(self.load, self.duration_s)

    def _check_arrivals(self, load: OpenLoop, duration_s: float) -> None:
        turns = 1 if self.conversations is None else self.conversations.turns
        per_s = load.rate_per_s * turns
        if per_s * duration_s > PLAN_LIMIT:
            what = "requests" if turns == 1 else f"conversations of {turns} turns"
            raise ConfigError(
                f"{load.rate_per_s:g} {what} per second for {duration_s:g} s are more than the {PLAN_LIMIT} "
                "requests that a plan may hold",
                hint=f"use a duration of at most {floor(PLAN_LIMIT / per_s)} s, or a lower rate",
            )


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to be sent: at a time (open loop), or when a slot is free (`at_s` is None).

    A later turn of a conversation has `turn` above 0. Its `messages` are the new user message alone, to be
    put behind the history with the engine's real replies; it is due `think_s` after the reply before it
    ended, and its `prompt_tokens` are an estimate of the whole.

    The first `shared_words` of the messages stand at the beginning of an earlier request too. The first
    `kept_words` of the last message belong to blocks that others may share: fitting leaves them alone. Of a
    request `as_written` it leaves all alone: that is as long as it is.
    """

    index: int
    at_s: float | None
    messages: tuple[Message, ...]
    max_tokens: int
    prompt_tokens: int
    turn: int = 0
    think_s: float = 0.0
    shared_words: int = 0
    kept_words: int = 0
    as_written: bool = False

    @property
    def fresh_words(self) -> int:
        """Words that no earlier request of the plan had in this place.

        A word is one token or more: of a prompt of n tokens, n less these can come from a cache that was
        filled by this run alone.
        """
        return max(sum(word_count(message.content) for message in self.messages) - self.shared_words, 0)


Thread = tuple[PlannedRequest, ...]
"""A conversation's turns, each sent after the reply to the one before; a single request is one turn."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Threads in the order they are to be begun. Not everything is sent: a run may end by time first.

    `fit` says how first prompts came out that the engine's own tokenizer counted; without one nobody was
    asked, or nobody answered. `left_out` of a trace's requests were passed over because they do not fit the
    context, and `full` says that more was due than a plan may hold. `shape` is what prompts and outputs were
    drawn from, and `cut` what it was before it was cut to the context, if it was.
    """

    threads: tuple[Thread, ...]
    load: Load
    duration_s: float | None
    fit: Fit | None = None
    left_out: int = 0
    full: bool = False
    shape: Shape | None = None
    cut: ContextCut | None = None

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

    @property
    def exact_prompts(self) -> bool:
        """Whether every thread's first prompt is as long as planned by the engine's own count."""
        return self.fit is not None and self.fit.off == 0 and self.fit.counted == len(self.threads)


def make_plan(spec: PlanSpec, rng: Random, opening: str = "") -> Plan:
    """Plan a run. The same specification and seed give the same plan; another load keeps the prompts.

    An `opening` takes the place of every first message's first words. Times, lengths and all other words
    stay, what prompts share they still share, but nothing fits what a run with another opening left in a
    cache.
    """
    seed = rng.getrandbits(64)
    if isinstance(spec.source, Trace):
        return _plan_trace(spec, spec.source, seed, opening)
    if isinstance(spec.source, Written):
        return _plan_written(spec, spec.source, seed, opening)
    return _plan_shape(spec, spec.source, seed, opening)


def fitted(shape: Shape, context_tokens: int) -> Shape:
    """The shape cut to a context: prompts give way to outputs. What was asked for exactly is refused."""
    room = context_tokens - CONTEXT_MARGIN_TOKENS - shape.output.high_tokens
    exact = shape.prompt.spread == 0
    if room < shape.prompt.low_tokens or (exact and room < shape.prompt.high_tokens):
        raise ConfigError(
            f"prompts of {shape.prompt.low_tokens} and outputs of up to {shape.output.high_tokens} tokens "
            f"do not fit a context of {context_tokens}",
            hint="lower --prompt-tokens, --shared-prefix-tokens or --output-tokens",
        )
    # A shared prefix longer than the longest prompt would push every one of them out of the context.
    longest_shared = max(room - TEMPLATE_TOKENS - 1, 0)
    return replace(
        shape,
        prompt=shape.prompt.capped(room),
        shared_prefix_tokens=min(shape.shared_prefix_tokens, longest_shared),
    )


def refitted(
    planned: PlannedRequest, counted_tokens: int, rng: Random, tokens_per_word: float = 1.0
) -> PlannedRequest:
    """The request with its last message made longer or shorter by what a tokenizer says it is off."""
    if planned.as_written:
        return planned
    *earlier, last = planned.messages
    off_by = planned.prompt_tokens - counted_tokens
    # Rounded up: what is off by a token is one word off.
    by_words = ceil(abs(off_by) / tokens_per_word) * (1 if off_by > 0 else -1)
    text = resized(last.content, by_words, rng, planned.kept_words)
    return replace(planned, messages=(*earlier, Message(last.role, text)))


def _plan_shape(spec: PlanSpec, asked: Shape, seed: int, opening: str) -> Plan:
    shape = fitted(asked, spec.context_tokens)
    threads: list[Thread] = []
    index, limit = 0, _most_requests(spec)
    for at_s, first in zip(_times_s(spec, seed), drafts_of_shape(shape, seed, opening), strict=False):
        turns = [first]
        if spec.conversations is not None:
            room_tokens = spec.context_tokens - CONTEXT_MARGIN_TOKENS
            turns_rng = stream(seed, "conversation", len(threads))
            turns += later_turns(spec.conversations, shape, first, room_tokens, turns_rng)
        threads.append(_thread(turns[: limit - index], index, at_s))
        index += len(threads[-1])
        if index == limit:
            break
    return Plan(
        tuple(threads),
        spec.load,
        spec.duration_s,
        full=spec.requests is None and index == PLAN_LIMIT,
        shape=shape,
        cut=None if shape == asked else ContextCut(asked, spec.context_tokens),
    )


def _plan_trace(spec: PlanSpec, trace: Trace, seed: int, opening: str) -> Plan:
    times_s, taken = _timed_requests(spec, trace, seed)
    if not taken.requests:
        raise ConfigError(
            f"none of the {taken.left_out} requests of the trace {trace.name} fits a context of "
            f"{spec.context_tokens} tokens",
            hint="take another trace, or an engine with a larger --max-model-len",
        )
    if sum(request.prompt_tokens for request in taken.requests) > PLAN_LIMIT_TOKENS:
        raise ConfigError(
            f"{len(taken.requests)} requests of the trace {trace.name} come to more than {PLAN_LIMIT_TOKENS} "
            "tokens",
            hint="plan fewer of them",
        )
    drafts = drafts_of_trace(trace, taken.requests, seed, opening)
    threads = (
        _thread([draft], index, at_s)
        for index, (at_s, draft) in enumerate(zip(times_s, drafts, strict=False))
    )
    return Plan(
        tuple(threads),
        spec.load,
        spec.duration_s,
        left_out=taken.left_out,
        full=spec.requests is None and taken.goes_on and len(taken.requests) == PLAN_LIMIT,
    )


def _plan_written(spec: PlanSpec, written: Written, seed: int, opening: str) -> Plan:
    longest = max(map(written_tokens, written.prompts))
    if longest + written.output.high_tokens > spec.context_tokens - CONTEXT_MARGIN_TOKENS:
        raise ConfigError(
            f"a written prompt of about {longest} and outputs of up to {written.output.high_tokens} tokens "
            f"do not fit a context of {spec.context_tokens}",
            hint="take an engine with a larger --max-model-len",
        )
    times_s = islice(_times_s(spec, seed), _most_requests(spec))
    drafts = drafts_of_written(written, seed, opening)
    threads = tuple(
        _thread([draft], index, at_s)
        for index, (at_s, draft) in enumerate(zip(times_s, drafts, strict=False))
    )
    return Plan(
        threads,
        spec.load,
        spec.duration_s,
        full=spec.requests is None and len(threads) == PLAN_LIMIT,
    )


@dataclass(frozen=True, slots=True)
class _Taken:
    """A trace's requests up to a limit, how many between them do not fit, and whether others follow."""

    requests: list[TracedRequest]
    left_out: int
    goes_on: bool


def _timed_requests(spec: PlanSpec, trace: Trace, seed: int) -> tuple[list[float | None], _Taken]:
    """The trace's requests up to the plan's end, and times for at least as many."""
    if isinstance(spec.load, Replay):
        speed = spec.load.speed
        due = takewhile(lambda request: _is_due(spec, request.at_s / speed), trace.requests)
        taken = _fitting(due, spec.context_tokens, _most_requests(spec))
        return [request.at_s / speed for request in taken.requests], taken
    times_s = list(islice(_times_s(spec, seed), _most_requests(spec)))
    return times_s, _fitting(trace.requests, spec.context_tokens, len(times_s))


def _fitting(requests: Iterable[TracedRequest], context_tokens: int, limit: int) -> _Taken:
    taken: list[TracedRequest] = []
    left_out = 0
    for request in requests:
        if len(taken) == limit:
            return _Taken(taken, left_out, goes_on=True)
        if request.prompt_tokens + request.output_tokens > context_tokens - CONTEXT_MARGIN_TOKENS:
            left_out += 1
        else:
            taken.append(request)
    return _Taken(taken, left_out, goes_on=False)


def _thread(turns: list[Draft], index: int, at_s: float | None) -> Thread:
    return tuple(
        PlannedRequest(
            index=index + turn,
            at_s=at_s if turn == 0 else None,
            messages=draft.messages,
            max_tokens=draft.max_tokens,
            prompt_tokens=draft.prompt_tokens,
            turn=turn,
            think_s=draft.think_s,
            shared_words=draft.shared_words,
            kept_words=draft.kept_words,
            as_written=draft.as_written,
        )
        for turn, draft in enumerate(turns)
    )


def _times_s(spec: PlanSpec, seed: int) -> Iterator[float | None]:
    """When threads begin: an open loop's arrivals until the run's end, None without end for a closed one."""
    if not isinstance(spec.load, OpenLoop):
        return repeat(None)
    return takewhile(lambda at_s: _is_due(spec, at_s), arrival_times_s(spec.load, stream(seed, "times")))


def _is_due(spec: PlanSpec, at_s: float) -> bool:
    return spec.duration_s is None or at_s < spec.duration_s


def _most_requests(spec: PlanSpec) -> int:
    if spec.requests is not None:
        return spec.requests
    if not isinstance(spec.load, ClosedLoop) or spec.duration_s is None:
        return PLAN_LIMIT
    per_slot = ceil(min(spec.duration_s * SLOT_RATE_PER_S, PLAN_LIMIT))
    return min(max(per_slot, 1) * spec.load.concurrency, PLAN_LIMIT)
