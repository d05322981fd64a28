"""Do predicted effects of fixes come true on a real engine?

    python benchmarks/predictions.py [--pairs 4] [--only NAME,...] [--quick] [--json]

One engine is calibrated for two minutes. Then, for each fix: its traffic is put on the engine as it is, the
effect of the fix is predicted from that window and the fit alone, and only then the fix is measured, pairs of
blocks in turn as `phasewise compare` does, on an engine that has it. Both engines are up, one at a time has
work. The cases and the predictor come from the same hands; cases were chosen for the levers they show, before
anything was predicted.

The last line is one JSON object: `fixes`, of which `covered` had the measured ratio of the figure that they
aim at inside its 90% interval. `signed` are those whose two intervals, predicted and measured, both exclude
1, and `sign_right` of them moved the way that was said. `median_width` is how many times its low end the high
end of a predicted interval is: a wide one covers everything. A fix of which nothing was predicted counts as
not covered, and `not_predicted` says why. `figures` and what begins with it count all figures of all fixes.

`--quick` tries one fix on a fake engine whose costs are learned as a real one's are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson
from copying import COPYING
from guessing import guess_answer
from script import command_line, say, use_home

from phasewise.benchmark.calibrate.calibrate import CalibrateSpec, calibrate
from phasewise.benchmark.compare.arms import FleetArm, UrlArm
from phasewise.benchmark.compare.compare import ComparePlan, Measure, compare_arms
from phasewise.benchmark.compare.verdict import METRICS, Rules
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.session import RunSpec, measure
from phasewise.benchmark.statistics.comparison import Comparison
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.benchmark.workload.plan import PlanSpec
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import MeasurementError, PhasewiseError
from phasewise.core.slo import DEFAULT_SLO
from phasewise.costs.fit.observation import observed_steps
from phasewise.costs.fit.record import fit_from_record, fit_record
from phasewise.costs.fit.step import StepCost
from phasewise.costs.fit.step_fit import StepFit, fit_steps
from phasewise.diagnosis.advice.fix import Advice, Effect, Figure, Fix, LeverChange
from phasewise.diagnosis.analysis.engine_load import EngineSurroundings
from phasewise.diagnosis.predict.effects import predict_advice
from phasewise.diagnosis.predict.setup import DraftReading, setup_of
from phasewise.diagnosis.predict.traffic import recorded_traffic
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import FleetConfig, GatewayConfig, Levers, Pool, Speculation
from phasewise.fleet.local.run_files import RunPaths, read_state
from phasewise.simulator.engine import EngineShape

ROOT = Path(__file__).resolve().parent.parent
SEED = 20261115
ENGINE_PORT, GATEWAY_PORT = 19400, 19500
MOST_ENGINES = 3
"""Each holds three gigabytes; the first one stays up to the end."""
CALIBRATION_S = 120.0
LAST_BEGIN_S = 19 * 60
"""No fix is begun later: all of it takes some 21 minutes on two calm cores, of which nine starts of an engine
take five, the calibration two, and the blocks of each fix two."""
GUESSED_OUTPUT = 32
PROBED, UNPROBED = COPYING.prompts[::2], COPYING.prompts[1::2]
"""Answers to the first tell how many guesses would be right; the others are measured, so that a forecast has
not seen its test."""
FIGURES = tuple(metric for metric in METRICS if metric.name in set(Figure))

Say = Callable[[str], None]
Row = dict[str, Any]
"""A fix in the record: what was predicted and measured, or why not."""


@dataclass(frozen=True)
class Case:
    """A fix to be predicted and then measured: two engines that differ by one lever, and the traffic."""

    name: str
    before: Levers
    after: Levers
    change: LeverChange
    aims_at: Figure
    plan: PlanSpec
    warm_up: int = 0
    guesses: bool = False

    @property
    def concurrency(self) -> int:
        """Clients that send a request when another one ends."""
        assert isinstance(self.plan.load, ClosedLoop)
        return self.plan.load.concurrency


def plan(prompt: int, output: Lengths | int, at_once: int, requests: int, shared: int = 0) -> PlanSpec:
    """A closed loop of requests that are much alike."""
    lengths = output if isinstance(output, Lengths) else Lengths.fixed(output)
    shape = Shape("one fix", Lengths.fixed(prompt), lengths, shared, shared_share=1.0 if shared else 0.0)
    return PlanSpec(source=shape, load=ClosedLoop(at_once), requests=requests)


BASE = Levers(prefix_cache=False)
"""Its prefix cache is off, so that nothing but the lever under trial makes prompts shorter."""
SMALL_CONTEXT = 768
"""Eight blocks of KV hold one request of this length, and no more than two of the traffic's."""


