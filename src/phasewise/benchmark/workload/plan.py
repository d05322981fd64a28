"""The plan of a run: a frozen list of requests with their times, made from a specification and a seed.

Nothing is sent or measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat, takewhile
from math import ceil, floor
from random import Random
from typing import Self

from phasewise.benchmark.workload.arrivals import ClosedLoop, Load, OpenLoop, Replay, arrival_times_s
from phasewise.benchmark.workload.drafts import (
    Conversations,
    PlannedRequest,
    Written,
    drafts_of_shape,
    drafts_of_trace,
    drafts_of_written,
    later_turns,
    written_tokens,
)
from phasewise.benchmark.workload.presets import Shape
from phasewise.benchmark.workload.prompts import (
    A_WORD_A_TOKEN,
    TEMPLATE_TOKENS,
    Message,
    TextRuler,
    resized,
    stream,
)
from phasewise.benchmark.workload.traces import Trace, TracedRequest
from phasewise.core.errors import ConfigError, UsageError
from phasewise.core.units import bound

# --- What was changed in a plan between what was requested and what is sent, for the report.


@dataclass(frozen=True, slots=True)
class ContextCut:
    """The requested sizes of a shape that did not fit a context."""

    asked: Shape
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Fit:
    """How well first prompts match their planned length, by the engine's own tokenizer.

    The first `counted` threads of the plan were counted. Of those, `off` could not be made as long as
    planned, by `most_off_tokens` at most: the plan then takes their actual length.
    """

    counted: int
    off: int = 0
    most_off_tokens: int = 0


CONTEXT_TOKENS = 8192
"""The context that is assumed where the engine does not report its own."""
CONTEXT_MARGIN_TOKENS = 64
"""Kept free of prompt and output: a prompt's length is an estimate until it is tokenized."""
SLOT_RATE_PER_S = 4.0
"""The requests per second that are planned for a closed loop's slot in a run that is limited only by time."""
PLAN_LIMIT = 20_000
"""The most requests of a plan, because their text is in memory."""
PLAN_LIMIT_TOKENS = 64_000_000
"""The most prompt tokens of a plan of a trace: so many words take some 350 MB."""


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """What to plan: sizes, load, and where to end, by count or by time or whichever comes first.

    A trace also ends by itself. A replay uses its times; any other load uses only its lengths and prefixes.
    `requests` counts every turn of a conversation, which only a shape can have.
    """

    source: Shape | Trace | Written
    load: Load
    requests: int | None = None
    duration_s: float | None = None
    context_tokens: int = CONTEXT_TOKENS
    conversations: Conversations | None = None
    ruler: TextRuler = A_WORD_A_TOKEN

    def __post_init__(self) -> None:
        if self.requests is not None and not 1 <= self.requests <= PLAN_LIMIT:
            raise UsageError(f"the number of requests is {self.requests}", hint=f"use 1 to {PLAN_LIMIT}")
        if self.duration_s is not None and not self.duration_s > 0:
            raise UsageError(f"the duration is {bound(self.duration_s)}", hint="use one above 0")
        if self.conversations is not None and not isinstance(self.source, Shape):
            named = f"the trace {self.source.name}" if isinstance(self.source, Trace) else "written prompts"
            raise UsageError(
                f"conversations cannot be combined with {named}",
                hint="its requests are independent: leave one of the two out",
            )
        if isinstance(self.source, Trace):
            return
        if isinstance(self.load, Replay):
            raise UsageError("a replay needs a trace", hint="give a trace, or a rate or concurrency")
        if self.requests is None and self.duration_s is None:
            raise UsageError("the run has no end", hint="give --requests or --duration")
        if isinstance(self.load, OpenLoop) and self.requests is None and self.duration_s is not None:
            self._check_arrivals(self.load, self.duration_s)

    def _check_arrivals(self, load: OpenLoop, duration_s: float) -> None:
        turns = 1 if self.conversations is None else self.conversations.turns
        per_s = load.rate_per_s * turns
        if per_s * duration_s > PLAN_LIMIT:
            what = "requests" if turns == 1 else f"conversations of {turns} turns"
            raise UsageError(
                f"{load.rate_per_s:g} {what} per second for {duration_s:g} s are more than the {PLAN_LIMIT} "
                "requests that a plan may hold",
                hint=f"use a duration of at most {floor(PLAN_LIMIT / per_s)} s, or a lower rate",
            )


