"""Does `phasewise compare` call what changed, stay silent where nothing did, and state intervals that hold?

    python benchmarks/bench_power.py [--aa 200] [--planted 30] [--parallel K] [--quick] [--json]

Fake engines serve over HTTP, in processes of their own, steps whose cost and noise are known. A comparison is
the command's: a control of A against itself, as many pairs of blocks as its noise asks for, a verdict per
metric. In A/A comparisons both arms cost the same and only their noise differs, so every better or worse is
false. In planted ones a phase of B takes 10% longer. What that does to each metric is computed by the same
virtual engine in virtual time, over many blocks of the same plan, as the same statistic.

Each comparison has a process of its own for its generator and one for its two engines; many run at once,
because each mostly sleeps. So they disturb each other as neighbours on a machine do. What serving adds to a
request is not in the arithmetic, and subtracted from no result.

The engine is chosen so that each phase has a metric of its own that a 10% change moves by about 10%: a prompt
takes ten times as long as a step that decodes, and most streams meet no other request's prompt, or the median
of TPOT would lie where its distribution has a gap. Load and noise were chosen after trials, most of them in
virtual time, in which 12 pairs were too few to call a change: steps that vary by 10% and not 5%, or prompts
of more different lengths, take more. So this shows what 12 pairs can do at this noise, not at any. Verdicts
count also where the control differed.

The last line is one JSON object. Of it: aa_false counts A/A comparisons with any better or worse; covered is
the share of (planted comparison, metric) whose true change lies in the stated interval; called is the share
of planted comparisons in which the changed phase's own metric was called worse.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing.connection import Connection
from random import Random
from statistics import mean, median
from typing import Any

import uvloop
from script import command_line, say

from phasewise.benchmark import engine_watch
from phasewise.benchmark.compare.arms import UrlArm
from phasewise.benchmark.compare.compare import ComparePlan, compare_arms
from phasewise.benchmark.compare.verdict import METRICS, Rules, readings
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.session import RunSpec, measure
from phasewise.benchmark.statistics.comparison import (
    Block,
    Comparison,
    Kind,
    Metric,
    MetricVerdict,
    Quotient,
    Scale,
)
from phasewise.benchmark.target import Target
from phasewise.benchmark.workload.arrivals import OpenLoop
from phasewise.benchmark.workload.plan import PlanSpec, make_plan
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.clients.host import busy_share, read_cpu_times
from phasewise.core.slo import Slo
from phasewise.core.statistics import quantile
from phasewise.core.timeline import Outcome, Timeline
from phasewise.costs.fit.step import StepCost, StepSeconds, StepWork
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fake_engine.jitter import Jitter
from phasewise.simulator.engine import VirtualRequest
from phasewise.simulator.run import VirtualOutcome, run_virtually


@dataclass(frozen=True, slots=True)
class PhaseScaled:
    """A cost with one phase slower by a factor, so that the effect is known.

    Prefill is the time that a step's prompt tokens add, decode the rest. A step without decode tokens would
    not run without its prompts: it counts as prefill, with all its overhead.
    """

    cost: StepSeconds
    prefill: float = 1.0
    decode: float = 1.0

    def __call__(self, work: StepWork) -> float:
        """Seconds of a step."""
        whole_s = self.cost(work)
        if not work.prompt_tokens:
            return self.decode * whole_s
        decode_s = self.cost(work.without_prompts()) if work.decode_tokens else 0.0
        return self.prefill * (whole_s - decode_s) + self.decode * decode_s


COST = StepCost(
    floor_s=0.02,
    knee_tokens=16,
    beyond_knee_s_per_token=1.8e-3,
    attention_s_per_token_pair=0.0,
    kv_read_s_per_token=0.0,
    per_request_s=0.0,
)
JITTER = Jitter(spread=0.05, drift_spread=0.02, drift_steps=20.0)
"""Each engine drifts by itself, and pairs are taken for independent: a drift that outlives a block, of some
hundred steps, would be a difference between the arms and not noise."""
SHAPE = Shape("slow prompts, short answers.", Lengths(120, 0.05, 90, 160), Lengths(6, 0.2, 4, 9))
RULES = Rules(Slo(ttft_s=0.25, tpot_s=0.05), warm_up_requests=2, alpha=0.01, margin=0.05)
PARALLEL = 87
"""A third of all comparisons; on two cores they take about 60% of the time."""
STAGGER_S = 15.0
SLOWER = 1.1
SAME, PREFILL, DECODE = "same", "prefill", "decode"
COSTS: Mapping[str, StepSeconds] = {
    SAME: COST,
    PREFILL: PhaseScaled(COST, prefill=SLOWER),
    DECODE: PhaseScaled(COST, decode=SLOWER),
}
OWN_METRIC = {PREFILL: "ttft_p50", DECODE: "tpot_p50"}


@dataclass(frozen=True, slots=True)
class Setup:
    """What a comparison measures in a block, in how many pairs, and how many blocks tell the truth."""

    plan: PlanSpec
    most_pairs: int
    truth_blocks: int


FULL = Setup(PlanSpec(SHAPE, OpenLoop(1.05), requests=15), most_pairs=12, truth_blocks=3000)
QUICK = Setup(PlanSpec(SHAPE, OpenLoop(4.0), requests=8), most_pairs=4, truth_blocks=100)


# --- the truth --------------------------------------------------------------------------------------------


def virtual_block(cost: StepSeconds, plan: PlanSpec, seed: int, jitter: Jitter | None) -> BenchRun:
    """A block of the plan in virtual time, as a generator without any delay would have seen it."""
    made = make_plan(plan, Random(seed))
    words = Random(f"prompts of {seed}")
    requests = [
        VirtualRequest(
            request_id=str(planned.index),
            # Drawn at random, so that no two prompts share a block.
            prompt_ids=tuple(words.choices(range(1, 60_000), k=planned.prompt_tokens)),
            max_tokens=planned.max_tokens,
            arrived_s=planned.at_s or 0.0,
            ignore_eos=True,
        )
        for planned in made.requests
    ]
    engine = FakeEngineConfig(cost=cost, jitter=jitter).virtual_engine()
    timelines = tuple(map(_timeline, run_virtually(engine, requests)))
    wall_s = max(timeline.started_unix_s + timeline.ended_s for timeline in timelines)
    return BenchRun(Target("virtual", "virtual"), made, timelines, wall_s)


def _timeline(outcome: VirtualOutcome) -> Timeline:
    return Timeline(
        request_id=outcome.request_id,
        started_unix_s=outcome.arrived_s,
        model="virtual",
        outcome=Outcome.SUCCEEDED,
        ended_s=outcome.e2e_s,
        content_times_s=tuple(at_s - outcome.arrived_s for at_s in outcome.token_times_s),
        output_tokens=len(outcome.token_times_s),
        finished_s=outcome.e2e_s,
    )


def virtual_readings(planted: str, plan: PlanSpec, seeds: range) -> list[Block]:
    """What blocks of the plan contribute to every metric, with noise."""
    runs = (virtual_block(COSTS[planted], plan, seed, replace(JITTER, seed=seed)) for seed in seeds)
    return [readings(run, RULES.slo, RULES.warm_up_requests) for run in runs]


def pooled(blocks: Sequence[Block], metric: Metric) -> float:
    """A metric over all blocks, by the statistic that comparisons use."""
    parts = [block[metric.name] for block in blocks]
    if metric.kind is Kind.QUANTILE:
        return quantile(
            [value for part in parts if not isinstance(part, Quotient) for value in part], metric.share
        )
    quotients = [part for part in parts if isinstance(part, Quotient)]
    return sum(part.numerator for part in quotients) / sum(part.denominator for part in quotients)


@dataclass(frozen=True, slots=True)
class Truth:
    """A metric of both arms as the arithmetic has it."""

    a: float
    b: float

    def change(self, scale: Scale) -> float:
        """The true change, counted as the comparison counted it."""
        return self.b - self.a if scale is Scale.POINTS else self.b / self.a - 1


Truths = Mapping[str, Mapping[str, Truth]]
"""By what was planted, then by metric."""


def find_truths(pool: Executor, setup: Setup) -> Truths:
    """What each planted change does to every metric; all arms get the same requests and the same noise."""
    step = max(1, setup.truth_blocks // 16)
    parts = [
        range(first, min(first + step, setup.truth_blocks)) for first in range(0, setup.truth_blocks, step)
    ]
    values = {}
    for planted in COSTS:
        done = pool.map(virtual_readings, repeat(planted), repeat(setup.plan), parts)
        blocks = [block for part in done for block in part]
        values[planted] = {metric.name: pooled(blocks, metric) for metric in METRICS}
    return {
        planted: {name: Truth(a, values[planted][name]) for name, a in values[SAME].items()}
        for planted in COSTS
    }


# --- one comparison ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """A comparison to make. Its number gives it requests and noise that no other one has."""

    number: int
    planted: str
    setup: Setup
    wait_s: float = 0.0

    @property
    def seed(self) -> int:
        """The seed of its control; pairs count on from 10,000 more."""
        return 1_000_000 * (self.number + 1)


@dataclass(frozen=True, slots=True)
class Made:
    """What came of a case; `given_up` says why its verdicts do not count, if too many pairs were void."""

    case: Case
    comparisons: tuple[Comparison, ...] = ()
    pairs: int = 0
    void_pairs: int = 0
    control_differing: tuple[str, ...] = ()
    given_up: str = ""

    @property
    def is_false(self) -> bool:
        """Whether any metric was called better or worse."""
        return any(each.verdict in (MetricVerdict.BETTER, MetricVerdict.WORSE) for each in self.comparisons)


def make(case: Case) -> Made:
    """Start two engines, compare them, stop them."""
    time.sleep(case.wait_s)
    jitter = replace(JITTER, seed=case.seed)
    with serving(
        FakeEngineConfig(cost=COSTS[SAME], jitter=jitter),
        FakeEngineConfig(cost=COSTS[case.planted], jitter=jitter.of_engine(1)),
    ) as (a, b):
        return uvloop.run(_compare(case, UrlArm(a), UrlArm(b)))


async def _compare(case: Case, a: UrlArm, b: UrlArm) -> Made:
    """What `phasewise compare` does, without its display."""

    async def measured(url: str, spec: RunSpec, label: str) -> BenchRun:
        return await measure(url, spec)

    spec = RunSpec(case.setup.plan, case.seed)
    plan = ComparePlan(spec, RULES, max_pairs=case.setup.most_pairs)
    found = await compare_arms(a, b, plan, measured)
    return Made(
        case,
        found.comparisons,
        pairs=found.pairs,
        void_pairs=found.void_pairs,
        control_differing=() if found.control is None else found.control.differing,
        given_up=found.gave_up,
    )


@contextmanager
def serving(*configs: FakeEngineConfig) -> Iterator[list[str]]:
    """Fake engines in one process of their own, at the yielded addresses."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_serve, args=(configs, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()
        ours.close()


