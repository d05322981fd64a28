"""A comparison from start to end: A against itself, as many pairs as its noise requires, the verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np

from phasewise.benchmark.compare.arms import Arm
from phasewise.benchmark.compare.verdict import ComparisonResult, Rules, RunPair, remarks_on
from phasewise.benchmark.run import CUT_SHORT, BenchRun
from phasewise.benchmark.session import RunSpec
from phasewise.benchmark.statistics.comparison import FEWEST_PAIRS, Control
from phasewise.benchmark.statistics.summary import summarise
from phasewise.benchmark.statistics.window import punctuality, void_reasons
from phasewise.benchmark.workload.plan import PLAN_LIMIT
from phasewise.benchmark.workload.presets import Shape
from phasewise.benchmark.workload.traces import Trace
from phasewise.core import latency
from phasewise.core.errors import UsageError
from phasewise.core.slo import Slo

DEFAULT_REQUESTS = 24
"""Requests per block."""
WARM_UP_SHARE = 0.15
"""The share of a block's requests that is left out at its start."""
CONTROL_PAIRS = 4
MOST_PAIRS = 12
FEWEST_VOID = 8
"""Fewer void pairs than this are bad luck."""
CONTROL_SEEDS = 10_000
"""Pairs use seeds from this offset on, so that they do not send the control's requests."""
Measure = Callable[[str, RunSpec, str], Awaitable[BenchRun]]
"""Runs a specification against an address; the last argument labels the block for progress messages."""


@dataclass(frozen=True, slots=True)
class ComparePlan:
    """What to measure and how strictly to judge it."""

    spec: RunSpec
    rules: Rules
    control_pairs: int = CONTROL_PAIRS
    pairs: int | None = None
    max_pairs: int = MOST_PAIRS


def plan_comparison(
    spec: RunSpec,
    slo: Slo,
    *,
    warm_up: int | None = None,
    alpha: float = 0.05,
    margin: float = 0.05,
    control_pairs: int = CONTROL_PAIRS,
    pairs: int | None = None,
    max_pairs: int = MOST_PAIRS,
) -> ComparePlan:
    """A plan from the options of `compare`; ConfigError for values that make no sense."""
    requests = spec.plan.requests or 0
    left_out = round(WARM_UP_SHARE * requests) if warm_up is None else warm_up
    if left_out >= requests:
        raise UsageError(
            f"--warm-up {left_out} leaves out all {requests} requests",
            hint="lower --warm-up or raise --requests",
        )
    if not (0 < margin < 1 and 0 < alpha < 1):
        raise UsageError(
            f"--margin {margin:g} and --alpha {alpha:g}", hint="both have to be between 0 and 1, such as 0.05"
        )
    if 0 < control_pairs < FEWEST_PAIRS:
        raise UsageError(
            f"--control-pairs {control_pairs}", hint=f"use at least {FEWEST_PAIRS}, or 0 for no control"
        )
    return ComparePlan(spec, Rules(slo, left_out, alpha, margin), control_pairs, pairs, max_pairs)


def requests_in_block(
    source: Shape | Trace, asked: int | None, say: Callable[[str], None] = lambda _words: None
) -> int:
    """The requests of a block: as many as asked for, else the default, or all of a trace."""
    if not isinstance(source, Trace):
        return DEFAULT_REQUESTS if asked is None else asked
    traced = len(source.requests)
    taken = min(PLAN_LIMIT if asked is None else asked, traced, PLAN_LIMIT)
    say(f"a block has {taken} of the trace's {traced} requests")
    return taken


