"""Replays recorded traffic through virtual engines, and reports the latencies of its clients.

Open loops repeat the recorded arrivals; closed loops send a request when another one ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import ceil, inf
from typing import NamedTuple

from phasewise.core.prefixes import MARK_SIZES_BYTES
from phasewise.core.slo import Slo
from phasewise.costs.fit.step import StepSeconds, StepWork
from phasewise.diagnosis.analysis.streams import NOTICED_STALL_TOKENS
from phasewise.diagnosis.predict.setup import NO_GUESSES, Drafting, Setup
from phasewise.diagnosis.predict.traffic import Figures, RecordedRequest, RecordedTraffic, figures_of
from phasewise.simulator.engine import VirtualEngine, VirtualRequest
from phasewise.simulator.run import VirtualOutcome, run_closed, run_virtually

# --- Makes up token ids for prompts whose text was not kept, such that prompts with a common prefix share one
# again.
#
# Marks show at fixed sizes whether two prompts have a common prefix. What they share beyond the last common
# mark is unknown: it ends somewhere before the next one. If the engine reported its cached tokens, that
# counts.

PromptIds = tuple[int, ...]
_RUN_LENGTH_BITS = 24
"""Ids of one text are consecutive; texts start far enough apart not to overlap."""
_UNMARKED = ""


@dataclass(frozen=True, slots=True)
class InventedPrompt:
    """A prompt's ids. The first `shared_tokens` of them are a text that ends after the mark `shared_mark`."""

    ids: PromptIds
    shared_mark: str
    shared_tokens: int


def invent_prompts(requests: Sequence[RecordedRequest], beyond_marks: float) -> tuple[InventedPrompt, ...]:
    """Ids for every prompt.

    `beyond_marks`, from 0 to 1, is how far a common prefix extends from the last common mark to the next one.
    """
    return _Inventor(requests, beyond_marks).prompts()


def cached_beforehand(
    requests: Sequence[RecordedRequest], prompts: Sequence[InventedPrompt]
) -> tuple[PromptIds, ...]:
    """Prefixes that came from an engine's cache though none of these requests had put them there."""
    held: dict[str, int] = {}
    missing: list[PromptIds] = []
    for request, prompt in zip(requests, prompts, strict=True):
        if request.cached_tokens > held.get(prompt.shared_mark, 0):
            missing.append(prompt.ids[: request.cached_tokens])
        held[prompt.shared_mark] = max(held.get(prompt.shared_mark, 0), prompt.shared_tokens)
    return tuple(missing)


class _Inventor:
    def __init__(self, requests: Sequence[RecordedRequest], beyond_marks: float) -> None:
        self._requests = requests
        self._beyond_marks = beyond_marks
        counts = Counter(mark for request in requests for mark in request.marks)
        self._common = [tuple(mark for mark in each.marks if counts[mark] > 1) for each in requests]
        # Bytes are converted by the first request's ratio, so that a shared text has one length.
        self._ends: dict[str, int] = {}
        self._found: dict[str, int] = {}
        for request, common in zip(requests, self._common, strict=True):
            for size, mark in zip(MARK_SIZES_BYTES, common, strict=False):
                self._ends.setdefault(mark, round(request.prompt_tokens * size / request.prompt_bytes))
            if common:
                self._found[common[-1]] = max(self._found.get(common[-1], 0), request.cached_tokens)

    def prompts(self) -> tuple[InventedPrompt, ...]:
        return tuple(
            self._prompt(request, common)
            for request, common in zip(self._requests, self._common, strict=True)
        )

    def _prompt(self, request: RecordedRequest, common: tuple[str, ...]) -> InventedPrompt:
        tokens = request.prompt_tokens
        ids: list[int] = []
        for mark in common:
            ids += _text(mark, min(self._ends[mark], tokens) - len(ids))
        shared_mark = common[-1] if common else _UNMARKED
        ids += _text(f"after {shared_mark}", min(self._shared_end(request, common), tokens) - len(ids))
        shared_tokens = len(ids)
        ids += _text(f"of {request.request_id}", tokens - len(ids))
        return InventedPrompt(tuple(ids), shared_mark, shared_tokens)

    def _shared_end(self, request: RecordedRequest, common: tuple[str, ...]) -> int:
        """How many tokens of the prompt others share."""
        if not common:
            return request.cached_tokens
        if found := self._found[common[-1]]:
            return found
        known, count = self._ends[common[-1]], len(common)
        next_bytes = MARK_SIZES_BYTES[count] if count < len(MARK_SIZES_BYTES) else request.prompt_bytes
        limit = request.prompt_tokens * min(next_bytes / request.prompt_bytes, 1.0)
        return known + int(self._beyond_marks * max(limit - known, 0.0))


