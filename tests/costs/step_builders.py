"""Steps as a calibration plays them, and what a machine of known cost and noise takes for them."""

from __future__ import annotations

from math import exp

from phasewise.costs.fit.observation import Observation
from phasewise.costs.fit.step import StepCost, StepWork, chunk_pairs, decoding, prefilling

COST = StepCost(
    floor_s=0.056,
    knee_tokens=96,
    beyond_knee_s_per_token=0.76e-3,
    attention_s_per_token_pair=0.25e-6,
    kv_read_s_per_token=2.2e-6,
    per_request_s=1.1e-3,
)
PROMPTS = (16, 26, 41, 66, 105, 168, 268, 429, 687, 1100, 1759, 2815, 4096)
BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (64, 256, 1024, 2048)
PAUSE_S = 2.0


def mixed(prompt_tokens, streams, context_tokens):
    pairs = chunk_pairs(prompt_tokens, 0)
    return StepWork(prompt_tokens, streams, streams + 1, pairs, streams * context_tokens)


ALONE = [prefilling(tokens) for tokens in PROMPTS]
STREAMS = [decoding([context] * batch) for batch in BATCHES for context in CONTEXTS]
AMONG = [
    mixed(PROMPTS[turn % len(PROMPTS)], batch, context)
    for row, batch in enumerate(BATCHES)
    for column, context in enumerate((64, 2048))
    for turn in (2 * row + column, 2 * row + column + 6)
]
WORKS = [*ALONE, *STREAMS, *AMONG]


def observe(cost, rng, works=WORKS, *, visits=4, readings=2, jitter=0.1, mood=0.0, slowed=0.0):
    """Every work at several times, each time some readings.

    `jitter` is the spread of each reading's logarithm, `mood` of what those of a visit share; `slowed` is the
    share of readings that took 1.6 times as long.
    """
    observations, at_s = [], 0.0
    for work in [work for _ in range(visits) for work in works]:
        shared = rng.normal(0.0, mood)
        for _ in range(readings):
            factor = exp(shared + rng.normal(0.0, jitter)) * (1.6 if rng.random() < slowed else 1.0)
            at_s += cost(work) * factor
            observations.append(Observation((work,), cost(work) * factor, at_s=at_s))
        at_s += PAUSE_S
    return observations