def base(**levers: object) -> Levers:
    """The base engine with something changed."""
    return BASE.model_copy(update=levers)


SHORT = Lengths(median_tokens=12, spread=0.4, low_tokens=8, high_tokens=20)
"""With three clients every prompt stalls a token of the others: one gap in eight, and nearly one in two with
chunks of a quarter, so the 99th percentile lies amid stalls before and after. With a fourth client two
prompts share a step about once in fifty gaps, and the percentile would lie on the edge between stalls of one
prompt and of two."""

CASES = (
    Case(
        "smaller_chunks",
        BASE,
        base(max_num_batched_tokens=256),
        LeverChange("max_num_batched_tokens", 256),
        Figure.ITL_P99,
        plan(900, SHORT, 3, 18),
    ),
    Case(
        "larger_chunks",
        base(max_num_batched_tokens=64),
        BASE,
        LeverChange("max_num_batched_tokens", 2048),
        Figure.TTFT_P50,
        plan(768, 4, 1, 10),
        warm_up=1,
    ),
    Case(
        "prefix_cache",
        BASE,
        base(prefix_cache=True),
        LeverChange("prefix_cache", True),
        Figure.TTFT_P50,
        plan(1024, 4, 1, 11, shared=960),
        warm_up=1,
    ),
    Case(
        "higher_batch_cap",
        base(max_num_seqs=2),
        BASE,
        LeverChange("max_num_seqs", 256),
        Figure.TTFT_P50,
        plan(64, 16, 8, 24),
        warm_up=8,
    ),
    Case(
        "more_kv_cache",
        base(kv_cache_memory_bytes="24MiB", max_model_len=SMALL_CONTEXT),
        base(kv_cache_memory_bytes="96MiB", max_model_len=SMALL_CONTEXT),
        LeverChange("kv_cache_memory_bytes", "96MiB"),
        Figure.TTFT_P50,
        plan(300, 16, 6, 18),
        warm_up=6,
    ),
    Case(
        "guesses",
        BASE,
        base(speculation=Speculation()),
        LeverChange("speculation", Speculation().tokens),
        Figure.TPOT_P50,
        PlanSpec(
            source=replace(COPYING, prompts=UNPROBED, output_tokens=GUESSED_OUTPUT),
            load=ClosedLoop(1),
            requests=8,
        ),
        guesses=True,
    ),
    Case(
        "lower_batch_cap",
        BASE,
        base(max_num_seqs=4),
        LeverChange("max_num_seqs", 4),
        Figure.TPOT_P50,
        plan(64, 24, 16, 40),
        warm_up=16,
    ),
)


def main() -> None:
    """Predict, measure, print one JSON object."""
    options = parse_options()
    use_home()
    began_s = time.monotonic()
    rows = asyncio.run(on_a_fake_engine(say) if options.quick else on_real_engines(options, say))
    print(json.dumps(summary(rows) | {"took_s": round(time.monotonic() - began_s), "quick": options.quick}))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__, quick="one fix on a fake engine: proves that it runs")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of blocks for each fix, 4 at least")
    parser.add_argument("--only", default="", help="some of " + ", ".join(case.name for case in CASES))
    parser.add_argument("--fit", type=Path, help="where the fit is kept; one that is there is not made again")
    return parser.parse_args()


# --- engines ------------------------------------------------------------------------------------------------


