"""How wrong is the fitted cost of a step, on steps it was not fitted to?

    python benchmarks/calibration.py [--minutes 12] [--quick] [--json]

One real engine is played a calibration's own scenes and others of different sizes, all in ever new order.
The fit is made from the calibration's scenes alone. Of every kind of step in the other scenes the median time
is held against the fit's (`prefill_error`, `decode_error`, `mixed_error`: medians over kinds of step), beside
how much the medians of its odd and even rounds differ from each other (`aa_error`): the noise of half the
readings. Rounds go on until `aa_error` is at most 5% twice in a row or the time is over. `coverage` is the
share of single steps that fell into their stated 90% interval. `two_minutes` are the same figures for a fit
to the first two minutes of the calibration's scenes alone, as a user has it.

The same fit is then tried on fake engines, one of the fitted form and two of others: `forms` says of each
whether its residuals called the form right.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, inf
from pathlib import Path
from random import Random
from statistics import fmean, median

import numpy as np
from script import command_line, use_home
from stress.processes import real_engine

from phasewise.benchmark.calibrate.calibrate import CalibrateSpec, calibrate
from phasewise.benchmark.calibrate.scenes import Prober, Scene, SceneLimits, plan_scenes
from phasewise.benchmark.target import find_target
from phasewise.clients.host import read_cpu_times, stolen_share
from phasewise.clients.http_client import HttpClient
from phasewise.clients.step_feed import StepFeed, default_steps_url
from phasewise.costs.fit.misfit import check_form
from phasewise.costs.fit.observation import Observation, latest_of_each_regime, observed_steps
from phasewise.costs.fit.step import StepCost, StepKind, StepSeconds, StepWork
from phasewise.costs.fit.step_fit import CONFIDENCE, StepFit, fit_steps
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines

ROOT = Path(__file__).parent.parent
FLEET = "calibration-bench"
AA_TARGET = 0.05
FEWEST_ROUNDS = 6
QUICK_ROUNDS = 3
QUICK_TOKENS = 1_000
"""A quick run plays the scenes with fewer prompt tokens, often enough for intervals of every phase alone."""
SEED = 20261115
USERS_BUDGET_S = 120.0

Say = Callable[[str], None]

HELD_OUT = (
    *(Scene(arrivals=(tokens,)) for tokens in (21, 52, 90, 136, 215, 340, 560, 900, 1400)),
    Scene(1, 120, (30, 340)),
    Scene(2, 600, (80, 500)),
    Scene(3, 48, (136, 800)),
    Scene(6, 200, (215, 52)),
    Scene(12, 40, (340, 110)),
    Scene(12, 130, (600, 30)),
    Scene(24, 40, (170, 420)),
)
"""Sizes that lie between those of a calibration."""


@dataclass(slots=True)
class Visit:
    """One playing of a scene: when, in which round, and whether it was held out."""

    scene: Scene
    held_out: bool
    round: int
    started_unix_s: float
    ended_unix_s: float
    steps: list[Observation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepGroup:
    """The steps of one kind in one held-out scene, over all rounds."""

    kind: StepKind
    predicted_s: float
    seconds: tuple[float, ...]
    odd_s: tuple[float, ...]
    even_s: tuple[float, ...]

    @property
    def error(self) -> float:
        """How far the fit is from the median of all readings."""
        return abs(self.predicted_s / median(self.seconds) - 1)

    @property
    def aa_error(self) -> float:
        """How far the odd rounds' median is from the even rounds'."""
        return abs(median(self.odd_s) / median(self.even_s) - 1)


def main() -> None:
    """Play, fit, hold against what was left out, try other forms, and print one JSON object."""
    parser = command_line(__doc__, quick="three short rounds: proves that it runs")
    parser.add_argument("--minutes", type=float, default=12.0, help="the most to spend on the real engine")
    options = parser.parse_args()
    say = (lambda words: None) if options.json else (lambda words: print(words, flush=True))
    budget_s = 20.0 if options.quick else 60 * options.minutes
    before = read_cpu_times()
    use_home()
    with real_engine(FLEET) as state:
        visits = asyncio.run(play(state["engines"][0]["url"], budget_s, options.quick, say))
    after = read_cpu_times()
    result = judged(visits)
    result["stolen_share"] = round(stolen_share(before, after), 4) if before and after else None
    result["forms"] = asyncio.run(other_forms(options.quick, say))
    print(json.dumps(result | {"quick": options.quick}))


async def play(url: str, budget_s: float, quick: bool, say: Say) -> list[Visit]:
    """Rounds of all scenes until two halves agree or the time is over; visits hold the steps they made."""
    client = HttpClient(url)
    rng = Random(SEED)
    target = await find_target(client)
    prober = Prober(client, target, rng)
    calibration = plan_scenes(SceneLimits(900.0, 120.0, target.context_tokens or 8192, 40_000))
    scenes = [(scene, False) for scene in calibration] + [(scene, True) for scene in HELD_OUT]
    if quick:
        scenes = [each for each in scenes if each[0].prompt_tokens < QUICK_TOKENS]
    await prober.play(Scene(2, 64, (256,)))
    feed = StepFeed(default_steps_url(url) or "", since_unix_s=time.time())
    await feed.poll()
    visits: list[Visit] = []
    observations: list[Observation] = []
    started_s = time.monotonic()
    number = quiet = 0
    while True:
        number += 1
        for scene, held_out in rng.sample(scenes, len(scenes)):
            at_s = time.time()
            await prober.play(scene)
            visits.append(Visit(scene, held_out, number, at_s, time.time()))
        # Clocks of one machine: the record's times are ours.
        observations += observed_steps((await feed.poll()).steps).observations
        elapsed_s = time.monotonic() - started_s
        if number >= (QUICK_ROUNDS if quick else FEWEST_ROUNDS):
            assign(visits, observations)
            aa_error = repeat_error(visits)
            quiet = quiet + 1 if aa_error <= AA_TARGET else 0
            say(f"round {number}: {elapsed_s:.0f} s, a repeat differs by {aa_error:.1%}")
            if quiet == 2 or elapsed_s * (number + 1) / number > budget_s:
                break
        else:
            say(f"round {number}: {elapsed_s:.0f} s")
    feed.close()
    client.close()
    return visits


def assign(visits: Sequence[Visit], observations: Sequence[Observation]) -> None:
    """Give every visit the steps that ended while it lasted."""
    ordered = sorted(observations, key=lambda each: each.at_s)
    ends_s = np.array([each.at_s for each in ordered])
    for visit in visits:
        first, last = np.searchsorted(ends_s, [visit.started_unix_s, visit.ended_unix_s])
        visit.steps = ordered[first:last]


def repeat_error(visits: Sequence[Visit]) -> float:
    """How much the medians of odd and even rounds differ, over all kinds of held-out step."""
    groups, _ = step_groups(fitted_to(visits), [visit for visit in visits if visit.held_out])
    return median(group.aa_error for group in groups) if groups else inf


def fitted_to(visits: Sequence[Visit]) -> StepFit:
    """The fit to a calibration's own scenes."""
    steps = (step for visit in visits if not visit.held_out for step in visit.steps)
    return fit_steps(latest_of_each_regime(steps), np.random.default_rng(SEED))


