"""When requests arrive: an open loop that does not wait for replies, a closed one that does, or a replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from math import inf
from random import Random

from phasewise.core.errors import UsageError


class Spacing(StrEnum):
    """How an open loop's arrivals are spaced: at random like independent users, evenly, or gamma-distributed.

    `burstiness` sets how random gamma gaps are.
    """

    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """So many requests per second, whether or not the engine keeps up, like independent users.

    `burstiness` is the squared coefficient of variation of the gaps between arrivals: 1 is Poisson, 4 comes
    in bursts, 0.25 is nearly even. Gamma gaps of shape k have 1/k of it; vLLM's own --burstiness is that k,
    the inverse of this one. With conversations the rate is that of their first turns.
    """

    rate_per_s: float
    spacing: Spacing = Spacing.POISSON
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s < inf:
            raise UsageError(f"the rate is {self.rate_per_s:g} requests per second", hint="use one above 0")
        if not 0 < self.burstiness < inf:
            raise UsageError(f"the burstiness is {self.burstiness:g}", hint="use one above 0; 1 is Poisson")
        if self.burstiness != 1 and self.spacing is not Spacing.GAMMA:
            raise UsageError(
                f"{self.spacing} arrivals do not accept a burstiness of {self.burstiness:g}",
                hint="leave it out, or use gamma arrivals",
            )


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many requests at once, each followed by the next, like a batch job.

    A slow engine gets fewer requests, so waiting never shows as a queue: prefer the open loop for users.
    """

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(f"the concurrency is {self.concurrency}", hint="use 1 or more")


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace's own times, divided by `speed`: at 2 an hour of traffic takes half an hour."""

    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.speed < inf:
            raise UsageError(f"the replay speed is {self.speed:g}", hint="use one above 0")


Load = OpenLoop | ClosedLoop | Replay


def arrival_times_s(loop: OpenLoop, rng: Random) -> Iterator[float]:
    """Endless arrival times, counted from the start of the run; the first one is at 0."""
    if loop.spacing is Spacing.CONSTANT:
        yield from (index / loop.rate_per_s for index in count())
    at_s = 0.0
    while True:
        yield at_s
        at_s += _gap_s(loop, rng)


def _gap_s(loop: OpenLoop, rng: Random) -> float:
    if loop.spacing is Spacing.GAMMA:
        return rng.gammavariate(1 / loop.burstiness, loop.burstiness / loop.rate_per_s)
    return rng.expovariate(loop.rate_per_s)
