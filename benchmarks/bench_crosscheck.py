"""Do `phasewise bench` and `vllm bench serve` see the same engine?

    python benchmarks/bench_crosscheck.py [--rounds 5] [--quick] [--json]

Both put the same load on one real engine in turn, V P P V ...: prompts of the same length as the engine
counts them, outputs of fixed length, as many streams at once, a cold prefix cache. For each metric the ratio
of medians (phasewise / vllm) is averaged over neighbouring runs and held against the noise: how much two runs
of the *same* tool in a round differ from each other. Where the tools define a metric differently is told in
docs/explanation/measuring.md. The one difference that can be undone here, the role chunk that vllm counts as
the first token and the gap of nearly zero after it, is also shown undone (`itl_ratio_without_role_gap`).
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict
from math import log
from pathlib import Path
from statistics import mean

from overhead.crosscheck_tools import (
    METRICS,
    BenchLoad,
    ToolRun,
    VllmBench,
    noise,
    own_run,
    ratio,
)
from script import command_line, use_home
from stress.processes import real_engine

from phasewise.benchmark.session import RunSpec, measure

ROOT = Path(__file__).parent.parent
HOME = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
MODEL = "smollm2-135m"
FLEET_NAME = "crosscheck"


def main() -> None:
    """Run the rounds and print a line per run, then one JSON object."""
    parser = command_line(__doc__, quick="one short round: proves that the script runs")
    parser.add_argument("--rounds", type=int, default=5, help="of two runs of either tool")
    options = parser.parse_args()
    load = BenchLoad()
    rounds = options.rounds
    if options.quick:
        load, rounds = BenchLoad(128, 8, 2, 4), 1
    runs: dict[str, list[ToolRun]] = {"vllm": [], "phasewise": []}
    bench = VllmBench(HOME / "engine" / "bin" / "python", str(HOME / "models" / MODEL))
    use_home(HOME)
    with real_engine(FLEET_NAME) as state:
        url = state["engines"][0]["url"]
        order = ["vllm", "phasewise", "phasewise", "vllm"] * rounds
        # The first run warms the engine's code paths and is thrown away.
        run_phasewise(url, load)
        for number, tool in enumerate(order, 1):
            seen = asyncio.run(bench.run(url, load, number)) if tool == "vllm" else run_phasewise(url, load)
            runs[tool].append(seen)
            if not options.json:
                figures = "  ".join(f"{name} {seen.medians_s[name] * 1000:8.1f} ms" for name in METRICS)
                print(
                    f"{number:2}/{len(order)} {tool:9} {figures}  prompts {seen.prompt_tokens:.1f}",
                    flush=True,
                )
    print(json.dumps(summary(runs, load, options.quick)))


def summary(runs: dict[str, list[ToolRun]], load: BenchLoad, quick: bool) -> dict[str, object]:
    """Ratios with the noise they are to be held against."""
    result: dict[str, object] = {}
    pair = runs["vllm"], runs["phasewise"]
    noises = {name: noise(*pair, name) for name in METRICS}
    ratios = {name: ratio(*pair, name) for name in METRICS}
    for name in METRICS:
        result[f"{name}_ratio"] = round(ratios[name], 4)
    result["itl_ratio_without_role_gap"] = round(ratio(*pair, "itl_without_role_gap"), 4)
    result["aa_noise"] = {name: round(value, 4) for name, value in noises.items()}
    result["within_noise"] = {name: abs(log(ratios[name])) <= noises[name] for name in METRICS}
    result["prompt_tokens"] = {tool: mean(seen.prompt_tokens for seen in done) for tool, done in runs.items()}
    return result | {"runs_per_tool": len(runs["vllm"]), "load": asdict(load), "quick": quick}


def run_phasewise(url: str, load: BenchLoad) -> ToolRun:
    """One run of ours, with words of its own."""
    return own_run(asyncio.run(measure(url, RunSpec(load.plan, int.from_bytes(os.urandom(4))))))


if __name__ == "__main__":
    main()
