"""Step costs of judged machines: families that the product's piecewise linear fit does not contain.

Every size is relative to the floor, the time of a decode step with one short stream. A family belongs either
to the scenes that rules are tuned on or to those held out, never to both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, exp
from random import Random
from types import MappingProxyType

from phasewise.costs.fit.step import StepSeconds, StepWork

TUNE_FAMILIES = ("power", "tiles")
HELD_OUT_FAMILIES = ("smooth", "quadratic")
TUNE_NOISE, HELD_OUT_NOISE = "lognormal", "pareto"
MOST_NOISE = 12.0
"""A heavy tail is cut here: a step that takes longer than so many times its cost is a pause, not noise."""


@dataclass(frozen=True, slots=True)
class World:
    """A machine and its model.

    `prompt_floors` is what 1,000 prompt tokens cost, `stream_floors` what 32 more streams add to a step,
    `attention_floors` what attention adds to a prompt of 2,000 tokens, `context_floors` what reading a
    context of 10,000 tokens adds: all in floors. `bend` shapes the family (an exponent, or a tile's tokens).
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
        cost, draw = self.cost(), _NOISES[self.noise]
        return lambda work: cost(work) * min(MOST_NOISE, draw(rng, self.spread))

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


_FAMILIES: Mapping[str, Callable[[World], StepSeconds]] = MappingProxyType(
    {"power": _power, "tiles": _tiles, "smooth": _smooth, "quadratic": _quadratic}
)


def _lognormal(rng: Random, spread: float) -> float:
    return exp(rng.gauss(-spread * spread / 2, spread))


def _pareto(rng: Random, spread: float) -> float:
    """A tail of index 2.5 above a narrow body: few steps take several times as long."""
    return 1.0 + spread * (rng.paretovariate(2.5) - 2.5 / 1.5)


_NOISES: Mapping[str, Callable[[Random, float], float]] = MappingProxyType(
    {"lognormal": _lognormal, "pareto": _pareto}
)


def bend_of(family: str, rng: Random) -> float:
    """A family's shape: an exponent, a tile, a sharpness or a knee."""
    low, high = {"power": (0.75, 0.95), "tiles": (16, 160), "smooth": (1.5, 4.0), "quadratic": (16, 200)}[
        family
    ]
    return rng.uniform(low, high)
