"""Steps of an engine that lists the requests it computes, from listings read many times a second.

Two listings show what was computed between them: so many tokens of each prompt and of each answer. As many
steps were made as the fastest answer grew by tokens.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import median

from phasewise.core.steps import EngineStep, FinishedRequest

USUAL_OF = 64
"""A step without prompts takes as long as the median of so many."""
SHOWN_LATE_S = 0.06
"""A listing shows a step's end later by the time between two listings, and by one more step, after which it
is answered. Steps are timed as much earlier: no client has a token before its step has ended."""
KNOWN_PACE = 16
"""So many steps show how long one takes."""


@dataclass(frozen=True, slots=True)
class ListedRequest:
    """A request in an engine, with the tokens of its prompt, how many of them were computed or found in the
    cache so far, and those of its answer. Numbers rise in the order of arrival.
    """

    number: int
    slot: int
    prompt_tokens: int
    computed_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The requests that an engine computes at one moment; `context_tokens` is what all its slots hold."""

    requests: tuple[ListedRequest, ...]
    context_tokens: int

    @property
    def kv_usage(self) -> float:
        """The share of the slots' tokens that these requests take."""
        used = sum(
            request.cached_tokens + request.computed_tokens + request.output_tokens
            for request in self.requests
        )
        return used / self.context_tokens if self.context_tokens else 0.0


@dataclass(frozen=True, slots=True)
class ReadListing:
    """A listing, when it was asked for and answered, and how many requests waited (None: unknown)."""

    listing: Listing
    asked_unix_s: float
    answered_unix_s: float
    waiting: int | None = None


@dataclass(slots=True)
class _Life:
    """When a request came and got a slot, its first token, and its latest state. The times of one that ran
    or waited at the first listing are unknown.
    """

    came_s: float
    began_s: float
    seen: ListedRequest
    first_s: float | None = None
    known: bool = True

    @property
    def is_new(self) -> bool:
        """Whether nothing of it was computed so far."""
        return not (self.seen.computed_tokens or self.seen.output_tokens)


@dataclass(frozen=True, slots=True)
class _Growth:
    """What a request got between two listings: tokens of its answer and of its prompt."""

    life: _Life
    tokens: int
    computed: int
    ended: bool

    @property
    def begins(self) -> bool:
        """Whether its prompt was computed, or a part of it."""
        return self.life.first_s is None and bool(self.tokens or self.computed)

    @property
    def steps(self) -> int:
        """How many steps it took part in: a prompt without a token yet had one."""
        return self.tokens or int(self.begins)


@dataclass(slots=True)
class _Step:
    """What a step between two listings carried, and how many were left after it."""

    prompt_tokens: int = 0
    prompts: int = 0
    streams: int = 0
    running: int = 0
    first: list[_Growth] = field(default_factory=list)
    ended: list[_Growth] = field(default_factory=list)


def _steps_of(grown: Sequence[_Growth]) -> list[_Step]:
    """The steps that this growth took.

    The tokens of one request are in steps that follow each other: in the first ones if it ended, because its
    slot may have another request since, else in the last ones.
    """
    if not any(growth.tokens or growth.computed or growth.ended for growth in grown):
        return []
    in_slot: Counter[int] = Counter()
    for growth in grown:
        in_slot[growth.life.seen.slot] += growth.steps
    steps = [_Step() for _ in range(max(1, *in_slot.values()))]
    for growth in grown:
        since = 0 if growth.ended else len(steps) - growth.steps
        until = max(since + growth.tokens, 1)
        # One that has a slot and nothing computed yet is in none of these steps.
        came = since if growth.begins or growth.life.is_new else 0
        if growth.begins:
            carries = steps[since]
            carries.prompt_tokens += growth.computed
            carries.prompts += 1
            carries.first += [growth] * bool(growth.tokens)
        for step in steps[since + growth.begins : since + growth.tokens]:
            step.streams += 1
        if growth.ended:
            steps[until - 1].ended.append(growth)
        for step in steps[came : until - 1 if growth.ended else len(steps)]:
            step.running += 1
    return steps


