"""Reads the step records of the engines that served one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.clients.step_feed import StepBatch, StepFeed
from phasewise.core.errors import PhasewiseError
from phasewise.core.steps import StepLog, logs_by_rank
from phasewise.core.timeline import Timeline
from phasewise.diagnosis.gather.engine_watch import LOOK_BACK_S
from phasewise.diagnosis.observed.observation import WatchedEngine
from phasewise.engines.known import USUAL


@dataclass(frozen=True, slots=True)
class RequestSteps:
    """The step record of each worker around the time of a request, and why there is none, if so."""

    logs: dict[str, tuple[StepLog, ...]]
    missing: tuple[str, ...] = ()


async def request_steps(timeline: Timeline, engines: Sequence[WatchedEngine]) -> RequestSteps:
    """The steps since a while before the request arrived, of the engines that began its answer."""
    attempts = (timeline.prefill_attempt, timeline.serving_attempt)
    names = dict.fromkeys(attempt.worker.name for attempt in attempts if attempt is not None)
    known = {engine.name: engine.steps_url for engine in engines}
    logs: dict[str, tuple[StepLog, ...]] = {}
    missing = []
    for name in names:
        if (url := known.get(name)) is None:
            missing.append(f"{name} has no step recorder (`steps_url`)")
            continue
        feed = StepFeed(url, since_unix_s=timeline.started_unix_s - LOOK_BACK_S)
        try:
            batch = await feed.poll()
        except PhasewiseError as error:
            missing.append(error.message)
            continue
        finally:
            feed.close()
        if (why := _lacks(batch, timeline)) is not None:
            missing.append(f"{name} {why}")
        logs[name] = logs_by_rank(batch.steps)
    return RequestSteps(logs, tuple(missing))


def _lacks(batch: StepBatch, timeline: Timeline) -> str | None:
    """Why these steps do not explain the request; None if they may."""
    ended_s = timeline.started_unix_s + timeline.ended_s
    if not batch.steps or batch.steps[0].ended_unix_s > ended_s:
        return "keeps no steps from before this request ended: it was restarted, or they were overwritten"
    if not batch.details:
        return f"records no token counts: start it with {USUAL.FLAGS['step_tokens']}"
    return None