async def compare_arms(
    a: Arm,
    b: Arm,
    plan: ComparePlan,
    measure: Measure,
    say: Callable[[str], None] = lambda _words: None,
    forgives: Callable[[], bool] = lambda: False,
) -> ComparisonResult:
    """Compare two arms. The number of pairs is fixed before the first one is measured."""
    rng = np.random.default_rng(plan.spec.seed)
    control = needed = None
    first = await measure_pairs((a, a), plan.control_pairs, plan.spec, measure, "control", forgives)
    if first.pairs:
        control = plan.rules.control(first.pairs, rng)
        needed = plan.rules.needed(control)
    measured = PairsMeasured(cut_short=first.cut_short, gave_up=first.gave_up)
    if not (first.cut_short or first.gave_up):
        count = plan.pairs or min(needed or plan.max_pairs, plan.max_pairs)
        say(_announcement(control, needed, count))
        spec = replace(plan.spec, seed=plan.spec.seed + CONTROL_SEEDS)
        measured = await measure_pairs((a, b), count, spec, measure, "pair", forgives)
    return ComparisonResult(
        a_name=a.name,
        b_name=b.name,
        comparisons=plan.rules.compare(measured.pairs, rng),
        pairs=len(measured.pairs),
        rules=plan.rules,
        seed=plan.spec.seed,
        control=control,
        pairs_needed=needed,
        void_pairs=first.void_pairs + measured.void_pairs,
        cut_short=measured.cut_short,
        gave_up=measured.gave_up,
        remarks=remarks_on(measured.pairs, rng),
        spreads=plan.rules.spreads(measured.pairs),
    )


def _announcement(control: Control | None, needed: int | None, count: int) -> str:
    if control is None:
        return f"no control; measuring {count} pairs"
    asked = "more pairs than are practical" if needed is None else f"{needed} pairs"
    return f"control done: the noise requires {asked}; measuring {count}"


# --- Measures both arms alternately, A B B A, with the same requests in each pair of blocks.
#
# Slow drift (heat, neighbours, a growing log) affects both arms equally.


@dataclass(frozen=True, slots=True)
class PairsMeasured:
    """The result of measuring: the pairs that count, and how many were repeated because a block was void.

    `gave_up` says why, if too many were void to go on.
    """

    pairs: tuple[RunPair, ...] = ()
    void_pairs: int = 0
    cut_short: bool = False
    gave_up: str = ""


async def measure_pairs(
    arms: tuple[Arm, Arm],
    pairs: int,
    spec: RunSpec,
    measure: Measure,
    title: str,
    forgives: Callable[[], bool] = lambda: False,
) -> PairsMeasured:
    """Measure `pairs` pairs, each with its own seed; a pair with a void block is measured again.

    A machine on which two of three pairs are void cannot compare anything: that ends it. So does a
    cancellation for which `forgives` returns true, as a normal end.
    """
    done: list[RunPair] = []
    void_pairs = 0
    gave_up = ""
    try:
        while len(done) < pairs and not gave_up:
            seeded = replace(spec, seed=spec.seed + len(done) + void_pairs)
            label = f"{title} {len(done) + 1}/{pairs}"
            pair = await _measure_pair(arms, seeded, measure, label, b_first=len(done) % 2 == 1)
            if pair is None:
                return PairsMeasured(tuple(done), void_pairs, cut_short=True)
            reasons = (*void(pair.a), *void(pair.b))
            if not reasons:
                done.append(pair)
                continue
            void_pairs += 1
            if void_pairs > max(2 * pairs, FEWEST_VOID):
                gave_up = f"{void_pairs} of {void_pairs + len(done)} pairs were void: {reasons[0]}"
    except asyncio.CancelledError:
        if not forgives():
            raise
        return PairsMeasured(tuple(done), void_pairs, cut_short=True)
    return PairsMeasured(tuple(done), void_pairs, gave_up=gave_up)


async def _measure_pair(
    arms: tuple[Arm, Arm], spec: RunSpec, measure: Measure, label: str, *, b_first: bool
) -> RunPair | None:
    """Both runs of a pair; None if one was cut short."""
    runs: dict[str, BenchRun] = {}
    for side in "BA" if b_first else "AB":
        async with arms["AB".index(side)].serving() as url:
            runs[side] = await measure(url, spec, f"{label}, {side}")
        if runs[side].cut_short:
            return None
    return RunPair(runs["A"], runs["B"])


def void(run: BenchRun) -> tuple[str, ...]:
    """Why a block does not count; empty if it does."""
    timelines = [timeline for timeline in run.timelines if timeline.reason != CUT_SHORT]
    gaps_s = (gap_s for timeline in timelines for gap_s in latency.chunk_gaps_s(timeline))
    return void_reasons(
        punctuality(run, timelines), summarise(map(latency.ttft_s, timelines)), summarise(gaps_s)
    )