def _serve(configs: Sequence[FakeEngineConfig], connection: Connection) -> None:
    async def serve() -> None:
        async with AsyncExitStack() as stack:
            fleets = [await stack.enter_async_context(running_engines(1, config)) for config in configs]
            connection.send([engine.base_url for (engine,) in fleets])
            await asyncio.Event().wait()

    uvloop.run(serve())


FORK = multiprocessing.get_context("fork")
"""A forked process has everything imported: starting one takes milliseconds, not a second."""


# --- what all of them say ---------------------------------------------------------------------------------


def tally(made: Sequence[Made], truths: Truths) -> dict[str, Any]:
    """The figures that are claimed, and those that a reader needs to believe them."""
    reported = [one for one in made if not one.given_up]
    alike = [one for one in reported if one.case.planted == SAME]
    planted = [one for one in reported if one.case.planted != SAME]
    covered = {
        metric.name: [_covers(*cell) for cell in _cells(planted, truths, metric)] for metric in METRICS
    }
    return {
        "aa_runs": len(alike),
        "aa_false": sum(one.is_false for one in alike),
        "aa_verdicts": Counter(each.verdict for one in alike for each in one.comparisons),
        "planted_runs": len(planted),
        "covered": _share([cell for cells in covered.values() for cell in cells]),
        "called": {phase: _share(_called(planted, phase)) for phase in OWN_METRIC},
        "covered_by_metric": {name: _share(cells) for name, cells in covered.items()},
        "true_change": {
            phase: {name: _rounded(truth.change(Scale.RELATIVE)) for name, truth in truths[phase].items()}
            for phase in OWN_METRIC
        },
        "pairs": _spread([one.pairs for one in reported]),
        "void_pairs": sum(one.void_pairs for one in made),
        "controls_that_differed": sum(bool(one.control_differing) for one in reported),
        "control_differing": Counter(name for one in reported for name in one.control_differing),
        "given_up": len(made) - len(reported),
    }


