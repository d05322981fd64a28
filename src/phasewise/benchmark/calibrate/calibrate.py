"""A calibration from start to end: measure the speed, choose scenes that fit the time, play them, fit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from phasewise.benchmark.calibrate.client_view import client_observations, heard_in_full
from phasewise.benchmark.calibrate.result import Calibration, Seen
from phasewise.benchmark.calibrate.scenes import (
    ROUNDS_WANTED,
    Played,
    Prober,
    Scene,
    SceneLimits,
    plan_scenes,
)
from phasewise.benchmark.target import Target, find_target
from phasewise.benchmark.workload.plan import CONTEXT_TOKENS
from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.host import read_cpu_times, stolen_share
from phasewise.clients.http_client import HttpClient
from phasewise.clients.step_feed import StepFeed, default_steps_url
from phasewise.core.errors import MeasurementError, PhasewiseError, UpstreamError
from phasewise.core.steps import EngineStep
from phasewise.costs.fit.misfit import check_form
from phasewise.costs.fit.observation import StepHistory, latest_of_each_regime, observed_steps
from phasewise.costs.fit.step_fit import fit_steps
from phasewise.engines.known import USUAL

PACE_TOKENS = (64, 256, 512)
"""Prompts that show how fast the engine is; the first one warms it up."""
FEWEST_SCENES = 8
"""The fewest scenes to play, even on a slow engine."""
LISTEN_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class CalibrateSpec:
    """What to calibrate, and for how long; with `listens` no requests are sent."""

    budget_s: float = 120.0
    listens: bool = False
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    steps_url: str | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CalibrateProgress:
    """The progress of a calibration."""

    elapsed_s: float
    budget_s: float
    done: str


@dataclass(slots=True)
class _Gathered:
    """What a calibration has observed so far, from either source."""

    steps: list[EngineStep] = field(default_factory=list)
    played: list[Played] = field(default_factory=list)

    @property
    def rounds(self) -> float:
        """How often each scene was played, on average."""
        return len(self.played) / len({each.scene for each in self.played}) if self.played else 0.0

    def history(self) -> StepHistory:
        """The known steps: from the step record if there is one, else from what clients observed.

        The front end is no part of a step: only clients observe it, with prompts that ran alone.
        """
        if self.steps:
            known = observed_steps(self.steps)
            alone = (seen for seen in client_observations(self.played) if seen.through_front_end)
            return StepHistory((*known.observations, *alone), known.unreported)
        unreported = len(self.played) - len(heard_in_full(self.played))
        return StepHistory(client_observations(self.played), unreported)


@dataclass(slots=True)
class Course:
    """The course of a calibration: observers get its progress, and can stop it early."""

    progress: CalibrateProgress | None = None
    stopped: bool = False

    def notify(self, progress: CalibrateProgress) -> None:
        """Report the progress."""
        self.progress = progress

    def stop(self) -> None:
        """End after the current scene."""
        self.stopped = True


async def calibrate(url: str, spec: CalibrateSpec, course: Course | None = None) -> Calibration:
    """Gather steps for the given time, from scenes or by listening, and fit what was observed."""
    course = course or Course()
    client = HttpClient(url)
    before, started_s = read_cpu_times(), time.monotonic()
    steps_url = spec.steps_url or default_steps_url(client.base_url)
    feed, no_record = await _recorder(steps_url, None if spec.listens else time.time())
    try:
        target = await find_target(client, spec.model, spec.api_key)
        gathered = await (
            _listen(feed, no_record, spec, course)
            if spec.listens
            else _probe(client, target, feed, spec, course)
        )
    finally:
        client.close()
        if feed is not None:
            feed.close()
    after = read_cpu_times()
    history = gathered.history()
    kept = latest_of_each_regime(history.observations)
    fit = fit_steps(kept, np.random.default_rng(spec.seed))
    return Calibration(
        url=client.base_url,
        model=target.model,
        model_root=target.root,
        seen=Seen.STEPS if gathered.steps else Seen.CLIENT,
        no_record=no_record,
        fit=fit,
        form=check_form(fit.fitted, kept),
        rounds=gathered.rounds,
        unreported=history.unreported,
        took_s=time.monotonic() - started_s,
        stolen=stolen_share(before, after) if before is not None and after is not None else None,
        seed=spec.seed,
    )


async def _recorder(steps_url: str | None, since_unix_s: float | None) -> tuple[StepFeed | None, str]:
    """The engine's step record, or why it cannot be used."""
    if steps_url is None:
        return None, "this address does not show where its step recorder listens: give --steps-url"
    feed = StepFeed(steps_url, since_unix_s=since_unix_s)
    try:
        if (await feed.peek()).details:
            return feed, ""
        reason = f"its step recorder counts no tokens: start it with {USUAL.FLAGS['step_tokens']}"
    except PhasewiseError:
        reason = f"no step recorder answers at {steps_url}: `phasewise engine install` adds one to an engine"
    feed.close()
    return None, reason


