"""The outcome of a window's KV transfers: whether KV arrived, or prompts were computed twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.core.timeline import Attempt, AttemptKind, Outcome, Part, Timeline
from phasewise.diagnosis.analysis.engine_load import EngineSurroundings

TOLERATED_SHARE = 0.05
"""A decode engine may compute a prompt's last token or block itself."""


@dataclass(frozen=True, slots=True)
class KvTransferUse:
    """Requests of the window whose prefill and decode ran on different engines.

    `expected_tokens` are their prompt tokens, `came_tokens` those whose KV the decode engines fetched or had,
    by their counters (which may include other gateways' requests). `again_s` is the total prefill time that
    the decode engines report. `engines` are those whose KV did not arrive.
    """

    requests: int
    expected_tokens: int
    came_tokens: float
    again_s: float
    engines: tuple[str, ...] = ()

    @property
    def recomputed_tokens(self) -> float:
        return max(0.0, self.expected_tokens - self.came_tokens)


def kv_transfer_use(
    timelines: Sequence[Timeline], engines: Sequence[EngineSurroundings], began_unix_s: float
) -> KvTransferUse | None:
    """The KV transfers that began in the window, by counters; None without transfers or counters."""
    handed = [timeline for timeline in timelines if _decode_side(timeline, began_unix_s) is not None]
    expected: dict[str, int] = {}
    again_s: dict[str, float] = {}
    for timeline in handed:
        decode = _decode_side(timeline, began_unix_s)
        if decode is not None:
            name = decode.worker.name
            expected[name] = expected.get(name, 0) + (timeline.prompt_tokens or 0)
            again_s[name] = again_s.get(name, 0.0) + _prefill_s(decode)
    came = {engine.name: _came(engine, timelines) for engine in engines if engine.fetched_tokens is not None}
    judged = [name for name in expected if name in came]
    if not judged:
        return None
    short = [name for name in judged if came[name] < (1 - TOLERATED_SHARE) * expected[name]]
    return KvTransferUse(
        requests=len(handed),
        expected_tokens=sum(expected[name] for name in judged),
        came_tokens=sum(min(float(expected[name]), came[name]) for name in judged),
        again_s=sum(again_s[name] for name in short),
        engines=tuple(sorted(short)),
    )


def _decode_side(timeline: Timeline, began_unix_s: float) -> Attempt | None:
    """The attempt that fetched KV in the window; a fetch before it was counted before it."""
    serving = timeline.serving_attempt
    if serving is None or serving.kind is not AttemptKind.DECODE_SIDE:
        return None
    if serving.outcome is not Outcome.SUCCEEDED or not timeline.prompt_tokens:
        return None
    return serving if timeline.started_unix_s + serving.started_s >= began_unix_s else None


def _came(engine: EngineSurroundings, timelines: Sequence[Timeline]) -> float:
    """The tokens that it fetched, and those of transferred prompts that it had cached."""
    whole = sum(
        timeline.cached_tokens or 0
        for timeline in timelines
        if (serving := timeline.serving_attempt) is not None
        and serving.worker.name == engine.name
        and serving.kind is not AttemptKind.DECODE_SIDE
    )
    return (engine.fetched_tokens or 0.0) + max(0.0, (engine.own_hit_tokens or 0.0) - whole)


def _prefill_s(decode: Attempt) -> float:
    parts = {Part.PREFILL, Part.PREFILL_OTHERS}
    return sum(span.duration_s for span in decode.spans if span.part in parts and span.within is None)