def _cells(made: Sequence[Made], truths: Truths, metric: Metric) -> list[tuple[Comparison, Truth]]:
    return [
        (each, truths[one.case.planted][metric.name])
        for one in made
        for each in one.comparisons
        if each.metric == metric
    ]


def _covers(found: Comparison, truth: Truth) -> bool:
    """Whether the stated interval holds the true change; a metric without an interval holds nothing."""
    if found.interval is None:
        return False
    return found.interval.low <= truth.change(found.scale) <= found.interval.high


def _called(planted: Sequence[Made], phase: str) -> list[bool]:
    return [
        any(
            each.metric.name == OWN_METRIC[phase] and each.verdict is MetricVerdict.WORSE
            for each in one.comparisons
        )
        for one in planted
        if one.case.planted == phase
    ]


def _share(cells: Sequence[bool]) -> float | None:
    return _rounded(mean(cells)) if cells else None


def _spread(counts: Sequence[int]) -> dict[str, float]:
    return {"least": min(counts), "median": median(counts), "most": max(counts)} if counts else {}


def _rounded(value: float) -> float:
    return round(value, 4)


# --- the whole --------------------------------------------------------------------------------------------


def main() -> None:
    """Make all comparisons, tell on stderr how it goes, and print one JSON object."""
    parser = command_line(__doc__, quick="one of each, short: proves that the script runs")
    parser.add_argument("--aa", type=int, default=200, help="comparisons of equal arms")
    parser.add_argument("--planted", type=int, default=30, help="comparisons for each phase that is slowed")
    parser.add_argument("--parallel", type=int, default=PARALLEL, help="comparisons at once")
    options = parser.parse_args()
    setup = QUICK if options.quick else FULL
    aa, planted = (1, 1) if options.quick else (options.aa, options.planted)
    cases = make_cases(setup, aa, planted, options.parallel)
    # Verdicts read nothing of an engine's counters, and reading them every second is a third of the work.
    engine_watch.SAMPLE_EVERY_S = 3600.0
    started_s, cpu_before = time.monotonic(), read_cpu_times()
    with ProcessPoolExecutor(min(options.parallel, len(cases)), FORK) as pool:
        truths = find_truths(pool, setup)
        say(f"the truth is known after {time.monotonic() - started_s:.0f} s; {len(cases)} comparisons follow")
        made = list(_finished(pool, cases))
    cpu_after = read_cpu_times()
    result = tally(made, truths) | {
        "parallel": options.parallel,
        "cpu_share": _rounded(busy_share(cpu_before, cpu_after)) if cpu_before and cpu_after else None,
        "wall_s": round(time.monotonic() - started_s),
        "quick": options.quick,
    }
    if not options.json:
        _print_summary(result)
    print(json.dumps(result))


