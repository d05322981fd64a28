"""Step records of a virtual engine under random traffic: what a recorder would hold, without the waiting."""

from __future__ import annotations

import numpy as np

from phasewise.simulator.engine import EngineShape, VirtualEngine, VirtualRequest
from tests.builders import EPOCH_S


def recorded_steps(cost, count, *, seed=0, rate_per_s=1.2, shape=None):
    """So many steps; lengths are spread as in chats, arrivals are random, steps vary by a tenth."""
    rng = np.random.default_rng(seed)
    engine = VirtualEngine(
        shape or EngineShape(), lambda work: cost(work) * float(np.exp(rng.normal(0, 0.1)))
    )
    steps, now_s, arrives_s, number = [], EPOCH_S, EPOCH_S, 0
    while len(steps) < count:
        while arrives_s <= now_s or not engine.has_work:
            now_s = max(now_s, arrives_s)
            prompt = tuple(int(token) for token in rng.integers(1000, 30_000, _length(rng, 4.5, 1.2, 2_000)))
            outputs = _length(rng, 3.5, 0.8, 300)
            engine.add(VirtualRequest(f"r{number}", prompt, outputs, arrives_s, ignore_eos=True), now_s)
            number, arrives_s = number + 1, arrives_s + rng.exponential(1 / rate_per_s)
        report = engine.step(now_s)
        steps.append(report.step)
        now_s = report.step.ended_unix_s
    return steps


def _length(rng, mean, spread, most):
    return 2 + int(min(most, np.exp(rng.normal(mean, spread))))
