"""What a gateway runs in a process of its own: judges a past window, or draws one request.

It reads an order and timelines from stdin and writes one JSON object to stdout, so that the gateway's streams
never wait for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from phasewise.api.diagnose import judge
from phasewise.cli.app import engine_key
from phasewise.cli.explain import life_and_steps, model_shape
from phasewise.clients.step_feed import StepFeed
from phasewise.core import known_keys
from phasewise.core.engine_metrics import LoadReading
from phasewise.core.errors import PhasewiseError
from phasewise.core.slo import Slo
from phasewise.core.timeline import Attempt, Outcome, Part, Timeline
from phasewise.core.timeline_record import decode
from phasewise.diagnosis.diagnose import Known
from phasewise.diagnosis.gather.engine_watch import LOOK_BACK_S
from phasewise.diagnosis.observed.observation import EngineSeen, Observed, TargetKind, WatchedEngine
from phasewise.fleet.config import phasewise_home
from phasewise.report.diagnosis.page import report_page
from phasewise.report.request.page import request_page

Record = dict[str, Any]


def main() -> None:
    """Do what stdin orders."""
    os.nice(10)
    known_keys.find = engine_key
    order, *lines = sys.stdin.buffer.read().splitlines()
    asked = orjson.loads(order)
    timelines = [decode(line) for line in lines]
    do = asyncio.run(
        _verdict(asked, timelines) if asked["do"] == "verdict" else _request(asked, timelines[0])
    )
    sys.stdout.buffer.write(orjson.dumps(do))


async def _verdict(asked: Record, timelines: Sequence[Timeline]) -> Record:
    """The verdict on a window that has passed: a sentence, and the page that `diagnose --html` writes."""
    since_s, until_s = asked["since"], asked["until"]
    engines = await asyncio.gather(*(_seen(engine, since_s, until_s) for engine in asked["engines"]))
    reported = (seen_at(request, until_s) for request in timelines if request.started_unix_s < until_s)
    observed = Observed(
        url=asked["url"],
        kind=TargetKind.GATEWAY,
        began_unix_s=since_s,
        ended_unix_s=until_s,
        engines=tuple(engines),
        reported=tuple(
            request for request in reported if request.started_unix_s + request.ended_s >= since_s
        ),
        kept=True,
    )
    found = judge(observed, Slo(*asked["slo"]), Known(None), numbered=False)
    return {
        "verdict": found.verdict,
        "sentence": found.sentence,
        "html": report_page(found.details, found.evidence, found.target),
    }


def seen_at(timeline: Timeline, unix_s: float) -> Timeline:
    """The request as it was at a moment: what came later is left out."""
    age_s = unix_s - timeline.started_unix_s
    if timeline.ended_s <= age_s:
        return timeline
    content = tuple(time_s for time_s in timeline.content_times_s if time_s <= age_s)
    attempts = tuple(
        _cut(attempt, age_s, begun=bool(content))
        for attempt in timeline.attempts
        if attempt.started_s < age_s
    )
    return replace(
        timeline,
        outcome=Outcome.UNFINISHED,
        ended_s=age_s,
        content_times_s=content,
        attempts=attempts,
        output_tokens=None,
        finished_s=None,
        finish_reason=None,
        reason=None,
    )


def _cut(attempt: Attempt, age_s: float, *, begun: bool) -> Attempt:
    if attempt.ended_s <= age_s:
        return attempt
    spans = tuple(span for span in attempt.spans if begun and span.part is not Part.DECODE)
    return replace(attempt, ended_s=age_s, outcome=Outcome.UNFINISHED, spans=spans)


async def _seen(engine: Record, since_s: float, until_s: float) -> EngineSeen:
    """What is kept of an engine: its readings, and the steps that its recorder still holds."""
    watched, out = _watched(engine), engine["out_of_service"]
    loads = tuple(LoadReading(**load) for load in engine["loads"] if since_s <= load["at_unix_s"] <= until_s)
    seen = EngineSeen(watched, None, (), False, 0, loads, None, out_of_service=out)
    if watched.steps_url is None:
        return seen
    feed = StepFeed(watched.steps_url, since_unix_s=since_s - LOOK_BACK_S)
    try:
        batch = await feed.poll()
    except PhasewiseError:
        return seen
    finally:
        feed.close()
    steps = tuple(step for step in batch.steps if step.ended_unix_s <= until_s)
    return replace(seen, steps=steps, details=batch.details, recorded=True)


def _watched(engine: Record) -> WatchedEngine:
    return WatchedEngine(engine["name"], engine["url"], engine["steps_url"], engine["model"])


async def _request(asked: Record, timeline: Timeline) -> Record:
    """One request, as `explain --html` draws it."""
    names = {attempt.worker.name for attempt in timeline.attempts}
    engines = tuple(_watched(engine) for engine in asked["engines"] if engine["name"] in names)
    life, missing = await life_and_steps(timeline, engines)
    model = await model_shape(timeline, engines, None, phasewise_home(os.environ))
    return {"html": request_page(life, model, missing)}


if __name__ == "__main__":
    main()
