"""What became of KV that was handed over in a window: whether it came, or prompts were computed twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.diagnosis.surroundings import EngineSurroundings
from phasewise.model.timeline import Attempt, AttemptKind, Outcome, Part, Timeline

TOLERATED_SHARE = 0.05
"""Engines may compute a prompt's last token or block themselves."""


@dataclass(frozen=True, slots=True)
class HandOverUse:
    """Requests of the window whose prompt was computed on another engine than their answer.

    `expected_tokens` are those of their prompts, `came_tokens` those whose KV the decode engines fetched or
    had, as their counters tell (requests that were handed over by others may be among them). `again_s` is
    what their decode engines say that prefill took there, over all of them. `engines` are those whose KV did
    not come.
    """

    requests: int
    expected_tokens: int
    came_tokens: float
    again_s: float
    engines: tuple[str, ...] = ()

    @property
    def recomputed_tokens(self) -> float:
        """Tokens that were computed a second time, as far as counters show it."""
        return max(0.0, self.expected_tokens - self.came_tokens)


def hand_over_use(
    timelines: Sequence[Timeline], engines: Sequence[EngineSurroundings], began_unix_s: float
) -> HandOverUse | None:
    """What counters say of hand-overs that began in the window; None where there were none or none counts."""
    handed = [it for it in timelines if _decode_side(it, began_unix_s) is not None]
    expected: dict[str, int] = {}
    again_s: dict[str, float] = {}
    for timeline in handed:
        decode = _decode_side(timeline, began_unix_s)
        if decode is not None:
            name = decode.worker.name
            expected[name] = expected.get(name, 0) + (timeline.prompt_tokens or 0)
            again_s[name] = again_s.get(name, 0.0) + _prefill_s(decode)
    came = {it.name: _came(it, timelines) for it in engines if it.fetched_tokens is not None}
    judged = [name for name in expected if name in came]
    if not judged:
        return None
    short = [name for name in judged if came[name] < (1 - TOLERATED_SHARE) * expected[name]]
    return HandOverUse(
        requests=len(handed),
        expected_tokens=sum(expected[name] for name in judged),
        came_tokens=sum(min(float(expected[name]), came[name]) for name in judged),
        again_s=sum(again_s[name] for name in short),
        engines=tuple(sorted(short)),
    )


def _decode_side(timeline: Timeline, began_unix_s: float) -> Attempt | None:
    """Whoever fetched before the window has counted before it."""
    serving = timeline.serving_attempt
    if serving is None or serving.kind is not AttemptKind.DECODE_SIDE:
        return None
    if serving.outcome is not Outcome.SUCCEEDED or not timeline.prompt_tokens:
        return None
    return serving if timeline.started_unix_s + serving.started_s >= began_unix_s else None


def _came(engine: EngineSurroundings, timelines: Sequence[Timeline]) -> float:
    """What it fetched, and what it had of prompts that were handed to it."""
    whole = sum(
        it.cached_tokens or 0
        for it in timelines
        if (serving := it.serving_attempt) is not None
        and serving.worker.name == engine.name
        and serving.kind is not AttemptKind.DECODE_SIDE
    )
    return (engine.fetched_tokens or 0.0) + max(0.0, (engine.own_hit_tokens or 0.0) - whole)


def _prefill_s(decode: Attempt) -> float:
    parts = {Part.PREFILL, Part.PREFILL_OTHERS}
    return sum(span.duration_s for span in decode.spans if span.part in parts and span.within is None)
