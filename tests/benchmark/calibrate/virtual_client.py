"""Plays scenes to a virtual engine in virtual time, as the prober does to a real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random

from phasewise.benchmark.calibrate.scenes import QUIET_STEPS, STEPS_PER_ARRIVAL, Heard, Played, Scene
from phasewise.costs.fit.step import StepSeconds, StepWork
from phasewise.simulator.engine import EngineShape, VirtualEngine, VirtualRequest


@dataclass
class VirtualClient:
    """`way_in_s` and `way_back_s` make up the front end; `works` are the true ones of all steps."""

    cost: StepSeconds
    shape: EngineShape = field(default_factory=EngineShape)
    way_in_s: float = 0.002
    way_back_s: float = 0.001
    now_s: float = 0.0
    works: list[StepWork] = field(default_factory=list)

    def __post_init__(self):
        self._engine = VirtualEngine(self.shape, self.cost)
        self._ids, self._rng = count(), Random(0)  # noqa: S311 - no secret
        self._coming: list[tuple[float, VirtualRequest]] = []
        self._heard: dict[str, Heard] = {}

    @property
    def front_end_s(self):
        return self.way_in_s + self.way_back_s

    def play(self, scene: Scene) -> Played:
        streams = [Heard(scene.context_tokens, scene.stream_tokens) for _ in range(scene.streams)]
        arrivals = [Heard(tokens, 1) for tokens in scene.arrivals]
        self.now_s += 1.0
        for stream in streams:
            self._send(stream)
        waiting = list(enumerate(arrivals))
        while True:
            if waiting and self._is_due(*waiting[0], streams, arrivals):
                self._send(waiting.pop(0)[1])
            if not (self._engine.has_work or self._coming):
                return Played(scene, tuple(streams), tuple(arrivals))
            self._step()

    def _is_due(self, number, arrival, streams, arrivals):
        before = arrivals[:number]
        wanted = QUIET_STEPS // 2 + number * STEPS_PER_ARRIVAL
        return all(each.complete for each in before) and all(len(each.times_s) >= wanted for each in streams)

    def _send(self, heard):
        request_id = str(next(self._ids))
        prompt_ids = tuple(self._rng.randrange(1_000, 20_000) for _ in range(heard.prompt_tokens))
        # What was heard of the last step is what the next request waits for.
        heard.sent_s = self.now_s + self.way_back_s
        arrived_s = heard.sent_s + self.way_in_s
        request = VirtualRequest(request_id, prompt_ids, heard.output_tokens, arrived_s, ignore_eos=True)
        self._coming.append((arrived_s, request))
        self._heard[request_id] = heard

    def _step(self):
        if not self._engine.has_work:
            self.now_s = max(self.now_s, self._coming[0][0])
        while self._coming and self._coming[0][0] <= self.now_s:
            self._engine.add(self._coming.pop(0)[1], self.now_s)
        report = self._engine.step(self.now_s)
        self.works.append(report.work)
        self.now_s = report.step.ended_unix_s
        for token in report.emitted:
            self._heard[token.request_id].times_s.append(self.now_s + self.way_back_s)
