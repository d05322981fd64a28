"""A comparison of two servers, or of two fleets that are started in turn."""

from __future__ import annotations

from pathlib import Path

from phasewise.api.call import api_key_or_default, check_range, chosen, run, seed_or_random
from phasewise.clients.host import allow_many_streams
from phasewise.core.slo import DEFAULT_SLO, parse_slo
from phasewise.experiments.compare.arms import arms_of
from phasewise.experiments.compare.compare import (
    CONTROL_PAIRS,
    MOST_PAIRS,
    compare_arms,
    plan_comparison,
    requests_in_block,
)
from phasewise.experiments.compare.verdict import ComparisonResult
from phasewise.loadgen.run import BenchRun
from phasewise.loadgen.session import CacheState, RunSpec, measure
from phasewise.loadgen.statistics.comparison import FEWEST_PAIRS
from phasewise.loadgen.workload import choices
from phasewise.loadgen.workload.arrivals import Spacing
from phasewise.loadgen.workload.plan import PlanSpec
from phasewise.loadgen.workload.presets import PresetName


def compare(
    a: str,
    b: str,
    *,
    concurrency: int | None = None,
    rate: float | None = None,
    requests: int | None = None,
    spacing: str = Spacing.POISSON,
    burstiness: float = 1.0,
    speed: float = 1.0,
    preset: str = PresetName.CHAT,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
    shared_prefix_tokens: int | None = None,
    shared_prefixes: int | None = None,
    turns: int = 1,
    think: float = 1.0,
    cache: str = CacheState.COLD,
    trace: str | Path | None = None,
    seed: int | None = None,
    pairs: int | None = None,
    max_pairs: int = MOST_PAIRS,
    control_pairs: int = CONTROL_PAIRS,
    slo: str = "",
    margin: float = 0.05,
    alpha: float = 0.05,
    warm_up: int | None = None,
    model: str | None = None,
    api_key: str | None = None,
    timeout: float = 600.0,
) -> ComparisonResult:
    """Test whether B is better than A: send the same requests to both in turn, and judge each metric.

    Works like `phasewise compare A B`, with the same options. Raises PhasewiseError.
    """
    check_range("--requests", requests, FEWEST_PAIRS)
    check_range("--pairs", pairs, FEWEST_PAIRS)
    check_range("--max-pairs", max_pairs, FEWEST_PAIRS)
    check_range("--control-pairs", control_pairs, 0)
    check_range("--warm-up", warm_up, 0)
    file = None if trace is None else Path(trace)
    source = choices.choose_source(
        chosen("--preset", preset, PresetName),
        file,
        prompt_tokens,
        output_tokens,
        shared_prefix_tokens,
        shared_prefixes,
    )
    spec = RunSpec(
        plan=PlanSpec(
            source=source,
            load=choices.choose_load(
                rate, chosen("--spacing", spacing, Spacing), burstiness, concurrency, speed if trace else None
            ),
            requests=requests_in_block(source, requests),
            conversations=choices.choose_conversations(turns, think),
        ),
        seed=seed_or_random(seed),
        cache=chosen("--cache", cache, CacheState),
        model=model,
        api_key=api_key_or_default(api_key),
        timeout_s=timeout,
    )
    plan = plan_comparison(
        spec,
        parse_slo(slo, DEFAULT_SLO),
        warm_up=warm_up,
        alpha=alpha,
        margin=margin,
        control_pairs=control_pairs,
        pairs=pairs,
        max_pairs=max_pairs,
    )
    allow_many_streams()
    return run(compare_arms(*arms_of(a, b), plan, _measure))


async def _measure(url: str, spec: RunSpec, _label: str) -> BenchRun:
    return await measure(url, spec)
