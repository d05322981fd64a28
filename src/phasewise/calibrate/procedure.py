"""A calibration from start to end: how fast is it, which scenes fit the time, play them in rounds, fit.

What is shown meanwhile and when to stop early is handed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from phasewise.adapters.host_cpu import read_cpu_times, stolen_share
from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.step_feed import StepFeed, default_steps_url
from phasewise.adapters.vllm_metrics import fetch_metrics
from phasewise.bench.target import find_target
from phasewise.calibrate.client_view import client_observations
from phasewise.calibrate.played import Played
from phasewise.calibrate.prober import Prober
from phasewise.calibrate.result import Calibration, Seen
from phasewise.calibrate.scenes import ROUNDS_WANTED, Limits, Scene, plan_scenes
from phasewise.costs.misfit import check_form
from phasewise.costs.observation import Observation
from phasewise.costs.regimes import RegimeStore
from phasewise.costs.step_fit import fit_steps
from phasewise.costs.step_history import observed_steps
from phasewise.errors import PhasewiseError, UpstreamError
from phasewise.workload.plan import CONTEXT_TOKENS

PACE_TOKENS = (64, 256, 512)
"""Prompts that tell how fast the engine is, the first of which warms it up."""
FEWEST_SCENES = 8
"""So many are played however slow the engine is."""
MOST_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class CalibrateSpec:
    """What to calibrate, and for how long."""

    budget_s: float = 120.0
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    steps_url: str | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CalibrateProgress:
    """How far a calibration is."""

    elapsed_s: float
    budget_s: float
    scenes: int


OnProgress = Callable[[CalibrateProgress], None]


def _nothing(progress: CalibrateProgress) -> None:
    pass


def _never() -> bool:
    return False


async def calibrate(
    url: str, spec: CalibrateSpec, on_progress: OnProgress = _nothing, stops: Callable[[], bool] = _never
) -> Calibration:
    """Play scenes for the time given and fit what was seen; `stops` ends it after the scene under way."""
    client = HttpClient(url)
    feed = await _recorder(spec.steps_url or default_steps_url(client.base_url))
    before = read_cpu_times()
    try:
        target = await find_target(client, spec.model, spec.api_key)
        rng = Random(spec.seed)  # noqa: S311 - probes to be repeated, no secret
        prober = Prober(client, target, rng)
        started_s = time.monotonic()
        limits = Limits(
            tokens_per_s=await _pace(prober),
            budget_s=spec.budget_s,
            context_tokens=target.context_tokens or CONTEXT_TOKENS,
            kv_tokens=await _kv_tokens(client),
        )
        scenes = plan_scenes(limits)
        played = await _rounds(prober, scenes, spec.budget_s, rng, on_progress, stops)
        observations, untold = await _observations(feed, played)
    finally:
        client.close()
        if feed is not None:
            feed.close()
    after = read_cpu_times()
    kept = list(RegimeStore(observations))
    fit = fit_steps(kept, np.random.default_rng(spec.seed))
    return Calibration(
        url=client.base_url,
        model=target.model,
        seen=Seen.STEPS if feed is not None else Seen.CLIENT,
        fit=fit,
        form=check_form(fit.fitted, kept),
        rounds=len(played) / len({each.scene for each in played}),
        untold=untold,
        took_s=time.monotonic() - started_s,
        stolen=stolen_share(before, after) if before is not None and after is not None else None,
        seed=spec.seed,
    )


async def _recorder(steps_url: str | None) -> StepFeed | None:
    """The engine's step record from now on; None where there is none, or one without token counts."""
    if steps_url is None:
        return None
    feed = StepFeed(steps_url, since_unix_s=time.time())
    try:
        if (await feed.poll()).details:
            return feed
    except PhasewiseError:
        pass
    feed.close()
    return None


async def _kv_tokens(client: HttpClient) -> int | None:
    try:
        return (await fetch_metrics(client)).kv_tokens
    except UpstreamError:
        return None


async def _pace(prober: Prober) -> float:
    """Prompt tokens per second of the fastest of a few prompts."""
    paces = []
    for tokens in PACE_TOKENS:
        (heard,) = (await prober.play(Scene(arrivals=(tokens,)))).arrivals
        if heard.times_s:
            paces.append(tokens / (heard.times_s[0] - heard.sent_s))
    return max(paces, default=1.0)


async def _rounds(
    prober: Prober,
    scenes: Sequence[Scene],
    budget_s: float,
    rng: Random,
    on_progress: OnProgress,
    stops: Callable[[], bool],
) -> list[Played]:
    """Play scenes in ever new order until the time is over.

    The first round goes from the smallest to the largest and ends in time for others to follow: scenes that
    it did not reach are too much for this engine.
    """
    started_s = time.monotonic()
    played: list[Played] = []
    order = sorted(scenes, key=lambda scene: scene.prompt_tokens)
    limit_s = budget_s / ROUNDS_WANTED
    while True:
        for scene in order:
            elapsed_s = time.monotonic() - started_s
            on_progress(CalibrateProgress(elapsed_s, budget_s, len(played)))
            if stops() or (elapsed_s >= limit_s and len(played) >= FEWEST_SCENES):
                break
            played.append(await prober.play(scene))
        if stops() or limit_s == budget_s:
            return played
        limit_s = budget_s
        reached = [each.scene for each in played]
        order = [scene for _ in range(MOST_ROUNDS) for scene in rng.sample(reached, len(reached))]


async def _observations(feed: StepFeed | None, played: Sequence[Played]) -> tuple[Sequence[Observation], int]:
    if feed is None:
        return client_observations(played), 0
    history = observed_steps((await feed.poll()).steps)
    return history.observations, history.untold
