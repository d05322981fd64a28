"""A workload as traffic for a simulated fleet: the same lengths, prefixes and times, without any text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from random import Random

from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop, Replay, arrival_times_s
from phasewise.benchmark.workload.drafts import Conversations
from phasewise.benchmark.workload.presets import Shape
from phasewise.benchmark.workload.prompts import TEMPLATE_TOKENS, stream
from phasewise.benchmark.workload.traces import Trace, TracedRequest
from phasewise.core.errors import UsageError
from phasewise.planning.fleet_plan import BLOCK_TOKENS
from phasewise.simulator.traffic import Content, Session, SessionTurn, SimulatedTraffic, conversation

MOST_REQUESTS = 5_000_000
OWN_KEYS = 32
"""The keys of what requests have of their own begin above so many bits, beyond the ids of any trace."""


def traffic_of(
    source: Shape | Trace,
    load: OpenLoop | ClosedLoop | Replay,
    requests: int | None,
    duration_s: float | None,
    conversations: Conversations | None,
    seed: int,
) -> SimulatedTraffic:
    """What a load generator would send with these settings."""
    limit = min(requests or MOST_REQUESTS, MOST_REQUESTS)
    if isinstance(source, Trace):
        return _of_trace(source, load, limit, duration_s, seed)
    turns = 1 if conversations is None else conversations.turns
    drawn = _sessions(source, conversations, seed)
    if isinstance(load, ClosedLoop):
        if requests is None:
            raise UsageError("a closed loop without an end", hint="give --requests, or a --rate")
        return _closed(list(islice(drawn, -(-requests // turns))), load.concurrency)
    if isinstance(load, Replay):
        raise UsageError("a replay needs a trace", hint="give --trace, or a --rate")
    if requests is None and duration_s is None:
        raise UsageError("the run has no end", hint="give --requests or --duration")
    times_s: Iterator[float] = islice(arrival_times_s(load, stream(seed, "arrivals")), -(-limit // turns))
    if duration_s is not None:
        times_s = takewhile(lambda at_s: at_s < duration_s, times_s)
    return SimulatedTraffic([Session(at_s, turns) for at_s, turns in zip(times_s, drawn, strict=False)])


def block_tokens_of(source: Shape | Trace) -> int:
    """The size of a cached block that fits the workload."""
    named = isinstance(source, Trace) and any(request.block_ids for request in source.requests)
    return source.block_tokens if isinstance(source, Trace) and named else BLOCK_TOKENS


def _sessions(
    shape: Shape, conversations: Conversations | None, seed: int
) -> Iterator[tuple[SessionTurn, ...]]:
    """Endless requests, or conversations, of a shape."""
    sizes, choices, thinks = stream(seed, "sizes"), stream(seed, "choices"), stream(seed, "turns")
    text = 0
    while True:
        text += 1
        prompt_tokens, output_tokens = shape.prompt.draw(sizes), shape.output.draw(sizes)
        shares = choices.random() < shape.shared_share and shape.shared_prefix_tokens > 0
        chosen = choices.randrange(shape.shared_prefixes)
        system = (Content(-1 - chosen, shape.shared_prefix_tokens),) if shares else ()
        own_tokens = max(TEMPLATE_TOKENS, prompt_tokens - sum(content.tokens for content in system))
        turns = [(own_tokens, output_tokens, 0.0)]
        for _ in range(0 if conversations is None else conversations.turns - 1):
            turns.append(_later(shape, conversations, thinks))
        yield conversation(0.0, text, turns, system).turns


def _later(shape: Shape, conversations: Conversations | None, rng: Random) -> tuple[int, int, float]:
    think_s = 0.0 if conversations is None else conversations.think_s
    asked, answered = shape.follow_up.draw(rng) + TEMPLATE_TOKENS, shape.output.draw(rng)
    return asked, answered, rng.expovariate(1 / think_s) if think_s else 0.0


def _closed(sessions: list[tuple[SessionTurn, ...]], concurrency: int) -> SimulatedTraffic:
    """So many clients at once: each sends one session after the other."""
    clients = (sessions[number::concurrency] for number in range(concurrency))
    return SimulatedTraffic(
        [Session(0.0, tuple(turn for turns in each for turn in turns)) for each in clients if each]
    )


def _of_trace(
    trace: Trace,
    load: OpenLoop | ClosedLoop | Replay,
    limit: int,
    duration_s: float | None,
    seed: int,
) -> SimulatedTraffic:
    turns = [
        _traced(request, number, trace.block_tokens) for number, request in enumerate(trace.requests[:limit])
    ]
    if isinstance(load, ClosedLoop):
        return _closed([(turn,) for turn in turns], load.concurrency)
    if isinstance(load, OpenLoop):
        times_s: Iterator[float] = arrival_times_s(load, stream(seed, "arrivals"))
    else:
        times_s = (request.at_s / load.speed for request in trace.requests)
    sessions = [Session(at_s, (turn,)) for at_s, turn in zip(times_s, turns, strict=False)]
    return SimulatedTraffic(
        [session for session in sessions if duration_s is None or session.at_s < duration_s]
    )


def _traced(request: TracedRequest, number: int, block_tokens: int) -> SessionTurn:
    """Blocks that the trace names, and the request's own text after them."""
    prompt, output_tokens = (Content(number, request.prompt_tokens),), max(1, request.output_tokens)
    if not request.block_ids:
        return SessionTurn(prompt, output_tokens)
    named = request.block_ids[: request.prompt_tokens // block_tokens]
    own = (request.prompt_tokens + output_tokens) // block_tokens - len(named)
    first_own = (1 + number) << OWN_KEYS
    return SessionTurn(prompt, output_tokens, keys=(*named, *range(first_own, first_own + own)))
