"""The settings of an engine that a replay needs, and the same with one lever changed.

Values come from the fleet file, else from the window, else from the engine's defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TypeVar

from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.diagnosis.advice.levers import DEFAULT_BUDGET_TOKENS
from phasewise.diagnosis.analysis.engine_load import Drafts, EngineSurroundings
from phasewise.diagnosis.predict.traffic import RecordedTraffic
from phasewise.fleet.config import Levers, byte_size
from phasewise.simulator.engine import EngineShape


@dataclass(frozen=True, slots=True)
class DraftReading:
    """A number of steps after an answer's first token, their output tokens and their draft tokens."""

    steps: float
    tokens: float
    drafted: float


@dataclass(frozen=True, slots=True)
class Drafting:
    """Speculative decoding per step of a stream: output tokens, at least one, and draft tokens."""

    tokens_per_step: float
    drafted_per_step: float


NO_GUESSES = Drafting(1.0, 0.0)


def drafting_of(readings: Sequence[DraftReading]) -> Drafting:
    """The sum of all readings; without any, there are no drafts."""
    steps = sum(reading.steps for reading in readings)
    if steps <= 0:
        return NO_GUESSES
    yielded = sum(reading.tokens for reading in readings) / steps
    return Drafting(max(yielded, 1.0), sum(reading.drafted for reading in readings) / steps)


def reading_of_counters(drafts: Drafts, carried_per_step: float | None) -> DraftReading | None:
    """From an engine's counters. They leave out steps without drafts, which the step record includes."""
    if carried_per_step is None or carried_per_step <= 1:
        return None
    steps = max(drafts.drafted_tokens / (carried_per_step - 1), drafts.drafts)
    return DraftReading(steps, steps + drafts.accepted_tokens, drafts.drafted_tokens)


DEFAULT_MOST_RUNNING = 256
"""vLLM's default, if neither a file nor the window has it."""
DEFAULT_BLOCK_TOKENS = 16
CAPPED = 0.05
"""If a smaller share of the waiting time was at the largest number of running requests, that number is no
limit.
"""
UNKNOWN_GUESSES = "the tokens per step with speculative decoding are unknown: there is no step record"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Unpredictable:
    """Why there is no prediction."""

    reason: str


@dataclass(frozen=True, slots=True)
class Setup:
    """Engines that are alike. `drafts` are readings of speculative decoding, if it is on; `kv_bytes` is the
    size of the KV cache, if it is known. `most_running` is the limit of running requests, if it is larger
    than the shape's, which steps may limit further. `unknown` says why it cannot be replayed."""

    shape: EngineShape
    engines: int = 1
    drafts: tuple[DraftReading, ...] = ()
    kv_bytes: int | None = None
    most_running: int | None = None
    unknown: str = ""


def setup_of(
    traffic: RecordedTraffic, engines: Sequence[EngineSurroundings] = (), levers: Levers | None = None
) -> Setup:
    """The setup of a window. Engines of a pool are alike, so the first reported value counts for all."""
    levers = levers or Levers()
    budget = levers.max_num_batched_tokens or _budget_tokens(engines)
    running = levers.max_num_seqs or _most_running(engines, budget)
    block_tokens = _first([each.block_tokens for each in engines]) or DEFAULT_BLOCK_TOKENS
    prefix_cache = levers.prefix_cache
    if prefix_cache is None:
        prefix_cache = _first([each.prefix_cache_on for each in engines])
    drafts = _draft_readings(engines)
    shape = EngineShape(
        max_model_len=max(traffic.longest_tokens, 1) + 1,
        max_num_seqs=min(running, budget),
        max_num_batched_tokens=budget,
        block_size=block_tokens,
        total_blocks=_blocks(traffic, _first([each.kv_tokens for each in engines]), block_tokens),
        prefix_cache=prefix_cache is not False,
    )
    return Setup(
        shape,
        engines=max(len(traffic.engines), 1),
        drafts=drafts or (),
        kv_bytes=None if levers.kv_cache_memory_bytes is None else byte_size(levers.kv_cache_memory_bytes),
        most_running=running,
        unknown=UNKNOWN_GUESSES if drafts is None else "",
    )


def changed(setup: Setup, change: LeverChange, drafts: Sequence[DraftReading] = ()) -> Setup | Unpredictable:
    """The setup with one lever changed; `drafts` are readings for a change of speculative decoding."""
    if setup.unknown:
        return Unpredictable(setup.unknown)
    if change.name == "speculation":
        return _with_guesses(setup, change, drafts)
    change_it = _CHANGES.get(change.name)
    if change_it is None:
        return Unpredictable(f"a replay does not model {change.name}: costs were fitted without it")
    return change_it(setup, change)


