"""How good are plans from half of the traffic on the other half, and do they know when disaggregation pays?

    python benchmarks/plan_regret.py [--keep FILE] [--requests 1200] [--quick] [--real] [--json]

Judged within the simulator: this measures the search and its margin against chance, not the simulator.
A case is an engine (modelled GPUs, or the demo engine on a CPU), traffic (a preset, or a trace from
../shared/data), objectives in multiples of that engine's own step and prefill times, and a rate for 6 to 16
engines. Cases are drawn with a fixed seed from all combinations. Of every two requests in a row one falls by
chance into each half, so that both have the same rate, which a planner is given. One half is planned from, as
`phasewise plan` does. On the other the same grid is searched without a margin: that number of engines is the
best possible. A plan that misses its objective there is charged the engines of its kind that have to be added
until it is met. A case is drawn again where its best number on the other half is not 6 to 16, or where fewer
than five times as many requests come as are open at once.

`extra_engines_*`: engines of the plan beyond the best, over `cases`. `missed`: the share of plans that missed
their objective on the other half. `disaggregation_right` of `disaggregation_cases`: the first ten cases each
way in which the loads carried by as many engines, mixed and disaggregated, are 3% or more apart on the other
half, and in how many the plan said so; undecided is wrong. `--keep` appends each case to a file and does not
repeat those that are there. The last line is one JSON object.

`--real` instead starts two real engines with the demo model, a core each, calibrates them, plans six choices
(mixed or disaggregated; two prompt mixes at three loads, above what either carries, as both do below that)
and measures both arrangements of each: `real_right` of `real_choices` are those whose direction the plan had
right, by the share of requests within the objective. Nothing else may run on a small machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

from planning.real import real_choices
from script import command_line, interpreter, print_record, say
from sim_speed import MODEL_8B

from phasewise.benchmark.workload.arrivals import OpenLoop
from phasewise.benchmark.workload.presets import PRESETS, PresetName
from phasewise.benchmark.workload.traces import read_trace
from phasewise.core.slo import Slo
from phasewise.costs.fit.step import prefilling
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.planning.candidates import MOST_ENGINES, USUAL_LOAD, FleetCandidate, Space
from phasewise.planning.disaggregation import RESOLUTION, Pays, compare
from phasewise.planning.fleet_plan import EngineFigures, block_tokens_of, modelled_engine, traffic_of
from phasewise.planning.trials import CandidateTrials, Choice, Goal, choose, climb, faster, fewest, most_load
from phasewise.simulator.hosts import LinkSpeed
from phasewise.simulator.requests import EngineShape, preset
from phasewise.simulator.traffic import Session, SimulatedTraffic, tokens_of

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
HOME = Path(__file__).resolve().parent.parent / ".phasewise"
MODEL_70B = Path(__file__).resolve().parent.parent / "examples" / "models" / "llama-3-70b.json"
ENGINES = ("8B on H100", "8B on L40S", "70B on 4 H100", "demo on CPU")
TRAFFIC = ("chat", "rag", "codegen", "batch", "azure_2023_code", "azure_2023_conv")
STEPS = (1.6, 2.5, 6.0)
"""TPOT objectives, in times of the shortest possible step."""
PROMPTS = (5.0, 15.0)
"""TTFT objectives, in times of the prefill of a mean prompt, alone."""
SIZES = tuple(range(6, 17))
CASES, EACH_WAY, APART = 40, 10, 1.03
FEWEST_TURNS = 5
"""How many times as many requests come as are open at once."""
SEED = 25


@dataclass(frozen=True)
class Case:
    """What is planned."""

    engine: str
    traffic: str
    tpot_steps: float
    ttft_prompts: float
    size: int

    @property
    def name(self) -> str:
        """One line."""
        objectives = f"{self.tpot_steps:g} steps, {self.ttft_prompts:g} prompts"
        return f"{self.engine}, {self.traffic}, {objectives}, {self.size} engines"


def main() -> None:
    """Run and print."""
    parser = command_line(__doc__, quick="one case: proves that it runs")
    parser.add_argument("--keep", type=Path, help="append cases to this file, and skip those in it")
    parser.add_argument("--requests", type=int, default=1_200, help="in each half")
    parser.add_argument("--cases", type=int, default=CASES, help="how many")
    parser.add_argument("--seed", type=int, default=SEED, help="of the cases")
    parser.add_argument("--real", action="store_true", help="only six choices on two real engines")
    parser.add_home()
    options = parser.parse_args()
    if options.real:
        print(json.dumps(real_choices(options.home, say) | {"python": interpreter()}))
        return
    requests, wanted = (300, 1) if options.quick else (options.requests, options.cases)
    kept = read_kept(options.keep)
    results: list[dict[str, Any]] = []
    for number, case in enumerate(drawn(options.seed, quick=options.quick)):
        if len(results) == wanted:
            break
        seed = 1_000 * options.seed + number
        result = kept.get(case.name) or judged(case, requests, seed, compares=not all_clear(results))
        if options.keep is not None and case.name not in kept:
            with options.keep.open("a") as file:
                file.write(json.dumps(result) + "\n")
        if "skipped" not in result:
            results.append(result)
        say(f"{len(results)}: {json.dumps(result)}")
    record = summary(results, requests, quick=options.quick)
    print_record(record, options)


def read_kept(file: Path | None) -> dict[str, dict[str, Any]]:
    """Cases of an earlier run."""
    if file is None or not file.exists():
        return {}
    return {it["case"]: it for it in map(json.loads, file.read_text().splitlines())}


def drawn(seed: int, *, quick: bool) -> Iterator[Case]:
    """Every combination once, in an order by chance."""
    if quick:
        yield Case("demo on CPU", "rag", 2.5, 15.0, 12)
        return
    rng = Random(seed)
    combinations = list(product(ENGINES, TRAFFIC, STEPS, PROMPTS))
    rng.shuffle(combinations)
    for each in combinations:
        yield Case(*each, rng.choice(SIZES))


# --- one case


def judged(case: Case, requests: int, seed: int, *, compares: bool) -> dict[str, Any]:
    """Plan from one half, judge on the other."""
    began_s = time.process_time()
    engine = engine_of(case.engine)
    goal, (own, other), block_tokens = load_of(case, engine, requests, seed)
    result: dict[str, Any] = {"case": case.name}
    space, true_space = Space(engine, own, goal.slo), Space(engine, other, goal.slo)
    if why := space.hopeless(goal.attainment) or short(own, goal.slo):
        return result | {"skipped": why}
    trials = CandidateTrials(engine, own, goal, block_tokens)
    plan = choose(space, trials, 2 * max(SIZES))
    if plan.best is None:
        return result | {"skipped": "no fleet of this size does"}
    candidate = plan.best.candidate
    true_trials = CandidateTrials(engine, other, replace(goal, caution=0.0), block_tokens)
    if not min(SIZES) - 1 <= candidate.engines <= max(SIZES) + 1:
        return result | {"skipped": f"{candidate.engines} engines are planned"}
    best = best_possible(true_space, true_trials, candidate)
    if best not in SIZES:
        return result | {"skipped": f"{best} engines are enough"}
    needed = until_met(candidate, true_trials)
    result |= {
        "planned": candidate.label,
        "planned_attained": round(plan.best.attained, 4),
        "best": best,
        "attained": round(true_trials(candidate).attained, 4),
        "missed": needed > candidate.engines,
        "extra": needed - best,
    }
    if compares:
        said = compare(trials, best, plan)
        result |= {"ratio": round(said.ratio, 4), "said": said.pays}
        result |= {"true": truly_pays(true_space, true_trials, best, plan)}
    return result | {"seconds": round(time.process_time() - began_s)}


def short(traffic: SimulatedTraffic, slo: Slo) -> str:
    """Why there are too few requests for a steady load, if all take as long as they may."""
    sessions = traffic.sessions
    outputs = fmean(it.output_tokens for it in traffic.turns)
    opened = len(sessions) / (sessions[-1].at_s - sessions[0].at_s) * outputs * slo.tpot_s
    return f"{opened:.0f} requests are open at once" if opened * FEWEST_TURNS > len(sessions) else ""


def best_possible(space: Space, trials: CandidateTrials, planned: FleetCandidate) -> int:
    """The fewest engines of either kind, by bisection over the grid from the planned number on."""
    own = fewest(space, trials, planned.engines, disaggregated=planned.prefill > 0)
    least = MOST_ENGINES if own is None else own.candidate.engines
    fewer = fewest(space, trials, least - 1, least - 1, disaggregated=planned.prefill == 0)
    return least if fewer is None else fewer.candidate.engines


def until_met(candidate: FleetCandidate, trials: CandidateTrials) -> int:
    """Engines with which the plan meets its objective: its own, or with as many more as that takes."""
    while not trials(candidate).met and candidate.engines < MOST_ENGINES:
        more = candidate.engines + 1
        nearest = [candidate.prefill, candidate.prefill + 1] if candidate.prefill else [0]
        tried = [trials(replace(candidate, engines=more, prefill=it)) for it in nearest]
        candidate = max(tried, key=lambda it: (it.met, it.attained)).candidate
    return candidate.engines


def truly_pays(space: Space, trials: CandidateTrials, engines: int, near: Choice) -> Pays:
    """Whether disaggregation carries 3% more load than mixed engines do, or 3% less."""

    def at_load(load: float) -> CandidateTrials:
        return trials.with_traffic(faster(trials.traffic, load))

    found = [near.mixed, near.disaggregated]
    caps = [it.candidate.max_num_seqs if it else space.caps[0] for it in found]
    lines = [space.candidates(engines, cap, disaggregated=bool(kind)) for kind, cap in enumerate(caps)]
    begins = [
        space.begin_at(line, it.candidate if it else None) for line, it in zip(lines, found, strict=True)
    ]
    begin = engines / near.mixed.candidate.engines if near.mixed else 0.5
    mixed = most_load(lines[0], begins[0], at_load, min(begin, 1.0), RESOLUTION)
    if climb(lines[1], begins[1], at_load(mixed * APART)) if mixed else True:
        return Pays.YES
    return Pays.UNDECIDED if climb(lines[1], begins[1], at_load(mixed / APART)) else Pays.NO


@cache
def engine_of(name: str) -> EngineFigures:
    """By data sheets, or the demo engine."""
    model, _, device = name.partition(" on ")
    if model == "demo":
        demo = EngineShape()
        return EngineFigures(
            preset("cpu-demo"),
            demo.total_blocks * demo.block_size,
            demo.max_num_batched_tokens,
            demo.max_num_seqs,
            demo.max_model_len,
            LinkSpeed(),
            modelled=False,
        )
    config = MODEL_8B if model == "8B" else json.loads(MODEL_70B.read_text())
    devices, _, gpu = device.rpartition(" ")
    count = int(devices or 1)
    deployment = Deployment(architecture_of(config), ACCELERATORS[gpu], count)
    return modelled_engine(deployment, 16_384, 25e9)


def load_of(
    case: Case, engine: EngineFigures, requests: int, seed: int
) -> tuple[Goal, list[SimulatedTraffic], int]:
    """The objectives, both halves at the rate that suits the size, and the block size."""
    if case.traffic in set(PresetName):
        source: Any = PRESETS[PresetName(case.traffic)]
    else:
        source = read_trace(DATA / f"{case.traffic}.csv")
    whole = traffic_of(source, OpenLoop(1.0), 2 * requests, None, None, seed)
    prompts = fmean(tokens_of(turn.prompt) for it in whole.sessions for turn in it.turns)
    slo = Slo(
        case.ttft_prompts * engine.cost(prefilling(round(prompts))), case.tpot_steps * engine.cost.floor_s
    )
    rng = Random(seed)
    parts: tuple[list[Session], list[Session]] = ([], [])
    for pair in zip(whole.sessions[::2], whole.sessions[1::2], strict=False):
        for part, session in zip(parts, rng.sample(pair, 2), strict=True):
            part.append(session)
    halves = [SimulatedTraffic(list(it)) for it in parts]
    rate = case.size / needed_at_once(engine, whole, slo)
    return Goal(slo), [faster(it, rate) for it in halves], block_tokens_of(source)


def needed_at_once(engine: EngineFigures, traffic: SimulatedTraffic, slo: Slo) -> float:
    """Engines that a planner would begin with for this traffic: for one half of it at its own speed."""
    seconds = traffic.sessions[-1].at_s - traffic.sessions[0].at_s
    return sum(Space(engine, traffic, slo).work_s) / seconds / 2 / USUAL_LOAD


# --- all of them


def all_clear(results: list[dict[str, Any]]) -> bool:
    """Whether there are enough clear cases each way."""
    return all(len(clear(results, way)) >= EACH_WAY for way in Pays if way is not Pays.UNDECIDED)


def clear(results: list[dict[str, Any]], way: Pays) -> list[dict[str, Any]]:
    """The first cases in which disaggregation clearly pays, or clearly does not."""
    return [it for it in results if it.get("true") == way][:EACH_WAY]


def summary(results: list[dict[str, Any]], requests: int, *, quick: bool) -> dict[str, Any]:
    """The record."""
    extras = [it["extra"] for it in results]
    ways = {way: clear(results, way) for way in (Pays.YES, Pays.NO)}
    right = sum(it["said"] == way for way, found in ways.items() for it in found)
    return {
        "cases": len(results),
        "extra_engines_median": median(extras),
        "extra_engines_worst": max(extras),
        "extra_engines_mean": round(fmean(extras), 3),
        "missed": round(fmean(it["missed"] for it in results), 3),
        "disaggregation_right": right,
        "disaggregation_cases": sum(map(len, ways.values())),
        "disaggregation_pays": len(ways[Pays.YES]),
        "judged_by": "the simulator",
        "requests_per_half": requests,
        "quick": quick,
        "python": interpreter(),
    }


if __name__ == "__main__":
    main()
