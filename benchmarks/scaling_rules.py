"""What scaling rules cost at the same attainment, tuned on two traces and judged on two others.

    python benchmarks/scaling_rules.py [--data FOLDER] [--quick] [--json]

All is simulated: the gateway's own scheduling before engines with the modelled step times of a 70B model on
four A100 or L40S; engines start within two minutes. The traces come from ../shared/data unless --data says
otherwise. None is longer than an hour, so each is stretched: its times are multiplied, and each request comes
several times, each time with prefixes of its own. `traces` says how. Rules are `fixed`, `concurrency`
(Kubernetes' autoscaler on open requests per engine), `slo` (llm-d's queueing model), `phasewise` (the metric
phasewise_engines_needed) and `hindsight`, a lower bound. The autoscaler follows each with its defaults. All
begin with the same engines.

Each rule has one setting. On each trace it is moved until 95% of the requests meet their objectives, and the
engine hours at 95% are interpolated between the two settings next to it: `cost_at_95_attained`.
`oscillations` are the reversals of the setting that attains it. `tuned` is the setting that attains 95% on
both tuning traces, and `as_tuned` what it brings on the judged ones. `within_best` is the cost of phasewise
divided by that of the best other rule. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, log
from pathlib import Path
from random import Random
from typing import Any

from phasewise.core.slo import Slo
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.experiments.simulate.fleet_plan import fleet_plan, modelled_engine
from phasewise.experiments.simulate.scaling import ScalingFigures, ScalingTrial, try_rule
from phasewise.experiments.simulate.traffic import block_tokens_of, traffic_of
from phasewise.fleet.config import FleetConfig
from phasewise.fleet.config.fleet import Pool
from phasewise.loadgen.workload.arrivals import Replay
from phasewise.loadgen.workload.traces import Trace, TracedRequest, read_trace
from phasewise.simulator.fleet import FleetPlan
from phasewise.simulator.traffic import Traffic

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
MODELS = Path(__file__).resolve().parent.parent / "examples" / "models"
MODEL_70B = json.loads((MODELS / "llama-3-70b.json").read_text())
ATTAINED = 0.95
START_UP_S, LEAST, MOST = 120.0, 1, 64
MAX_WAIT_S = 60.0
SPREAD_S = 10.0
"""A request's copies come within this time of it, before it is stretched."""
SHORT_PROMPTS = {"fixed": 6.0, "concurrency": 20.0, "slo": 0.75, "phasewise": 0.8}
LONG_PROMPTS = {"fixed": 7.0, "concurrency": 3.0, "slo": 0.4, "phasewise": 0.6}
"""Where the search for a rule's setting begins."""
MORE_ENGINES = {"fixed": 1.25, "concurrency": 0.8, "slo": 0.85, "phasewise": 0.88}
"""By which factor a setting is changed for more engines."""
MOST_STEPS = 5


@dataclass(frozen=True, slots=True)
class Case:
    """A trace, how it is stretched, the device of its engines, and its objectives."""

    file: str
    judged: bool
    stretch: float
    copies: int
    gpu: str
    slo: Slo
    settings: Mapping[str, float]

    @property
    def name(self) -> str:
        return self.file.partition(".")[0]


CASES = (
    Case("azure_2023_code.csv", False, 2, 1, "L40S", Slo(3.0, 0.2), SHORT_PROMPTS),
    Case("mooncake_conversation.jsonl", False, 6, 1, "A100", Slo(30.0, 0.1), LONG_PROMPTS),
    Case("azure_2023_conv.csv", True, 2, 1, "L40S", Slo(3.0, 0.2), SHORT_PROMPTS),
    Case("mooncake_synthetic.jsonl", True, 12, 2, "A100", Slo(30.0, 0.1), LONG_PROMPTS),
)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the traces")
    parser.add_argument("--quick", action="store_true", help="few made-up requests: proves that it runs")
    parser.add_argument("--json", action="store_true", help="print only progress and the JSON line")
    options = parser.parse_args()
    record = judged(options.data, quick=options.quick)
    record["python"] = " ".join(
        (platform.python_implementation(), platform.python_version(), *platform.python_build())
    )
    if not options.json:
        print(json.dumps(record, indent=2))
    print(json.dumps(record))