Thread = tuple[PlannedRequest, ...]
"""A conversation's turns, each sent after the reply to the one before; a single request is one turn."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Threads in the order of their start. A run may end by time before all of them are sent.

    `fit` says how well first prompts match their planned length by the engine's own tokenizer; None if there
    was no tokenizer. `left_out` requests of a trace do not fit the context, and `full` says that more were
    due than a plan may hold. `shape` is what prompts and outputs were drawn from, and `cut` its requested
    sizes if it was cut to the context.
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
        """A plan of independent requests."""
        return cls(tuple((planned,) for planned in requests), load, duration_s)

    @property
    def requests(self) -> tuple[PlannedRequest, ...]:
        """Every request of every thread, by index."""
        return tuple(chain.from_iterable(self.threads))

    @property
    def exact_prompts(self) -> bool:
        """Whether every thread's first prompt has its planned length by the engine's own count."""
        return self.fit is not None and self.fit.off == 0 and self.fit.counted == len(self.threads)


def make_plan(spec: PlanSpec, rng: Random, opening: str = "") -> Plan:
    """Plan a run. The same specification and seed give the same plan; another load keeps the prompts.

    An `opening` replaces the first words of every first message. Times, lengths, all other words and shared
    parts stay the same, but no prompt matches what a run with another opening left in a cache.
    """
    seed = rng.getrandbits(64)
    if isinstance(spec.source, Trace):
        return _plan_trace(spec, spec.source, seed, opening)
    if isinstance(spec.source, Written):
        return _plan_written(spec, spec.source, seed, opening)
    return _plan_shape(spec, spec.source, seed, opening)


def fitted(shape: Shape, context_tokens: int) -> Shape:
    """The shape cut to a context: prompts shrink, outputs do not. Exact lengths must fit as they are."""
    budget = context_tokens - CONTEXT_MARGIN_TOKENS - shape.output.high_tokens
    exact = shape.prompt.spread == 0
    if budget < shape.prompt.low_tokens or (exact and budget < shape.prompt.high_tokens):
        raise ConfigError(
            f"prompts of {shape.prompt.low_tokens} and outputs of up to {shape.output.high_tokens} tokens "
            f"do not fit a context of {context_tokens}",
            hint="lower --prompt-tokens, --shared-prefix-tokens or --output-tokens",
        )
    # A shared prefix longer than the longest prompt would make every prompt exceed the context.
    longest_shared = max(budget - TEMPLATE_TOKENS - 1, 0)
    return replace(
        shape,
        prompt=shape.prompt.capped(budget),
        shared_prefix_tokens=min(shape.shared_prefix_tokens, longest_shared),
    )


def refitted(
    planned: PlannedRequest, counted_tokens: int, rng: Random, tokens_per_word: float = 1.0
) -> PlannedRequest:
    """The request with its last message made longer or shorter by the difference that a tokenizer reports."""
    if planned.as_written:
        return planned
    *earlier, last = planned.messages
    off_by = planned.prompt_tokens - counted_tokens
    # Rounded up: a difference of one token is one word.
    by_words = ceil(abs(off_by) / tokens_per_word) * (1 if off_by > 0 else -1)
    text = resized(last.content, by_words, rng, planned.kept_words)
    return replace(planned, messages=(*earlier, Message(last.role, text)))


def _plan_shape(spec: PlanSpec, asked: Shape, seed: int, opening: str) -> Plan:
    shape = fitted(asked, spec.context_tokens)
    threads: list[Thread] = []
    index, limit = 0, _most_requests(spec)
    drafts = drafts_of_shape(shape, spec.ruler, seed, opening)
    for at_s, first in zip(_times_s(spec, seed), drafts, strict=False):
        turns = [first]
        if spec.conversations is not None:
            budget_tokens = spec.context_tokens - CONTEXT_MARGIN_TOKENS
            turns_rng = stream(seed, "conversation", len(threads))
            turns += later_turns(spec.conversations, shape, first, budget_tokens, turns_rng, spec.ruler)
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
            hint="use another trace, or an engine with a longer context",
        )
    if sum(request.prompt_tokens for request in taken.requests) > PLAN_LIMIT_TOKENS:
        raise ConfigError(
            f"{len(taken.requests)} requests of the trace {trace.name} come to more than {PLAN_LIMIT_TOKENS} "
            "tokens",
            hint="plan fewer requests",
        )
    drafts = drafts_of_trace(trace, taken.requests, spec.ruler, seed, opening)
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
            hint="use an engine with a longer context",
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
class _TakenRequests:
    """A trace's requests up to a limit, how many of them do not fit, and whether more follow."""

    requests: list[TracedRequest]
    left_out: int
    goes_on: bool


def _timed_requests(spec: PlanSpec, trace: Trace, seed: int) -> tuple[list[float | None], _TakenRequests]:
    """The trace's requests up to the plan's end, and times for at least as many."""
    if isinstance(spec.load, Replay):
        speed = spec.load.speed
        due = takewhile(lambda request: _is_due(spec, request.at_s / speed), trace.requests)
        taken = _fitting(due, spec.context_tokens, _most_requests(spec))
        return [request.at_s / speed for request in taken.requests], taken
    times_s = list(islice(_times_s(spec, seed), _most_requests(spec)))
    return times_s, _fitting(trace.requests, spec.context_tokens, len(times_s))


def _fitting(requests: Iterable[TracedRequest], context_tokens: int, limit: int) -> _TakenRequests:
    taken: list[TracedRequest] = []
    left_out = 0
    for request in requests:
        if len(taken) == limit:
            return _TakenRequests(taken, left_out, goes_on=True)
        if request.prompt_tokens + request.output_tokens > context_tokens - CONTEXT_MARGIN_TOKENS:
            left_out += 1
        else:
            taken.append(request)
    return _TakenRequests(taken, left_out, goes_on=False)


def _thread(turns: list[PlannedRequest], index: int, at_s: float | None) -> Thread:
    first, *later = (replace(draft, index=index + turn, turn=turn) for turn, draft in enumerate(turns))
    return (replace(first, at_s=at_s), *later)


def _times_s(spec: PlanSpec, seed: int) -> Iterator[float | None]:
    """When threads start: an open loop's arrivals until the run's end, endless None for a closed loop."""
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