@dataclass
class Fleets:
    """Real engines by their levers, each a fleet of its own, started when it is first asked for."""

    folder: Path
    say: Say
    _up: dict[str, tuple[str, AsyncExitStack]] = field(default_factory=dict)
    _started: int = 0

    async def url(self, levers: Levers, keep: Sequence[Levers] = ()) -> str:
        """The address of an engine; others than the first and those to keep may be stopped for it."""
        key = levers.model_dump_json()
        if key not in self._up:
            kept = {each.model_dump_json() for each in (BASE, *keep)}
            for name in [name for name in self._up if name not in kept]:
                if len(self._up) >= MOST_ENGINES:
                    await self._up.pop(name)[1].aclose()
            self._up[key] = await self._start(levers)
        return self._up[key][0]

    async def close(self) -> None:
        """Stop them all."""
        for _, stack in self._up.values():
            await stack.aclose()
        self._up.clear()

    async def _start(self, levers: Levers) -> tuple[str, AsyncExitStack]:
        self._started += 1
        name = f"predictions-{self._started}"
        fleet = FleetConfig(
            name=name,
            first_engine_port=ENGINE_PORT + self._started,
            engine_keys=False,
            # Sizes of KV memory above count on 16 bit, also where `up` would choose float32.
            pools=(Pool(cores=1, levers=levers, engine_flags=("--dtype", "bfloat16")),),
            gateway=GatewayConfig(port=GATEWAY_PORT + self._started),
        )
        file = self.folder / f"{name}.yaml"
        file.write_text(fleet.model_dump_json(exclude_none=True))
        self.say(f"  starting an engine with {levers.model_dump(exclude_none=True)}")
        stack = AsyncExitStack()
        await stack.enter_async_context(FleetArm(file, name).serving())
        state = read_state(RunPaths(Path(os.environ["PHASEWISE_HOME"]), name))
        if state is None:
            raise SystemExit(f"fleet {name} was stopped by somebody else")
        return state.engines[0].url, stack


@asynccontextmanager
async def fleets(say: Say) -> AsyncIterator[Fleets]:
    """Engines that are all stopped in the end."""
    with tempfile.TemporaryDirectory(prefix="phasewise-predictions-") as folder:
        started = Fleets(Path(folder), say)
        try:
            yield started
        finally:
            await started.close()


async def on_real_engines(options: argparse.Namespace, say: Say) -> list[Row]:
    """Every case, on engines that `phasewise up` starts."""
    began_s = time.monotonic()
    wanted = set(filter(None, options.only.split(",")))
    chosen = [case for case in CASES if not wanted or case.name in wanted]
    rows: list[Row] = []
    async with fleets(say) as engines:
        fit = await learn(await engines.url(BASE), options.fit, say)
        for case in chosen:
            say(f"{case.name}:")
            if time.monotonic() - began_s > LAST_BEGIN_S:
                rows.append({"fix": case.name, "aims_at": case.aims_at, "failed": "no time was left"})
                continue
            rows.append(await attempt(case, on_its_engines(case, engines, fit, options.pairs, say), say))
    return rows


async def attempt(case: Case, trial: Awaitable[Row], say: Say) -> Row:
    """A trial's row; an engine that does not start, or a machine too busy, must not end the others."""
    try:
        return await trial
    except PhasewiseError as error:
        say(f"  failed: {error}")
        return {"fix": case.name, "aims_at": case.aims_at, "failed": str(error)}


async def on_its_engines(case: Case, engines: Fleets, fit: StepFit, pairs: int, say: Say) -> Row:
    """One case on the two engines that it needs."""
    before, after = [
        await engines.url(levers, keep=(case.before, case.after)) for levers in (case.before, case.after)
    ]
    drafts = await probe_guesses(before) if case.guesses else ()
    return await try_fix(case, (before, after), fit, drafts, pairs, say)


async def learn(url: str, kept: Path | None, say: Say) -> StepFit:
    """Calibrate, unless an earlier run kept what it learned."""
    known = None if kept is None else read_fit(kept)
    if known is not None:
        return known
    found = await calibrate(url, CalibrateSpec(budget_s=CALIBRATION_S, seed=SEED))
    say(f"calibrated: {found.fit.observations} steps in {found.took_s:.0f} s, form fits: {found.form.fits}")
    if kept is not None:
        keep_fit(found.fit, kept)
    return found.fit


def read_fit(path: Path) -> StepFit | None:
    """The fit of an earlier run."""
    return fit_from_record(orjson.loads(path.read_bytes())) if path.exists() else None


def keep_fit(fit: StepFit, path: Path) -> None:
    """Keep a fit for another run."""
    path.write_bytes(orjson.dumps(fit_record(fit)))