def judged(data: Path, *, quick: bool) -> dict[str, Any]:
    """Tune, judge, compare."""
    began_s = time.process_time()
    record: dict[str, Any] = {"traces": [], "cost_at_95_attained": {}, "oscillations": {}, "quick": quick}
    tuned: dict[str, list[float]] = {}
    as_tuned: dict[str, Any] = {}
    within: dict[str, float] = {}
    for case in CASES:
        runs = Runs(case, made_up() if quick else trace_of(data, case), steps=2 if quick else MOST_STEPS)
        costs, oscillations = {}, {}
        for rule, setting in case.settings.items():
            found = runs.at_95(rule, setting)
            costs[rule], oscillations[rule] = found.engine_hours, found.oscillations
            if not case.judged and found.engine_hours is not None:
                tuned.setdefault(rule, []).append(found.setting)
        costs["hindsight"] = round(runs.run("hindsight", ATTAINED).engine_hours, 2)
        record["traces"].append(runs.about())
        record["cost_at_95_attained"][case.name] = costs
        record["oscillations"][case.name] = oscillations
        if not case.judged:
            continue
        if not as_tuned:
            record["tuned"] = {rule: round(stricter(rule, its), 3) for rule, its in tuned.items()}
        others = [cost for rule, cost in costs.items() if rule not in {"phasewise", "hindsight"} and cost]
        if others and costs["phasewise"]:
            within[case.name] = round(costs["phasewise"] / min(others), 3)
        as_tuned[case.name] = {
            rule: {"attained": round(it.attained, 4), "engine_hours": round(it.engine_hours, 2)}
            for rule, setting in record["tuned"].items()
            for it in [runs.run(rule, setting)]
        }
    record |= {"as_tuned": as_tuned, "within_best": within, "start_up_s": START_UP_S}
    record["cpu_minutes"] = round((time.process_time() - began_s) / 60, 1)
    return record


def stricter(rule: str, settings: list[float]) -> float:
    """The setting with more engines."""
    return max(settings) if MORE_ENGINES[rule] > 1 else min(settings)


@dataclass(frozen=True, slots=True)
class At95:
    """A rule where it attains 95%; None where no setting did."""

    setting: float
    engine_hours: float | None
    oscillations: int


