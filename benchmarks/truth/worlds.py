"""Step costs of judged machines: families that the product's piecewise linear fit does not contain.

Every size is relative to the floor, the time of a decode step with one short stream. A family belongs either
to the scenes that rules are tuned on or to those held out, never to both. So does a kind of noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, exp, sqrt
from random import Random
from types import MappingProxyType

from phasewise.costs.fit.step import StepSeconds, StepWork

TUNE_FAMILIES = ("power", "tiles", "smooth", "quadratic", "graphs", "experts", "mixing")
HELD_OUT_FAMILIES = ("stages", "spill", "lanes", "hidden")
TUNE_NOISES, HELD_OUT_NOISES = ("lognormal", "pareto", "drifting", "clocks"), ("ranks", "collector")
MOST_NOISE = 12.0
"""A heavy tail is cut here: a step that takes longer than so many times its cost is a pause, not noise."""
TOUCHED_BY_ONE = 0.125
"""The share of a mixture's experts that one token needs."""
DRIFT_KEPT = 0.97
"""How much of the noise of one step is still there in the next, where noise drifts."""
FAST_STEPS, SLOW_STEPS = 150, 50
"""How many steps a clock stays at each of its two frequencies, on average."""
STAGES = 4
"""The accelerators of a pipeline."""
CACHED_TOKENS = 600
"""The tokens of a step at which half of what it can lose by spilling out of the cache is lost."""
RANKS, SLOWEST_MEAN, SLOWEST_VARIANCE = 8, 1.4236, 0.3729
"""Accelerators that wait for each other; mean and variance of the largest of so many normal numbers."""
COLLECTED_EVERY = 20
"""Steps from one collection of garbage to the next."""