class StepsFromListings:
    """Turns listings, the earlier first, into steps."""

    def __init__(self) -> None:
        self._last: ReadListing | None = None
        self._lives: dict[int, _Life] = {}
        # None for those that waited at the first listing.
        self._waiting_since: deque[float | None] = deque()
        self._decode_steps_s: deque[float] = deque(maxlen=USUAL_OF)
        self._seq = 0
        self._late_s: float | None = None
        self._ended_s: float | None = None

    def add(self, read: ReadListing) -> tuple[EngineStep, ...]:
        """The steps between the last listing and this one."""
        last, self._last = self._last, read
        if last is None:
            began_s = read.answered_unix_s
            self._lives = {
                request.number: _Life(
                    began_s, began_s, request, began_s if request.output_tokens else None, known=False
                )
                for request in read.listing.requests
            }
            self._waiting_since.extend([None] * (read.waiting or 0))
            # So that the first step is known to have begun by now.
            here = _Step(running=len(read.listing.requests))
            return (self._step(here, read, began_s),) if here.running else ()
        self._admit(last, read)
        grown = self._grown({request.number: request for request in read.listing.requests})
        steps = tuple(self._timed(last, read, grown))
        self._lives = {request.number: self._lives[request.number] for request in read.listing.requests}
        return steps

    def _admit(self, last: ReadListing, read: ReadListing) -> None:
        """Note who came: requests get slots in the order of their arrival."""
        new = sorted(
            (request for request in read.listing.requests if request.number not in self._lives),
            key=attrgetter("number"),
        )
        middle_s = (last.answered_unix_s + read.answered_unix_s) / 2
        # A slot is given between two steps: before the one during which the listing was asked for.
        began_s = (last.answered_unix_s + max(last.answered_unix_s, read.asked_unix_s)) / 2
        if read.waiting is not None:
            came = len(new) + read.waiting - len(self._waiting_since)
            self._waiting_since.extend([middle_s] * max(0, came))
            for _ in range(-came):
                self._waiting_since.pop()
        for request in new:
            came_s = self._waiting_since.popleft() if self._waiting_since else began_s
            untouched = replace(request, computed_tokens=0, output_tokens=0)
            known = came_s is not None
            arrived_s = min(came_s or began_s, began_s)
            self._lives[request.number] = _Life(arrived_s, began_s, untouched, known=known)

    def _grown(self, now: Mapping[int, ListedRequest]) -> list[_Growth]:
        """What each request got. One that is not listed any more got as many tokens as the others, and one at
        least.
        """
        most = max(
            (
                now[number].output_tokens - life.seen.output_tokens
                for number, life in self._lives.items()
                if number in now
            ),
            default=1,
        )
        grown = []
        for number, life in self._lives.items():
            request = now.get(number) or _completed(life.seen, max(1, most))
            tokens = max(0, request.output_tokens - life.seen.output_tokens)
            computed = max(0, request.computed_tokens - life.seen.computed_tokens)
            grown.append(_Growth(life, tokens, computed, ended=number not in now))
            life.seen = request
        return grown

    def _timed(self, last: ReadListing, read: ReadListing, grown: Sequence[_Growth]) -> Iterator[EngineStep]:
        made = _steps_of(grown)
        at_s = before_s = self._start_s(last)
        if last.listing.requests and self._ended_s is not None:
            before_s = self._ended_s  # listings in between may have shown no step
        took_s = self._took_s(made, read.answered_unix_s - at_s)
        for step, seconds in zip(made, took_s, strict=True):
            at_s += seconds
            for growth in step.first:
                growth.life.first_s = at_s
            if step.streams and not step.prompts:
                self._decode_steps_s.append(at_s - before_s)
            self._ended_s = before_s = at_s
            yield self._step(step, read, at_s)

    def _step(self, step: _Step, read: ReadListing, at_s: float) -> EngineStep:
        self._seq += 1
        if self._late_s is None and len(self._decode_steps_s) >= KNOWN_PACE:
            self._late_s = SHOWN_LATE_S + median(self._decode_steps_s)
        return EngineStep(
            seq=self._seq,
            ended_unix_s=at_s - (self._late_s or SHOWN_LATE_S),
            running=step.running,
            waiting=read.waiting or 0,
            kv_usage=read.listing.kv_usage,
            prompt_tokens=step.prompt_tokens,
            prompt_requests=step.prompts,
            decode_tokens=step.streams,
            decode_requests=step.streams,
            first_tokens=len(step.first),
            finished=tuple(_finished(ended.life, at_s) for ended in step.ended if ended.life.known),
        )

    def _start_s(self, last: ReadListing) -> float:
        """When the steps began: at the last listing, or when the first request came after idleness."""
        if last.listing.requests:
            return last.answered_unix_s
        return min((life.began_s for life in self._lives.values()), default=last.answered_unix_s)

    def _took_s(self, made: Sequence[_Step], whole_s: float) -> list[float]:
        """How long each took: those without prompts as long as usual, and the others share the rest."""
        even_s = whole_s / max(1, len(made))
        prompts = sum(1 for step in made if step.prompts)
        if not prompts or prompts == len(made):
            return [even_s] * len(made)
        usual_s = min(even_s, median(self._decode_steps_s)) if self._decode_steps_s else even_s
        rest_s = (whole_s - usual_s * (len(made) - prompts)) / prompts
        return [rest_s if step.prompts else usual_s for step in made]


def _completed(seen: ListedRequest, tokens: int) -> ListedRequest:
    computed = max(seen.computed_tokens, seen.prompt_tokens - seen.cached_tokens)
    return replace(seen, computed_tokens=computed, output_tokens=seen.output_tokens + tokens)


def _finished(life: _Life, at_s: float) -> FinishedRequest:
    first_s = at_s if life.first_s is None else life.first_s
    return FinishedRequest(
        request_id=f"task-{life.seen.number}",
        reason="stop",
        prompt_tokens=life.seen.prompt_tokens,
        cached_tokens=life.seen.cached_tokens,
        output_tokens=life.seen.output_tokens,
        queue_s=life.began_s - life.came_s,
        prefill_s=first_s - life.began_s,
        decode_s=at_s - first_s,
        e2e_s=at_s - life.came_s,
    )
