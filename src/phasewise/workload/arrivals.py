"""When requests arrive: an open loop that does not wait for replies, or a closed one that does.

Sending is left to the load generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from random import Random

from phasewise.errors import ConfigError


class Spacing(StrEnum):
    """How an open loop's arrivals are spread: at random as independent users do, or evenly."""

    POISSON = "poisson"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """So many requests per second, whether or not the engine keeps up: what users do."""

    rate_per_s: float
    spacing: Spacing = Spacing.POISSON

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s < float("inf"):
            raise ConfigError(f"a rate of {self.rate_per_s:g} requests per second", hint="use one above 0")


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many requests at once, each followed by the next: what a batch job does.

    A slow engine is asked less, so waiting never shows as a queue: for users, prefer the open loop.
    """

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ConfigError(f"a concurrency of {self.concurrency}", hint="use 1 or more")


Load = OpenLoop | ClosedLoop


def arrival_times_s(loop: OpenLoop, rng: Random) -> Iterator[float]:
    """Arrivals without end, counted from the start of the run; the first one is at 0."""
    if loop.spacing is Spacing.CONSTANT:
        yield from (index / loop.rate_per_s for index in count())
    at_s = 0.0
    while True:
        yield at_s
        at_s += rng.expovariate(loop.rate_per_s)