class Runs:
    """The runs of one trace, each setting once."""

    def __init__(self, case: Case, trace: Trace, steps: int) -> None:
        self._case = case
        self._steps = steps
        self._traffic: Traffic = traffic_of(trace, Replay(1.0), None, None, None, 1)
        self._plan = plan_of(case, trace, 1)
        self._done: dict[tuple[str, float], ScalingFigures] = {}
        first = Traffic([it for it in self._traffic.sessions if it.at_s < 600])
        work_h = try_rule(self._trial("hindsight", 1.0), self._plan, first, case.slo, 0.0).engine_hours
        self._begin = ceil(2 * work_h * 6)
        self._plan = plan_of(case, trace, self._begin)

    def about(self) -> Mapping[str, Any]:
        """What was run."""
        case = self._case
        return {
            "trace": case.name,
            "judged": case.judged,
            "stretched": case.stretch,
            "copies": case.copies,
            "hours": round(self._traffic.sessions[-1].at_s / 3600, 2),
            "requests": self._traffic.requests,
            "engine": f"70B on 4 x {case.gpu}, modelled",
            "first_engines": self._begin,
            "ttft_s": case.slo.ttft_s,
            "tpot_s": case.slo.tpot_s,
        }

    def run(self, rule: str, setting: float) -> ScalingFigures:
        """One setting."""
        setting = float(round(setting)) if rule == "fixed" else setting
        if (rule, setting) not in self._done:
            began_s = time.process_time()
            found = try_rule(self._trial(rule, setting), self._plan, self._traffic, self._case.slo, 0.0)
            self._done[rule, setting] = found
            took_s = time.process_time() - began_s
            say(
                f"{self._case.name}: {found.label} attains {found.attained:.1%} with "
                f"{found.engine_hours:.2f} engine hours, {found.reversals} reversals ({took_s:.0f} s)"
            )
        return self._done[rule, setting]

    def at_95(self, rule: str, setting: float) -> At95:
        """Move the setting until 95% is crossed, and interpolate the cost."""
        factor, here = MORE_ENGINES[rule], self.run(rule, setting)
        enough = here.attained >= ATTAINED
        for _ in range(self._steps):
            step = 1 / factor if enough else factor
            changed = setting * step
            if rule == "fixed" and round(changed) == round(setting):
                changed = setting + (1 if step > 1 else -1)
            if rule == "fixed" and round(changed) < 1:
                break
            there = self.run(rule, changed)
            if (there.attained >= ATTAINED) != enough:
                above, below = (here, there) if enough else (there, here)
                return between(
                    *(self._next_to_each_other(above, below) if rule == "fixed" else (above, below))
                )
            here, setting = there, changed
        return At95(setting, round(here.engine_hours, 2) if enough else None, here.reversals)

    def _next_to_each_other(
        self, above: ScalingFigures, below: ScalingFigures
    ) -> tuple[ScalingFigures, ScalingFigures]:
        """Fixed numbers of engines that differ by one."""
        while (above.setting or 0.0) - (below.setting or 0.0) > 1:
            middle = self.run("fixed", ((above.setting or 0.0) + (below.setting or 0.0)) // 2)
            above, below = (middle, below) if middle.attained >= ATTAINED else (above, middle)
        return above, below

    def _trial(self, rule: str, setting: float) -> ScalingTrial:
        return ScalingTrial(rule, setting, START_UP_S, LEAST, MOST)


def between(above: ScalingFigures, below: ScalingFigures) -> At95:
    """At 95%, linear in the attainment; settings as factors."""
    share = (above.attained - ATTAINED) / (above.attained - below.attained)
    hours = above.engine_hours + share * (below.engine_hours - above.engine_hours)
    setting = (above.setting or 1.0) * ((below.setting or 1.0) / (above.setting or 1.0)) ** share
    return At95(setting, round(hours, 2), above.reversals)


def plan_of(case: Case, trace: Trace, engines: int) -> FleetPlan:
    """Engines that are alike behind one gateway."""
    deployment = Deployment(architecture_of(MODEL_70B), ACCELERATORS[case.gpu], 4)
    engine = modelled_engine(deployment, 131_072, 25e9)
    config = FleetConfig(pools=(Pool(name="main", replicas=engines),))
    plan = fleet_plan(config, engine, block_tokens=block_tokens_of(trace))
    return replace(plan, max_wait_s=MAX_WAIT_S)


def trace_of(data: Path, case: Case) -> Trace:
    """The trace, stretched."""
    path = data / case.file
    if not path.exists():
        sys.exit(f"{path} is not there: give --data FOLDER")
    trace, rng, made = read_trace(path), Random(1), []
    for request in trace.requests:
        for copy in range(case.copies):
            at_s = (request.at_s + SPREAD_S * rng.random()) * case.stretch
            ids = tuple(it * case.copies + copy for it in request.block_ids)
            made.append(TracedRequest(at_s, request.prompt_tokens, request.output_tokens, ids))
    return Trace(case.name, tuple(sorted(made, key=lambda it: it.at_s)), trace.block_tokens)


def made_up() -> Trace:
    """A few requests that come faster and faster, to show that it runs where no trace is."""
    requests = (TracedRequest(150 * log(1 + number), 2_000, 100) for number in range(300))
    return Trace("made up", tuple(requests))


def say(words: str) -> None:
    """Progress."""
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