# --- one fix ------------------------------------------------------------------------------------------------


async def try_fix(
    case: Case,
    urls: tuple[str, str],
    fit: StepFit,
    drafts: Sequence[DraftReading],
    pairs: int,
    say: Say,
    steps_urls: dict[str, str] | None = None,
) -> Row:
    """Predict from a window of the engine as it is; then measure."""

    async def measured(url: str, spec: RunSpec, label: str) -> BenchRun:
        return await measure(url, replace(spec, steps_url=(steps_urls or {}).get(url)))

    few = replace(case.plan, requests=case.concurrency + 1)
    for url in urls:
        await measured(url, RunSpec(few, SEED - 1), "warm-up")
    window = await measured(urls[0], RunSpec(case.plan, SEED), "window")
    traffic = recorded_traffic(window.timelines, concurrency=case.concurrency, warm_up=case.warm_up)
    setup = setup_of(traffic, [await surroundings(urls[0])], case.before)
    asked = Advice((Fix(case.name, "", case.aims_at, case.change),))
    rng = np.random.default_rng(SEED)
    began_s = time.process_time()
    (fix,) = predict_advice(asked, traffic, fit, setup, rng, others=own_fit(window), drafts=drafts).fixes
    took_s = time.process_time() - began_s
    if fix.effect is None:
        say(f"  not predictable: {fix.unpredictable}")
        return {"fix": case.name, "aims_at": case.aims_at, "unpredictable": fix.unpredictable}
    for change in fix.effect.changes:
        low, high = change.interval.low, change.interval.high
        say(f"  predicted {change.figure}: x{change.ratio:.2f} [{low:.2f}, {high:.2f}]")
    comparisons = await compared(case, urls, pairs, measured)
    return row_of(case, fix.effect, comparisons, took_s, say)


def own_fit(window: BenchRun) -> list[StepFit]:
    """What the window itself tells of its steps, where it tells enough."""
    steps = () if window.engine is None else window.engine.steps
    try:
        return [fit_steps(observed_steps(steps).observations, np.random.default_rng(SEED))]
    except MeasurementError:
        return []


async def compared(case: Case, urls: tuple[str, str], pairs: int, measured: Measure) -> dict[str, Comparison]:
    """The pairs' word on every figure."""
    rules = Rules(DEFAULT_SLO, case.warm_up, metrics=FIGURES)
    spec = RunSpec(case.plan, SEED + 1)
    compare_plan = ComparePlan(spec, rules, control_pairs=0, pairs=pairs)
    result = await compare_arms(UrlArm(urls[0]), UrlArm(urls[1]), compare_plan, measured)
    if result.gave_up:
        raise MeasurementError(result.gave_up, hint="measure on a quieter machine")
    return {each.metric.name: each for each in result.comparisons}


def row_of(case: Case, predicted: Effect, comparisons: dict[str, Comparison], took_s: float, say: Say) -> Row:
    """Prediction and outcome, figure by figure."""
    figures = {}
    for change in predicted.changes:
        found = comparisons.get(change.figure)
        if found is None or found.change is None or found.interval is None:
            continue
        ratio = 1 + found.change
        reported, seen = (
            side(change.interval.low, change.interval.high),
            side(1 + found.interval.low, 1 + found.interval.high),
        )
        figures[change.figure.value] = {
            "before": round(change.before, 5),
            "predicted": round(change.ratio, 3),
            "low": round(change.interval.low, 3),
            "high": round(change.interval.high, 3),
            "width": round(change.interval.high / change.interval.low, 2),
            "measured": round(ratio, 3),
            "measured_low": round(1 + found.interval.low, 3),
            "measured_high": round(1 + found.interval.high, 3),
            "covered": change.interval.low <= ratio <= change.interval.high,
            "signed": bool(reported and seen),
            "sign_right": bool(reported and seen) and reported == seen,
        }
        say(f"  measured {change.figure}: x{ratio:.2f}, covered: {figures[change.figure.value]['covered']}")
    return {
        "fix": case.name,
        "aims_at": case.aims_at,
        "replay_off_by": round(predicted.replay_off_by, 3),
        "predicting_s": round(took_s, 2),
        "figures": figures,
    }