def make_cases(setup: Setup, aa: int, planted: int, parallel: int) -> list[Case]:
    """All comparisons, the planted ones spread among the others, so that all kinds meet the same weather."""
    kinds = [SAME] * aa + [phase for phase in OWN_METRIC for _ in range(planted)]
    Random("order").shuffle(kinds)
    # Blocks that all began in the same moment would tokenize their prompts in the same moment, too.
    stagger_s = [STAGGER_S * number / parallel if number < parallel else 0.0 for number in range(len(kinds))]
    return [Case(number, kind, setup, stagger_s[number]) for number, kind in enumerate(kinds)]


def _finished(pool: Executor, cases: Sequence[Case]) -> Iterator[Made]:
    began_s = time.monotonic()
    counts: Counter[str] = Counter()
    for done, future in enumerate(as_completed([pool.submit(make, case) for case in cases]), start=1):
        one = future.result()
        counts["false"] += one.case.planted == SAME and one.is_false
        counts["void"] += one.void_pairs
        counts["given up"] += bool(one.given_up)
        say(
            f"{done}/{len(cases)} after {time.monotonic() - began_s:.0f} s: {one.case.planted}, "
            f"{one.given_up or f'{one.pairs} pairs'}; so far {counts['false']} false, "
            f"{counts['void']} void pairs, {counts['given up']} given up"
        )
        yield one


def _print_summary(result: Mapping[str, Any]) -> None:
    print(f"A/A: {result['aa_false']} of {result['aa_runs']} comparisons called a difference that is none")
    print(
        f"planted: {result['planted_runs']} comparisons, intervals hold the true change: {result['covered']}"
    )
    print(f"own metric called worse: {result['called']}")


if __name__ == "__main__":
    main()
