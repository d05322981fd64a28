"""A comparison of two servers, or of two fleets that are started in turn."""

from __future__ import annotations

from typing import Unpack

from phasewise.api.call import check_range, run
from phasewise.api.load_options import LoadArguments, LoadOptions, takes_load_options
from phasewise.benchmark.compare.arms import arms_of
from phasewise.benchmark.compare.compare import (
    CONTROL_PAIRS,
    MOST_PAIRS,
    compare_arms,
    plan_comparison,
    requests_in_block,
)
from phasewise.benchmark.compare.verdict import ComparisonResult
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.session import CacheState, RunSpec, measure
from phasewise.benchmark.statistics.comparison import FEWEST_PAIRS
from phasewise.clients.host import allow_many_streams


@takes_load_options(without={"duration"})
def compare(
    a: str,
    b: str,
    *,
    cache: str = CacheState.COLD,
    pairs: int | None = None,
    max_pairs: int = MOST_PAIRS,
    control_pairs: int = CONTROL_PAIRS,
    margin: float = 0.05,
    alpha: float = 0.05,
    warm_up: int | None = None,
    model: str | None = None,
    api_key: str | None = None,
    timeout: float = 600.0,
    **options: Unpack[LoadArguments],
) -> ComparisonResult:
    """Test whether B is better than A: send the same requests to both in turn, and judge each metric.

    Works like `phasewise compare A B`, with the same options. Raises PhasewiseError.
    """
    check_range("--pairs", pairs, FEWEST_PAIRS)
    check_range("--max-pairs", max_pairs, FEWEST_PAIRS)
    check_range("--control-pairs", control_pairs, 0)
    check_range("--warm-up", warm_up, 0)
    load = LoadOptions.of(options, FEWEST_PAIRS)
    source = load.source()
    spec = load.run_spec(
        source,
        requests_in_block(source, load.requests),
        cache=cache,
        model=model,
        api_key=api_key,
        timeout_s=timeout,
    )
    plan = plan_comparison(
        spec,
        load.objectives(),
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