async def _listen(feed: StepFeed | None, no_record: str, spec: CalibrateSpec, course: Course) -> _Gathered:
    """Send nothing: read what the record holds, and what other traffic adds to it."""
    if feed is None:
        raise MeasurementError(
            f"listening needs a step record, but {no_record}", hint="remove --listen to probe the engine"
        )
    gathered = _Gathered()
    started_s = time.monotonic()
    while True:
        gathered.steps += (await feed.poll()).steps
        elapsed_s = time.monotonic() - started_s
        course.notify(CalibrateProgress(elapsed_s, spec.budget_s, f"{len(gathered.steps)} steps recorded"))
        if course.stopped or elapsed_s >= spec.budget_s:
            return gathered
        await asyncio.sleep(min(LISTEN_EVERY_S, spec.budget_s))


async def _probe(
    client: HttpClient, target: Target, feed: StepFeed | None, spec: CalibrateSpec, course: Course
) -> _Gathered:
    """Play scenes in random order until time is up."""
    rng = Random(spec.seed)  # noqa: S311 - reproducible probes, no secret
    prober = Prober(client, target, rng)
    context_tokens = target.context_tokens or CONTEXT_TOKENS
    limits = SceneLimits(
        tokens_per_s=await _pace(prober, context_tokens),
        budget_s=spec.budget_s,
        context_tokens=context_tokens,
        kv_tokens=await _kv_tokens(client),
    )
    gathered = _Gathered()
    started_s = time.monotonic()
    for scene, deadline_s in _order(plan_scenes(limits), spec.budget_s, gathered.played, rng):
        elapsed_s = time.monotonic() - started_s
        played = len(gathered.played)
        course.notify(CalibrateProgress(elapsed_s, spec.budget_s, f"{played} scenes played"))
        if course.stopped or (elapsed_s >= spec.budget_s and played >= FEWEST_SCENES):
            break
        if elapsed_s >= deadline_s and played >= FEWEST_SCENES:
            continue
        gathered.played.append(await prober.play(scene))
        if feed is not None:
            # Often enough that the recorder's ring never overwrites unread steps.
            gathered.steps += (await feed.poll()).steps
    return gathered


def _order(
    scenes: Sequence[Scene], budget_s: float, played: Sequence[Played], rng: Random
) -> Iterator[tuple[Scene, float]]:
    """Scenes with the latest start of each: first from the smallest to the largest, then drawn without end.

    The first round leaves time for others; scenes that it did not reach are too large for this engine.
    """
    for scene in sorted(scenes, key=lambda each: each.prompt_tokens):
        yield scene, budget_s / ROUNDS_WANTED
    reached = [each.scene for each in played]
    while True:
        for scene in rng.sample(reached, len(reached)):
            yield scene, budget_s


async def _kv_tokens(client: HttpClient) -> int | None:
    try:
        return (await fetch_metrics(client)).kv_tokens
    except UpstreamError:
        return None


async def _pace(prober: Prober, context_tokens: int) -> float:
    """Prompt tokens per second of the fastest of a few prompts that fit the context."""
    paces = []
    for tokens in (each for each in PACE_TOKENS if each < context_tokens):
        (heard,) = (await prober.play(Scene(arrivals=(tokens,)))).arrivals
        if heard.times_s:
            paces.append(tokens / (heard.times_s[0] - heard.sent_s))
    return max(paces, default=1.0)