def first_two_minutes(visits: Sequence[Visit]) -> list[Visit]:
    """The calibration's scenes that a user's two minutes hold."""
    own = [visit for visit in visits if not visit.held_out]
    took_s = np.cumsum([visit.ended_unix_s - visit.started_unix_s for visit in own])
    return own[: int(np.searchsorted(took_s, USERS_BUDGET_S))]


def judged(visits: Sequence[Visit]) -> dict[str, object]:
    """The figures: of the fit to all rounds, and of one to what a user's two minutes hold."""
    held_out = [visit for visit in visits if visit.held_out]
    fit = fitted_to(visits)
    groups, _ = step_groups(fit, held_out)
    aa_errors = {
        kind: median_of([group.aa_error for group in groups if group.kind is kind]) for kind in StepKind
    }
    aa_error = median_of([group.aa_error for group in groups])
    users = fitted_to(first_two_minutes(visits))
    return errors_of(fit, held_out) | {
        "aa_error": aa_error,
        "aa_errors": {kind.value: error for kind, error in aa_errors.items()},
        "aa_reached": aa_error is not None and aa_error <= AA_TARGET,
        "stated_coverage": CONFIDENCE,
        "two_minutes": errors_of(users, held_out),
        "held_out_steps": sum(len(visit.steps) for visit in held_out),
        "rounds": max(visit.round for visit in visits),
        "fitted_steps": fit.observations,
        "form_fits": check_form(fit.fitted, [step for visit in visits for step in visit.steps]).fits,
        "cost": asdict(fit.cost),
    }