def _text(name: str, tokens: int) -> Iterable[int]:
    begins_at = int.from_bytes(blake2b(name.encode(), digest_size=5).digest()) << _RUN_LENGTH_BITS
    return range(begins_at, begins_at + max(tokens, 0))


_LONG_BEFORE_S = -1e6
"""The time before the window at which its cached prefixes are loaded."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One request as its client would observe it, with the tokens of the recorded answer."""

    outcome: VirtualOutcome
    tokens: int

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first; accepted drafts arrive several at once."""
        decode_s = self.outcome.e2e_s - self.outcome.ttft_s
        return decode_s / (self.tokens - 1) if self.tokens > 1 else None


def replay(
    traffic: RecordedTraffic,
    setup: Setup,
    cost: StepSeconds,
    *,
    drafting: Drafting = NO_GUESSES,
    beyond_marks: float = 0.5,
) -> Figures:
    """The figures of the traffic, without its warm-up requests."""
    found = replay_requests(traffic, setup, cost, drafting=drafting, beyond_marks=beyond_marks)
    return figures_of_replay(found, traffic)


def replay_requests(
    traffic: RecordedTraffic,
    setup: Setup,
    cost: StepSeconds,
    *,
    drafting: Drafting = NO_GUESSES,
    beyond_marks: float = 0.5,
) -> list[Replayed]:
    """Every replayed request, without the warm-up."""
    charged = _charging_guesses(cost, drafting)
    seen: list[Replayed] = []
    for requests, clients in by_engine(traffic, setup.engines):
        prompts = invent_prompts(requests, beyond_marks)
        engine = VirtualEngine(setup.shape, charged)
        if setup.shape.prefix_cache:
            _warm(engine, requests, prompts)
        seen += _run(engine, requests, prompts, drafting.tokens_per_step, clients, traffic.outside_s)
    return sorted(seen, key=lambda each: each.outcome.arrived_s)[traffic.warm_up :]


def _run(
    engine: VirtualEngine,
    requests: Sequence[RecordedRequest],
    prompts: Sequence[InventedPrompt],
    tokens_per_step: float,
    concurrency: int | None,
    turnaround_s: float,
) -> list[Replayed]:
    asked = [
        VirtualRequest(
            request_id=request.request_id,
            prompt_ids=prompt.ids,
            max_tokens=1 + ceil((request.output_tokens - 1) / tokens_per_step),
            arrived_s=request.came_s,
            ignore_eos=True,
        )
        for request, prompt in zip(requests, prompts, strict=True)
    ]
    outcomes = (
        run_virtually(engine, asked)
        if concurrency is None
        else run_closed(engine, asked, concurrency, turnaround_s=turnaround_s)
    )
    return [
        Replayed(outcome, request.output_tokens) for outcome, request in zip(outcomes, requests, strict=True)
    ]


def _warm(
    engine: VirtualEngine, requests: Sequence[RecordedRequest], prompts: Sequence[InventedPrompt]
) -> None:
    """Load the prefixes that the cache held when the window began, as far as they are known."""
    run_virtually(
        engine,
        (
            VirtualRequest(f"before-{index}", ids, 1, _LONG_BEFORE_S, ignore_eos=True)
            for index, ids in enumerate(cached_beforehand(requests, prompts))
        ),
    )


def _charging_guesses(cost: StepSeconds, drafting: Drafting) -> StepSeconds:
    """Draft tokens are computed with the next token: each costs as much as a token of a batch."""
    if not drafting.drafted_per_step:
        return cost

    def charged(work: StepWork) -> float:
        guessed = round(work.decode_tokens * drafting.drafted_per_step)
        return cost(replace(work, decode_tokens=work.decode_tokens + guessed))

    return charged


def by_engine(traffic: RecordedTraffic, engines: int) -> list[tuple[list[RecordedRequest], int | None]]:
    """The requests and closed-loop clients of each engine: as recorded, or by least outstanding for another
    number of engines. Engines without requests are left out."""
    clients = traffic.concurrency
    if engines == len(traffic.engines) and (clients is None or clients >= engines):
        shares = [
            [request for request in traffic.requests if request.engine == engine]
            for engine in traffic.engines
        ]
    elif clients is None:
        shares = _by_least_outstanding(traffic, engines)
    else:
        shares = _by_client(traffic, clients, engines)
    # If clients cannot be split evenly, the engine that serves most gets one more.
    dealt = enumerate(sorted(filter(None, shares), key=len, reverse=True))
    return [
        (share, None if clients is None else len(range(index, clients, engines))) for index, share in dealt
    ]


def _by_client(traffic: RecordedTraffic, clients: int, engines: int) -> list[list[RecordedRequest]]:
    """Each client has one engine."""
    shares: list[list[RecordedRequest]] = [[] for _ in range(engines)]
    for index, request in enumerate(traffic.requests):
        shares[index % clients % engines].append(request)
    return shares


def _by_least_outstanding(traffic: RecordedTraffic, engines: int) -> list[list[RecordedRequest]]:
    shares: list[list[RecordedRequest]] = [[] for _ in range(engines)]
    # The end in the replay is not yet known, so the recorded end is used.
    open_until: list[list[float]] = [[] for _ in range(engines)]
    for request in traffic.requests:
        for index, ends in enumerate(open_until):
            open_until[index] = [end for end in ends if end > request.came_s]
        chosen = min(range(engines), key=lambda index: (len(open_until[index]), len(shares[index])))
        open_until[chosen].append(request.went_s)
        shares[chosen].append(request)
    return shares


class Experience(NamedTuple):
    """What a client saw of a request. Without a first token, `ttft_s` is how long it has waited."""

    ttft_s: float
    gaps_s: Sequence[float] = ()
    tokens: int = 1


def total_lost_s(seen: Iterable[Experience], slo: Slo) -> float:
    """Seconds beyond the objective, at the start and in the stream.

    A stream loses them over all tokens, or in noticed stalls if that is more.
    """
    start_s = stream_s = 0.0
    for ttft_s, gaps_s, tokens in seen:
        start_s += max(0.0, ttft_s - slo.ttft_s)
        stalls = [gap_s for gap_s in gaps_s if gap_s >= NOTICED_STALL_TOKENS * slo.tpot_s]
        over_all_s = sum(gaps_s) - slo.tpot_s * (tokens - 1)
        stream_s += max(0.0, over_all_s, sum(stalls) - slo.tpot_s * len(stalls))
    return start_s + stream_s


def lost_in_replay_s(
    counted: Iterable[Replayed], traffic: RecordedTraffic, slo: Slo, until_s: float = inf
) -> float:
    """What replayed requests lose, as far as a watch that ends at `until_s` sees them."""
    return total_lost_s((_seen_until(replayed, traffic.outside_s, until_s) for replayed in counted), slo)


def _seen_until(replayed: Replayed, outside_s: float, until_s: float) -> Experience:
    outcome = replayed.outcome
    if outcome.token_times_s[-1] <= until_s:
        return Experience(outcome.ttft_s + outside_s, outcome.gaps_s, replayed.tokens)
    came = sum(at_s <= until_s for at_s in outcome.token_times_s)
    if not came:
        return Experience(max(0.0, until_s - outcome.arrived_s))
    tokens = max(1, round(replayed.tokens * came / len(outcome.token_times_s)))
    return Experience(outcome.ttft_s + outside_s, outcome.gaps_s[: came - 1], tokens)


def figures_of_replay(counted: Sequence[Replayed], traffic: RecordedTraffic) -> Figures:
    """The figures that a measurement has, of replayed requests."""
    if not counted:
        return {}
    outcomes = [each.outcome for each in counted]
    return figures_of(
        [outcome.ttft_s + traffic.outside_s for outcome in outcomes],
        [tpot for each in counted if (tpot := each.tpot_s) is not None],
        [gap_s for outcome in outcomes for gap_s in outcome.gaps_s],
        sum(each.tokens for each in counted),
        max(outcome.token_times_s[-1] for outcome in outcomes) - min(each.arrived_s for each in outcomes),
    )
