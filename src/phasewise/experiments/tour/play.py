"""Plays the tour on an engine that nobody else uses: about forty requests, at most eight at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from uuid import uuid4

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import MeasurementError
from phasewise.core.timeline import Outcome, Timeline
from phasewise.experiments.tour.stops import (
    BATCH,
    EIGHT_AT_ONCE,
    FIRST,
    PROMPT,
    STOPS,
    STREAM_ANSWER,
    TIMES,
    Played,
    Sizes,
    Stop,
    under_way_s,
)
from phasewise.loadgen.generator import LoadGenerator, RunLimits
from phasewise.loadgen.target import find_target, fit_prompts
from phasewise.loadgen.workload.plan import CONTEXT_MARGIN_TOKENS, CONTEXT_TOKENS

REQUEST_LIMIT_S = 180.0

OnBegin = Callable[[Stop], None]
OnEnd = Callable[[Played], None]


def _reject_failed(url: str, stop: Stop, timelines: Sequence[Timeline]) -> None:
    failed = [it for it in timelines if it.outcome is not Outcome.SUCCEEDED]
    if failed:
        raise MeasurementError(
            f"{len(failed)} of {len(timelines)} requests to {url} failed in '{stop.title}' "
            f"({failed[0].reason or failed[0].outcome.value})",
            hint="see whether the engine still runs, and read its log",
        )


async def play_tour(
    url: str,
    model: str | None,
    api_key: str | None,
    seed: int,
    on_begin: OnBegin,
    on_end: OnEnd,
    admin_key: str | None = None,
) -> tuple[Played, ...]:
    """The first stop and the five others, in their order; both are called for each.

    Raises MeasurementError if a request fails: what is left could not be compared.
    """
    client = HttpClient(url)
    rng = Random(seed)  # noqa: S311 - prompts, not secrets
    try:
        target = await find_target(client, model, api_key, admin_key)
        longest = (target.context_tokens or CONTEXT_TOKENS) - STREAM_ANSWER - CONTEXT_MARGIN_TOKENS
        sizes = Sizes(prompt=min(PROMPT, longest // TIMES))
        played = []
        for stop in (FIRST, *STOPS):
            on_begin(stop)
            plan = await fit_prompts(client, target, stop.plan(sizes, rng), rng)
            limits = RunLimits(request_s=REQUEST_LIMIT_S, in_flight=BATCH)
            generator = LoadGenerator(client, target, plan, f"tour-{uuid4().hex[:12]}", limits)
            timelines = tuple((await generator.run()).timelines)
            _reject_failed(url, stop, timelines)
            played.append(Played(stop, timelines))
            if stop is EIGHT_AT_ONCE:
                sizes = replace(sizes, late_s=under_way_s(timelines))
            on_end(played[-1])
        return tuple(played)
    finally:
        client.close()
