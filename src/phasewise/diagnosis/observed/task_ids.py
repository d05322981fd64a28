"""Gives requests in an engine's listed steps the ids by which its replies name them.

An engine that lists its requests numbers them, and its replies do not have that number. But both end at about
the same time, with prompts of the same length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phasewise.core.steps import EngineStep, FinishedRequest
from phasewise.core.timeline import Timeline

ENDS_WITHIN_S = 0.5


def with_reply_ids(
    engine: str, steps: Sequence[EngineStep], timelines: Sequence[Timeline]
) -> tuple[EngineStep, ...]:
    """The same steps; a request of which no reply was seen keeps its number."""
    open_replies = [found for it in timelines if (found := _reply(engine, it)) is not None]

    def named(step: EngineStep, ended: FinishedRequest) -> FinishedRequest:
        alike = [
            it
            for it in open_replies
            if it[1] == ended.prompt_tokens and abs(it[0] - step.ended_unix_s) < ENDS_WITHIN_S
        ]
        if not alike:
            return ended
        nearest = min(alike, key=lambda it: abs(it[0] - step.ended_unix_s))
        open_replies.remove(nearest)
        return replace(ended, request_id=nearest[2])

    return tuple(
        replace(step, finished=tuple(named(step, ended) for ended in step.finished))
        if step.finished
        else step
        for step in steps
    )


def _reply(engine: str, timeline: Timeline) -> tuple[float, int, str] | None:
    """When its last token came, the tokens of its prompt, and its id; None if another engine sent it."""
    serving = timeline.serving_attempt
    if serving is None or serving.worker.name != engine or not serving.engine_request_id:
        return None
    if timeline.prompt_tokens is None:
        return None
    last_s = timeline.content_times_s[-1] if timeline.content_times_s else timeline.ended_s
    return timeline.started_unix_s + last_s, timeline.prompt_tokens, serving.engine_request_id
