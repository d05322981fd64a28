"""Small shapes, traces and specifications to plan from."""

from __future__ import annotations

from dataclasses import replace

from phasewise.loadgen.workload.arrivals import ClosedLoop, Load
from phasewise.loadgen.workload.lengths import Lengths
from phasewise.loadgen.workload.plan import PlannedRequest, PlanSpec
from phasewise.loadgen.workload.presets import Shape
from phasewise.loadgen.workload.traces import Trace, TracedRequest


def make_shape(prompt_tokens: int = 50, output_tokens: int = 8, **more: object) -> Shape:
    return replace(Shape("test.", Lengths.fixed(prompt_tokens), Lengths.fixed(output_tokens)), **more)


def make_trace(*requests: TracedRequest, block_tokens: int = 512) -> Trace:
    return Trace("trace", requests, block_tokens)


def make_spec(load: Load | None = None, requests: int | None = 5, **more: object) -> PlanSpec:
    return PlanSpec(**{"source": make_shape(), "load": load or ClosedLoop(2), "requests": requests, **more})


def words_of(planned: PlannedRequest) -> list[str]:
    return " ".join(message.content for message in planned.messages).split(" ")