def side(low: float, high: float) -> int:
    """On which side of no change a ratio lies for sure; 0 where it may be either."""
    return 1 if low > 1 else -1 if high < 1 else 0


async def surroundings(url: str) -> EngineSurroundings:
    """How much KV cache the engine says it has."""
    client = HttpClient(url)
    try:
        reported = await fetch_metrics(client)
    finally:
        client.close()
    return EngineSurroundings(url, 0, kv_tokens=reported.kv_tokens, block_tokens=reported.block_tokens)


async def probe_guesses(url: str) -> list[DraftReading]:
    """Let the engine answer a few prompts of the kind, and see what of it could have been guessed."""
    client = HttpClient(url)
    speculation = Speculation()
    readings = []
    try:
        model = orjson.loads((await client.fetch("GET", "/v1/models")).body)["data"][0]["id"]
        for prompt in PROBED:
            asked = {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": GUESSED_OUTPUT,
                "temperature": 0.0,
                "return_token_ids": True,
            }
            headers = ((b"content-type", b"application/json"),)
            path = "/v1/chat/completions"
            reply = await client.fetch("POST", path, headers=headers, body=orjson.dumps(asked))
            answer = orjson.loads(reply.body)
            readings.append(
                guess_answer(
                    answer["prompt_token_ids"],
                    answer["choices"][0]["token_ids"],
                    guessed_tokens=speculation.tokens,
                    match_tokens=speculation.lookup_max,
                )
            )
    finally:
        client.close()
    return readings


# --- in a minute --------------------------------------------------------------------------------------------

FAKE_COST = StepCost(
    floor_s=8e-3,
    knee_tokens=128,
    beyond_knee_s_per_token=60e-6,
    attention_s_per_token_pair=8e-9,
    kv_read_s_per_token=0.4e-6,
    per_request_s=50e-6,
)
QUICK_CASE = Case(
    "fake_larger_chunks",
    base(max_num_batched_tokens=64),
    BASE,
    LeverChange("max_num_batched_tokens", 2048),
    Figure.TTFT_P50,
    plan(768, 8, 2, 16),
    warm_up=2,
)


async def on_a_fake_engine(say: Say) -> list[Row]:
    """One fix between two fake engines of the same costs."""
    shapes = (
        EngineShape(max_num_seqs=64, max_num_batched_tokens=64, prefix_cache=False),
        EngineShape(prefix_cache=False),
    )
    async with AsyncExitStack() as stack:
        before, after = [
            (
                await stack.enter_async_context(
                    running_engines(1, FakeEngineConfig(cost=FAKE_COST, shape=shape))
                )
            )[0]
            for shape in shapes
        ]
        spec = CalibrateSpec(budget_s=8.0, steps_url=after.steps_url, seed=SEED)
        fit = (await calibrate(after.base_url, spec)).fit
        urls = (before.base_url, after.base_url)
        steps_urls = {each.base_url: each.steps_url for each in (before, after)}
        trial = try_fix(QUICK_CASE, urls, fit, (), 4, say, steps_urls)
        return [await attempt(QUICK_CASE, trial, say)]


# --- the record ---------------------------------------------------------------------------------------------


def summary(rows: list[Row]) -> dict[str, object]:
    """Counts, and the rows they are of."""
    predicted = [row for row in rows if "figures" in row]
    aimed = [row["figures"][row["aims_at"]] for row in predicted if row["aims_at"] in row["figures"]]
    every = [figure for row in predicted for figure in row["figures"].values()]
    return {
        "fixes": len(rows),
        "predicted": len(predicted),
        "covered": sum(figure["covered"] for figure in aimed),
        "signed": sum(figure["signed"] for figure in aimed),
        "sign_right": sum(figure["sign_right"] for figure in aimed),
        "median_width": median_width(aimed),
        "not_predicted": {
            row["fix"]: row.get("unpredictable") or row["failed"] for row in rows if "figures" not in row
        },
        "figures": len(every),
        "figures_covered": sum(figure["covered"] for figure in every),
        "figures_median_width": median_width(every),
        "rows": rows,
    }


def median_width(figures: Sequence[dict[str, float]]) -> float | None:
    """Half of the predicted intervals are narrower."""
    return median(figure["width"] for figure in figures) if figures else None


if __name__ == "__main__":
    main()
