"""Windows of traffic as an engine of known costs would have served it."""

from __future__ import annotations

from itertools import product

from phasewise.core.statistics import Interval
from phasewise.costs.fit.solve import FittedCost
from phasewise.costs.fit.step import CostPart, StepCost, StepKind
from phasewise.costs.fit.step_fit import StepFit
from phasewise.diagnosis.predict.replay import replay
from phasewise.diagnosis.predict.setup import Setup
from phasewise.diagnosis.predict.traffic import RecordedRequest, RecordedTraffic
from phasewise.simulator.engine import EngineShape

COST = StepCost(
    floor_s=0.02,
    knee_tokens=128,
    beyond_knee_s_per_token=4e-4,
    attention_s_per_token_pair=1e-8,
    kv_read_s_per_token=1e-6,
    per_request_s=1e-4,
)
SHAPE = EngineShape(max_model_len=4096, block_size=16, total_blocks=2048, prefix_cache=False)
SETUP = Setup(SHAPE)
ERRORS = tuple(step / 200 for step in range(-20, 21))
EVERYWHERE = frozenset(product(range(14), repeat=3))


def make_fit(cost=COST, errors=ERRORS, seen=EVERYWHERE):
    span = Interval(0.0, 1.0, 0.9)
    return StepFit(
        fitted=FittedCost(cost, 0.0),
        intervals=dict.fromkeys(CostPart, span),
        knee_tokens=span,
        front_end_s=span,
        errors=dict.fromkeys(StepKind, errors),
        seen=seen,
        observations=1000,
    )


def make_recorded(index=0, came_s=0.0, **fields):
    return RecordedRequest(
        **{
            "request_id": f"r{index}",
            "came_s": came_s,
            "went_s": came_s + 1.0,
            "prompt_tokens": 100,
            "output_tokens": 10,
            "engine": "e0",
            **fields,
        }
    )


def every(seconds, count, **fields):
    """Requests that come at even times."""
    return tuple(make_recorded(index, index * seconds, **fields) for index in range(count))


def served(requests, setup=SETUP, cost=COST, **fields):
    """The traffic with the figures that these costs give it."""
    unmeasured = RecordedTraffic(tuple(requests), {}, **fields)
    return RecordedTraffic(tuple(requests), replay(unmeasured, setup, cost), **fields)