def _with_chunk(setup: Setup, change: LeverChange) -> Setup:
    tokens = _count(change)
    # By default an engine runs no more requests than a step has tokens.
    running = min(setup.most_running or setup.shape.max_num_seqs, tokens)
    shape = replace(setup.shape, max_num_batched_tokens=tokens, max_num_seqs=running)
    return replace(setup, shape=shape)


def _with_running(setup: Setup, change: LeverChange) -> Setup:
    running = _count(change)
    budget_tokens = max(setup.shape.max_num_batched_tokens, running)
    shape = replace(setup.shape, max_num_seqs=running, max_num_batched_tokens=budget_tokens)
    return replace(setup, shape=shape, most_running=running)


def _with_prefix_cache(setup: Setup, change: LeverChange) -> Setup:
    return replace(setup, shape=replace(setup.shape, prefix_cache=change.value is not False))


def _with_kv_cache_bytes(setup: Setup, change: LeverChange) -> Setup | Unpredictable:
    times = change.times
    if isinstance(change.value, str) and setup.kv_bytes:
        times = byte_size(change.value) / setup.kv_bytes
    if times is None:
        return Unpredictable("the current size of the KV cache is unknown")
    total_blocks = max(1, int(setup.shape.total_blocks * times))
    return replace(setup, shape=replace(setup.shape, total_blocks=total_blocks))


def _with_replicas(setup: Setup, change: LeverChange) -> Setup:
    return replace(setup, engines=_count(change))


def _with_guesses(setup: Setup, change: LeverChange, drafts: Sequence[DraftReading]) -> Setup | Unpredictable:
    if change.value is None:
        return replace(setup, drafts=())
    if not drafts:
        return Unpredictable("the acceptance rate of drafts is unknown before they are tried")
    return replace(setup, drafts=tuple(drafts))


_CHANGES: dict[str, Callable[[Setup, LeverChange], Setup | Unpredictable]] = {
    "max_num_batched_tokens": _with_chunk,
    "max_num_seqs": _with_running,
    "prefix_cache": _with_prefix_cache,
    "kv_cache_memory_bytes": _with_kv_cache_bytes,
    "replicas": _with_replicas,
}


def _count(change: LeverChange) -> int:
    if not isinstance(change.value, int) or change.value < 1:
        raise ValueError(f"{change.name} must be a number of 1 or more, not {change.value!r}")
    return change.value


def _blocks(traffic: RecordedTraffic, kv_tokens: int | None, block_tokens: int) -> int:
    """Blocks for requests: vLLM reserves one. A cache of unknown size never fills."""
    longest = ceil((traffic.longest_tokens + 1) / block_tokens)
    if kv_tokens is None:
        return longest * max(len(traffic.requests), 1)
    return max(kv_tokens // block_tokens - 1, longest)


def _budget_tokens(engines: Sequence[EngineSurroundings]) -> int:
    reported = [each.steps.budget_tokens for each in engines if each.steps is not None]
    return _first(reported) or DEFAULT_BUDGET_TOKENS


def _draft_readings(engines: Sequence[EngineSurroundings]) -> tuple[DraftReading, ...] | None:
    """The readings of engines with speculative decoding; None if none reports them."""
    guessing = [
        (each.drafts, each.steps) for each in engines if each.drafts is not None and each.drafts.drafts
    ]
    readings = [
        reading_of_counters(drafts, None if steps is None else steps.tokens_per_stream_step)
        for drafts, steps in guessing
    ]
    reported = tuple(reading for reading in readings if reading is not None)
    return None if guessing and not reported else reported


def _most_running(engines: Sequence[EngineSurroundings], budget_tokens: int) -> int:
    """The limit of running requests: the largest number that ran while others waited with space in the KV
    cache. If it equals the tokens of a step, the token budget is the limit instead."""
    engine_loads = [
        each.engine_load
        for each in engines
        if each.engine_load is not None and each.engine_load.running_max < budget_tokens
    ]
    capped = [
        engine_load.running_max
        for engine_load in engine_loads
        if engine_load.waited_share * engine_load.capped_share >= CAPPED
    ]
    return max(max(capped, default=DEFAULT_MOST_RUNNING), 1)


def _first(reported: Sequence[_T | None]) -> _T | None:
    return next((each for each in reported if each is not None), None)
