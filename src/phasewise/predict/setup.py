"""How an engine is set up, as far as a replay needs it, and the same with one lever changed.

What a fleet file says counts; what it leaves out is told by the window, and else is the engine's default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TypeVar

from phasewise.config import Levers, byte_size
from phasewise.diagnosis.fix import LeverChange
from phasewise.diagnosis.surroundings import EngineSurroundings
from phasewise.fake_engine.virtual_engine import EngineShape
from phasewise.predict.drafting import DraftReading, reading_of_counters
from phasewise.predict.traffic import Traffic

DEFAULT_BUDGET_TOKENS = 2048
DEFAULT_MOST_RUNNING = 256
"""vLLM's own, where neither a file nor the window tells."""
DEFAULT_BLOCK_TOKENS = 16
CAPPED = 0.05
"""With less of the waiting time spent at the most that ever ran, that number was chance and no cap."""
UNKNOWN_GUESSES = "how many tokens a step yields with guesses is not known: no step record tells"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Unpredictable:
    """Why no effect is told."""

    reason: str


@dataclass(frozen=True, slots=True)
class Setup:
    """Engines that are alike. `drafts` say what guessing tokens brings, if it is on; `kv_bytes` is what the
    KV cache was given, if that is known. `most_running` is how many requests may run at once if steps have
    tokens for them, where that is more than the shape has. `unknown` says why it cannot be replayed."""

    shape: EngineShape
    engines: int = 1
    drafts: tuple[DraftReading, ...] = ()
    kv_bytes: int | None = None
    most_running: int | None = None
    unknown: str = ""


def setup_of(
    traffic: Traffic, engines: Sequence[EngineSurroundings] = (), levers: Levers | None = None
) -> Setup:
    """The setup behind a window. Engines of a pool are alike, so the first that tells speaks for all."""
    levers = levers or Levers()
    budget = levers.prefill_chunk_tokens or _budget_tokens(engines)
    running = levers.max_running or _most_running(engines, budget)
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
        kv_bytes=None if levers.kv_memory is None else byte_size(levers.kv_memory),
        most_running=running,
        unknown=UNKNOWN_GUESSES if drafts is None else "",
    )


def changed(setup: Setup, change: LeverChange, drafts: Sequence[DraftReading] = ()) -> Setup | Unpredictable:
    """The setup with one lever changed; `drafts` say what guessing would bring, where that is the lever."""
    if setup.unknown:
        return Unpredictable(setup.unknown)
    if change.name == "speculation":
        return _with_guesses(setup, change, drafts)
    change_it = _CHANGES.get(change.name)
    if change_it is None:
        return Unpredictable(f"a replay cannot tell what {change.name} changes: costs were fitted without it")
    return change_it(setup, change)


def _with_chunk(setup: Setup, change: LeverChange) -> Setup:
    tokens = _count(change)
    # An engine that is not told otherwise runs no more requests than a step has tokens.
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


def _with_kv_memory(setup: Setup, change: LeverChange) -> Setup | Unpredictable:
    times = change.times
    if isinstance(change.value, str) and setup.kv_bytes:
        times = byte_size(change.value) / setup.kv_bytes
    if times is None:
        return Unpredictable("how much memory the KV cache has now is not known")
    total_blocks = max(1, int(setup.shape.total_blocks * times))
    return replace(setup, shape=replace(setup.shape, total_blocks=total_blocks))


def _with_replicas(setup: Setup, change: LeverChange) -> Setup:
    return replace(setup, engines=_count(change))


def _with_guesses(setup: Setup, change: LeverChange, drafts: Sequence[DraftReading]) -> Setup | Unpredictable:
    if change.value is None:
        return replace(setup, drafts=())
    if not drafts:
        return Unpredictable("how many guesses would be right is not known before they are tried")
    return replace(setup, drafts=tuple(drafts))


_CHANGES: dict[str, Callable[[Setup, LeverChange], Setup | Unpredictable]] = {
    "prefill_chunk_tokens": _with_chunk,
    "max_running": _with_running,
    "prefix_cache": _with_prefix_cache,
    "kv_memory": _with_kv_memory,
    "replicas": _with_replicas,
}


def _count(change: LeverChange) -> int:
    if not isinstance(change.value, int) or change.value < 1:
        raise ValueError(f"{change.name} must be a number from 1 on, not {change.value!r}")
    return change.value


def _blocks(traffic: Traffic, kv_tokens: int | None, block_tokens: int) -> int:
    """Blocks that requests can have: vLLM keeps one for itself. An unknown cache is one that never fills."""
    longest = ceil((traffic.longest_tokens + 1) / block_tokens)
    if kv_tokens is None:
        return longest * max(len(traffic.requests), 1)
    return max(kv_tokens // block_tokens - 1, longest)


def _budget_tokens(engines: Sequence[EngineSurroundings]) -> int:
    told = [each.steps.budget_tokens for each in engines if each.steps is not None]
    return _first(told) or DEFAULT_BUDGET_TOKENS


def _draft_readings(engines: Sequence[EngineSurroundings]) -> tuple[DraftReading, ...] | None:
    """What guessing brings on engines that guess, from those that tell; None where none of them tells."""
    guessing = [
        (each.drafts, each.steps) for each in engines if each.drafts is not None and each.drafts.drafts
    ]
    readings = [
        reading_of_counters(drafts, None if steps is None else steps.tokens_per_stream_step)
        for drafts, steps in guessing
    ]
    told = tuple(reading for reading in readings if reading is not None)
    return None if guessing and not told else told


def _most_running(engines: Sequence[EngineSurroundings], budget_tokens: int) -> int:
    """A cap shows when requests wait though there is room: then as many run as ever may. Where those are as
    many as a step has tokens, it is the budget that keeps others waiting."""
    crowds = [
        each.crowd for each in engines if each.crowd is not None and each.crowd.running_max < budget_tokens
    ]
    capped = [crowd.running_max for crowd in crowds if crowd.waited_share * crowd.capped_share >= CAPPED]
    return max(max(capped, default=DEFAULT_MOST_RUNNING), 1)


def _first(told: Sequence[_T | None]) -> _T | None:
    return next((each for each in told if each is not None), None)