def errors_of(fit: StepFit, held_out: Sequence[Visit]) -> dict[str, object]:
    """How wrong a fit is on the held-out scenes, by kind of step, and how often its intervals hold."""
    groups, unknown = step_groups(fit, held_out)
    by_kind = {kind: [group.error for group in groups if group.kind is kind] for kind in StepKind}
    inside: dict[StepKind, list[float]] = {kind: [] for kind in StepKind}
    for step in (step for visit in held_out for step in visit.steps):
        if (covered := is_covered(fit, step)) is not None:
            inside[step.kind].append(float(covered))
    return {f"{kind.value}_error": median_of(errors) for kind, errors in by_kind.items()} | {
        "coverage": mean_of([each for found in inside.values() for each in found]),
        "coverage_by_kind": {kind.value: mean_of(found) for kind, found in inside.items()},
        "kinds_of_step": {kind.value: len(errors) for kind, errors in by_kind.items()},
        "unknown_kinds_of_step": unknown,
    }


def median_of(values: Sequence[float]) -> float | None:
    """The median, None of nothing."""
    return round(median(values), 4) if values else None


def mean_of(values: Sequence[float]) -> float | None:
    """The mean, None of nothing."""
    return round(fmean(values), 4) if values else None


def step_groups(fit: StepFit, visits: Sequence[Visit]) -> tuple[list[StepGroup], int]:
    """Held-out steps by scene and load, those seen in both halves; and how many kinds the fit cannot tell."""
    members: dict[tuple[Scene, StepKind, int, int], list[tuple[int, Observation]]] = {}
    for visit in visits:
        for step in visit.steps:
            (work,) = step.works
            key = (visit.scene, work.kind, work.prompt_tokens, work.decode_tokens)
            members.setdefault(key, []).append((visit.round, step))
    groups, unknown = [], 0
    for (_, kind, _, _), own in members.items():
        odd_s = tuple(step.seconds for number, step in own if number % 2)
        even_s = tuple(step.seconds for number, step in own if not number % 2)
        predictions = [fit.predict(step.works[0]) for _, step in own]
        if not odd_s or not even_s:
            continue
        if any(prediction is None for prediction in predictions):
            unknown += 1
            continue
        predicted_s = median(prediction.seconds for prediction in predictions if prediction is not None)
        groups.append(StepGroup(kind, predicted_s, odd_s + even_s, odd_s, even_s))
    return groups, unknown


def is_covered(fit: StepFit, step: Observation) -> bool | None:
    """Whether a step fell into its interval; None where the fit makes no claim."""
    predicted = fit.predict(step.works[0])
    return None if predicted is None else predicted.interval.low <= step.seconds <= predicted.interval.high


SAME = StepCost(
    floor_s=8e-3,
    knee_tokens=128,
    beyond_knee_s_per_token=40e-6,
    attention_s_per_token_pair=8e-9,
    kv_read_s_per_token=0.4e-6,
    per_request_s=50e-6,
)


def step_function(work: StepWork) -> float:
    """Tokens are paid for in tiles of 512, begun ones in full."""
    return 4e-3 + 20e-3 * ceil(work.tokens / 512) + 50e-6 * work.requests


def cache_cliff(work: StepWork) -> float:
    """Context beyond what a cache holds costs many times as much."""
    beyond = max(0, work.kv_read_tokens - 3_000) + max(0, work.attention_token_pairs - 300_000) / 100
    return SAME(work) + 8e-6 * beyond


FORMS: dict[str, StepSeconds] = {"same": SAME, "step_function": step_function, "cache_cliff": cache_cliff}


async def other_forms(quick: bool, say: Say) -> dict[str, object]:
    """Calibrate fake engines over HTTP as if they were real, and hear whether the form fits."""
    reported: dict[str, object] = {}
    for name, cost in FORMS.items():
        async with running_engines(1, FakeEngineConfig(cost=cost)) as (engine,):
            spec = CalibrateSpec(budget_s=6.0 if quick else 40.0, steps_url=engine.steps_url, seed=SEED)
            found = await calibrate(engine.base_url, spec)
        reported[name] = {
            "fits": found.form.fits,
            "missed": len(found.form.missed),
            "of": len(found.form.cells),
        }
        say(f"{name}: {reported[name]}")
    return reported


if __name__ == "__main__":
    main()
