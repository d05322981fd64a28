"""Small shapes, traces and specifications to plan from."""

from __future__ import annotations

from dataclasses import replace

from phasewise.benchmark.workload.arrivals import ClosedLoop, Load
from phasewise.benchmark.workload.drafts import PlannedRequest
from phasewise.benchmark.workload.plan import PlanSpec
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.benchmark.workload.traces import Trace, TracedRequest


def make_shape(prompt_tokens: int = 50, output_tokens: int = 8, **more: object) -> Shape:
    return replace(Shape("test.", Lengths.fixed(prompt_tokens), Lengths.fixed(output_tokens)), **more)


def make_trace(*requests: TracedRequest, block_tokens: int = 512) -> Trace:
    return Trace("trace", requests, block_tokens)


def make_spec(load: Load | None = None, requests: int | None = 5, **more: object) -> PlanSpec:
    return PlanSpec(**{"source": make_shape(), "load": load or ClosedLoop(2), "requests": requests, **more})


def words_of(planned: PlannedRequest) -> list[str]:
    return " ".join(message.content for message in planned.messages).split(" ")
