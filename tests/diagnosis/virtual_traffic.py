"""Traffic through the virtual engine: timelines and a step record whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.core.steps import StepLog
from phasewise.costs.fit.step import StepCost
from phasewise.diagnosis.analysis.attribution import explained, readings_of
from phasewise.simulator.engine import EngineShape, VirtualEngine, VirtualRequest
from phasewise.simulator.run import run_virtually
from tests.builders import EPOCH_S, make_attempt, make_timeline

COST = StepCost(
    floor_s=0.040,
    knee_tokens=64,
    beyond_knee_s_per_token=0.8e-3,
    attention_s_per_token_pair=0.2e-6,
    kv_read_s_per_token=4e-6,
    per_request_s=1e-3,
)
WAY_BACK_S = 0.002


class RecordedEngine(VirtualEngine):
    """A virtual engine that keeps its reports; `slowed` says what a step takes more, by its number."""

    def __init__(self, shape, cost=COST, slowed=None):
        super().__init__(shape, cost)
        self.reports = []
        self._fair_cost, self._slowed = cost, slowed or {}

    def step(self, now):
        self._cost = lambda work: self._fair_cost(work) + self._slowed.get(self._next_seq, 0.0)
        report = super().step(now)
        if report is not None:
            self.reports.append(report)
        return report


@dataclass(frozen=True)
class Traffic:
    timelines: tuple
    log: StepLog
    reports: tuple

    @property
    def logs(self):
        return {"w0": (self.log,)}


def ask(index, arrived_s, prompt_tokens=100, output_tokens=20):
    """A request with a prompt of its own."""
    prompt = tuple(index * 100_000 + position for position in range(prompt_tokens))
    return VirtualRequest(
        f"r{index}", prompt, output_tokens, EPOCH_S + arrived_s, min_tokens=output_tokens, ignore_eos=True
    )


def play(requests, *, fit=None, slowed=None, **shape):
    """What a gateway and a recorder see of these requests; chunks reach the gateway a little later."""
    engine = RecordedEngine(EngineShape(**shape), slowed=slowed)
    outcomes = run_virtually(engine, requests)
    log = StepLog([report.step for report in engine.reports])
    sizes = {request.request_id: len(request.prompt_ids) for request in requests}
    timelines = [
        make_timeline(
            tuple(at_s - seen.arrived_s + WAY_BACK_S for at_s in seen.token_times_s),
            request_id=seen.request_id,
            started_unix_s=seen.arrived_s,
            attempts=(make_attempt(engine_request_id=seen.request_id),),
            prompt_tokens=sizes[seen.request_id],
        )
        for seen in outcomes
    ]
    return Traffic(explained(timelines, readings_of({"w0": (log,)}, fit)), log, tuple(engine.reports))