@dataclass(frozen=True, slots=True)
class World:
    """A machine and its model.

    `prompt_floors` is what 1,000 prompt tokens cost, `stream_floors` what 32 more streams add to a step,
    `attention_floors` what attention adds to a prompt of 2,000 tokens, `context_floors` what reading a
    context of 10,000 tokens adds: all in floors. `bend` shapes the family: an exponent, a tile's
    tokens, a number of lanes, or how many floors something takes.
    With `asynchronous` steps an arrival misses one step, and outputs leave the engine `output_lag_s` late.
    `slower` multiplies all compute, as a slow number format does.
    """

    family: str
    floor_s: float
    prompt_floors: float
    stream_floors: float
    attention_floors: float
    context_floors: float
    bend: float
    noise: str
    spread: float
    asynchronous: bool = False
    output_lag_s: float = 0.0
    slower: float = 1.0

    def cost(self) -> StepSeconds:
        """Seconds of a step without noise."""
        compute = _FAMILIES[self.family](self)
        pair_s = self.attention_floors * self.floor_s / 2.0e6
        read_s = self.context_floors * self.floor_s / 1.0e4

        def seconds(work: StepWork) -> float:
            whole_s = compute(work) + pair_s * work.attention_token_pairs + read_s * work.kv_read_tokens
            return self.slower * whole_s

        return seconds

    def noisy_cost(self, rng: Random) -> StepSeconds:
        """The same with noise of mean about 1; every call draws."""
        cost, draw = self.cost(), _NOISES[self.noise](rng, self.spread)
        return lambda work: cost(work) * min(MOST_NOISE, draw())

    def prefill_s(self, tokens: int, chunk: int = 2048) -> float:
        """What a prompt takes alone."""
        cost = self.cost()
        total_s = 0.0
        for done in range(0, tokens, chunk):
            size = min(chunk, tokens - done)
            total_s += cost(StepWork(size, 0, 1, size * done + size * (size + 1) // 2, 0))
        return total_s

    def tokens_taking(self, seconds: float, most: int = 16_000) -> int:
        """The prompt that takes so long alone."""
        low, high = 1, most
        while high - low > 8:
            middle = (low + high) // 2
            low, high = (middle, high) if self.prefill_s(middle) < seconds else (low, middle)
        return high

    def step_s(self, streams: int, context: int = 200) -> float:
        """A decode step of so many streams."""
        return self.cost()(StepWork(0, streams, streams, 0, streams * context))


def _power(world: World) -> StepSeconds:
    """Tokens cost less the more there are: a power law below linear."""
    token_s = world.prompt_floors * world.floor_s / 1000.0**world.bend
    stream_s = world.stream_floors * world.floor_s / 32
    return lambda work: (
        world.floor_s + token_s * max(0, work.tokens - 1) ** world.bend + stream_s * max(0, work.requests - 1)
    )


def _tiles(world: World) -> StepSeconds:
    """Tokens are padded to whole tiles, so that cost grows in jumps."""
    tile = max(8, round(world.bend))
    tile_s = world.prompt_floors * world.floor_s * tile / 1000.0
    stream_s = world.stream_floors * world.floor_s / 32
    return lambda work: (
        world.floor_s + tile_s * (ceil(work.tokens / tile) - 1) + stream_s * max(0, work.requests - 1)
    )


def _smooth(world: World) -> StepSeconds:
    """A roofline without a corner: reading weights and computing overlap imperfectly."""
    token_s = world.prompt_floors * world.floor_s / 1000.0
    stream_s = world.stream_floors * world.floor_s / 32
    return lambda work: (
        (world.floor_s**world.bend + (token_s * work.tokens) ** world.bend) ** (1 / world.bend)
        + stream_s * max(0, work.requests - 1)
    )


def _quadratic(world: World) -> StepSeconds:
    """Streams disturb each other: a term in the square of the batch."""
    token_s = world.prompt_floors * world.floor_s / 1000.0
    square_s = world.stream_floors * world.floor_s / 32**2
    return lambda work: (
        world.floor_s + token_s * max(0, work.tokens - world.bend) + square_s * (work.requests - 1) ** 2
    )


def _graphs(world: World) -> StepSeconds:
    """Decodes are padded to the next captured batch size; one with prompts has no graph and starts late."""
    token_s = world.prompt_floors * world.floor_s / 1000.0
    stream_s = world.stream_floors * world.floor_s / 32

    def seconds(work: StepWork) -> float:
        if work.prompt_tokens:
            own_s = world.bend * world.floor_s + token_s * work.tokens + stream_s * (work.requests - 1)
        else:
            own_s = (token_s + stream_s) * (_captured(work.requests) - 1)
        return world.floor_s + own_s

    return seconds


def _captured(streams: int) -> int:
    """The smallest captured batch that holds so many streams: 1, 2, 4 and the multiples of 8."""
    return next((size for size in (1, 2, 4) if streams <= size), 8 * ceil(streams / 8))


def _experts(world: World) -> StepSeconds:
    """A mixture of experts: the more tokens, the more experts' weights are read, until all are."""
    token_s = world.prompt_floors * world.floor_s / 1000.0
    stream_s = world.stream_floors * world.floor_s / 32
    most_s = world.bend * world.floor_s

    def seconds(work: StepWork) -> float:
        others = max(0, work.tokens - 1)
        more_s = most_s * (1.0 - (1.0 - TOUCHED_BY_ONE) ** others)
        return world.floor_s + more_s + token_s * others + stream_s * max(0, work.requests - 1)

    return seconds


def _mixing(world: World) -> StepSeconds:
    """Prompts and decodes in one step hinder each other: neither has the caches and the bandwidth alone."""
    token_s = world.prompt_floors * world.floor_s / 1000.0
    stream_s = world.stream_floors * world.floor_s / 32

    def seconds(work: StepWork) -> float:
        prompts_s = token_s * work.prompt_tokens
        decodes_s = (world.floor_s + stream_s * work.decode_tokens) if work.decode_tokens else 0.0
        hindered_s = world.bend * sqrt(prompts_s * decodes_s)
        streams_s = stream_s * max(0, work.requests - 1)
        return world.floor_s + token_s * max(0, work.tokens - 1) + streams_s + hindered_s

    return seconds


def _stages(world: World) -> StepSeconds:
    """A pipeline: the requests of a step follow each other through its stages, and each reads weights again.

    Prompts keep all stages busy only if there are several: one alone is in one stage at a time.
    """
    token_s = world.prompt_floors * world.floor_s / 1000.0
    stream_s = world.stream_floors * world.floor_s / 32

    def seconds(work: StepWork) -> float:
        filled = min(STAGES, work.requests)
        again_s = world.bend * world.floor_s * (filled - 1) / STAGES
        prompts = work.requests - work.decode_tokens
        tokens = work.decode_tokens + work.prompt_tokens * _time_in_stages(prompts)
        return world.floor_s + again_s + token_s * max(0.0, tokens - 1) + stream_s * (work.requests - 1)

    return seconds


def _time_in_stages(prompts: int) -> float:
    """How long prompts take in a pipeline, as a share of what one prompt of all their tokens takes."""
    return (1.0 + (STAGES - 1) / max(1, min(STAGES, prompts))) / STAGES


def _spill(world: World) -> StepSeconds:
    """A large step's activations spill out of the cache: between two sizes, every token becomes slower."""

    def slower(tokens: float) -> float:
        large = (tokens / CACHED_TOKENS) ** 4
        return 1.0 + world.bend * large / (1.0 + large)

    token_s = world.prompt_floors * world.floor_s / (1000.0 * slower(1000))
    stream_s = world.stream_floors * world.floor_s / 32
    return lambda work: (
        world.floor_s
        + token_s * max(0, work.tokens - 1) * slower(work.tokens)
        + stream_s * max(0, work.requests - 1)
    )


def _lanes(world: World) -> StepSeconds:
    """Attention gives each stream one lane: contexts are read in rounds, and lanes without a stream idle.

    So a single stream reads its context as slowly as several streams read theirs together.
    """
    lanes = max(2, round(world.bend))
    token_s = world.prompt_floors * world.floor_s / 1000.0
    round_s = world.stream_floors * world.floor_s * lanes / 32
    read_s = world.context_floors * world.floor_s / 1.0e4

    def seconds(work: StepWork) -> float:
        idle_lanes = -work.decode_tokens % lanes
        context = work.kv_read_tokens / max(1, work.decode_tokens)
        rounds_s = round_s * (ceil(work.requests / lanes) - 1)
        return world.floor_s + token_s * max(0, work.tokens - 1) + rounds_s + read_s * context * idle_lanes

    return seconds


def _hidden(world: World) -> StepSeconds:
    """The host prepares a step while the accelerator computes: only the longer of the two is seen.

    The host's part grows with the requests. It is hidden behind few streams or any prompt.
    """
    token_s = world.prompt_floors * world.floor_s / 1000.0
    request_s = 2 * world.stream_floors * world.floor_s / 32
    return lambda work: max(
        world.floor_s + token_s * max(0, work.tokens - 1),
        (1.0 - world.bend) * world.floor_s + request_s * max(0, work.requests - 1),
    )


_FAMILIES: Mapping[str, Callable[[World], StepSeconds]] = MappingProxyType(
    {
        "power": _power,
        "tiles": _tiles,
        "smooth": _smooth,
        "quadratic": _quadratic,
        "graphs": _graphs,
        "experts": _experts,
        "mixing": _mixing,
        "stages": _stages,
        "spill": _spill,
        "lanes": _lanes,
        "hidden": _hidden,
    }
)

Noise = Callable[[], float]
"""Draws what the next step's cost is multiplied with."""


def _lognormal(rng: Random, spread: float) -> Noise:
    return lambda: exp(rng.gauss(-spread * spread / 2, spread))


def _pareto(rng: Random, spread: float) -> Noise:
    """A tail of index 2.5 above a narrow body: few steps take several times as long."""
    return lambda: 1.0 + spread * (rng.paretovariate(2.5) - 2.5 / 1.5)


def _drifting(rng: Random, spread: float) -> Noise:
    """Log-normal, but steps that follow each other are alike."""
    level = rng.gauss(0.0, spread)
    fresh = spread * sqrt(1.0 - DRIFT_KEPT**2)

    def draw() -> float:
        nonlocal level
        level = DRIFT_KEPT * level + rng.gauss(0.0, fresh)
        return exp(level - spread * spread / 2)

    return draw


def _clocks(rng: Random, spread: float) -> Noise:
    """A clock with two frequencies, each kept for many steps; the mean over both is 1."""
    slow = rng.random() < SLOW_STEPS / (FAST_STEPS + SLOW_STEPS)

    def draw() -> float:
        nonlocal slow
        if rng.random() < 1.0 / (SLOW_STEPS if slow else FAST_STEPS):
            slow = not slow
        level = 1.0 + spread * FAST_STEPS / SLOW_STEPS if slow else 1.0 - spread
        return level * exp(rng.gauss(0.0, 0.02))

    return draw


def _ranks(rng: Random, spread: float) -> Noise:
    """Every step waits for the slowest of several accelerators, each of which is log-normal."""
    usual = spread * SLOWEST_MEAN + spread * spread * SLOWEST_VARIANCE / 2

    def draw() -> float:
        slowest = max(rng.gauss(0.0, 1.0) for _ in range(RANKS))
        return exp(spread * slowest - usual)

    return draw


def _collector(rng: Random, spread: float) -> Noise:
    """Every so many steps one takes up to three times as long, as where a runtime collects its garbage."""
    step = rng.randrange(COLLECTED_EVERY)

    def draw() -> float:
        nonlocal step
        step += 1
        collects = step % COLLECTED_EVERY == 0
        level = 1.0 - spread / 2 + (COLLECTED_EVERY * spread / 2 if collects else 0.0)
        return level * exp(rng.gauss(0.0, 0.02))

    return draw


_NOISES: Mapping[str, Callable[[Random, float], Noise]] = MappingProxyType(
    {
        "lognormal": _lognormal,
        "pareto": _pareto,
        "drifting": _drifting,
        "clocks": _clocks,
        "ranks": _ranks,
        "collector": _collector,
    }
)

_BENDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "power": (0.75, 0.95),
        "tiles": (16, 160),
        "smooth": (1.5, 4.0),
        "quadratic": (16, 200),
        "graphs": (0.1, 0.6),
        "experts": (0.3, 0.9),
        "mixing": (0.1, 0.4),
        "stages": (0.2, 0.6),
        "spill": (0.3, 0.8),
        "lanes": (2, 5),
        "hidden": (0.1, 0.4),
    }
)


def bend_of(family: str, rng: Random) -> float:
    """A family's shape: an exponent, a tile, a sharpness, a knee, a number of lanes, or one of floors."""
    low, high = _BENDS[family]
    return rng.uniform(low, high)
