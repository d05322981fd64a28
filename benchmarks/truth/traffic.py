"""Who asks what and when, as a plan that does not depend on the answers' speed, except in conversations.

Every number of request i is drawn from a generator seeded by i, so a factor that changes one request leaves
all others as they are: runs with and without it have the same traffic.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import exp, floor, log, pi, sin
from random import Random
from typing import Any

from phasewise.loadgen.workload.prompts import write_text

BYTES_PER_TOKEN = 4
_PLAIN_TOKEN = 4 << 32
"""The virtual engines' id of a token of four plain bytes."""
TUNE_ARRIVALS = ("poisson", "even", "gamma", "ramp", "switching", "wave", "sawtooth")
HELD_OUT_ARRIVALS = ("fan_out", "timer", "backlog")
SWITCHED_AFTER = 12
"""Arrivals between two switches of the rate, on average."""
WAVES, TEETH = 3, 4
"""How often the rate rises and falls in a run."""
AT_ONCE = (1, 2, 3)
"""How many requests an agent sends at once."""
APART_S = (0.001, 0.005)
"""How far apart requests that are sent at once arrive."""
MOST_OUTPUT = 400


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of prompt text: equal keys are equal texts."""

    key: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Planned:
    """One request to come: at a time, or `think_s` after the answer to request number `after`.

    A client leaves `leaves_s` after it asked, if it does. A request that is `too_long` is rejected.
    """

    number: int
    pieces: tuple[Piece, ...]
    output_tokens: int
    at_s: float | None = None
    after: int | None = None
    think_s: float = 0.0
    leaves_s: float | None = None
    too_long: bool = False
    tenant: str = "default"

    @property
    def prompt_tokens(self) -> int:
        """The length of its prompt."""
        return sum(piece.tokens for piece in self.pieces)


@dataclass(slots=True)
class Traffic:
    """What a plan is drawn from.

    Prompts have a shared beginning of `shared_tokens` and a part of their own; lengths are log-normal around
    their medians. With `turns` above 1 requests are conversations, whose prompts repeat what was said. Every
    `long_every`th request is from a tenant with prompts of `long_tokens`. `salted` puts a first line of its
    own before the shared part. With `burst_s`, all requests of so many seconds arrive together.
    """

    arrivals: str = "poisson"
    rate_per_s: float = 1.0
    prompt_tokens: float = 100.0
    prompt_spread: float = 0.3
    output_tokens: float = 32.0
    output_spread: float = 0.4
    shared_tokens: int = 0
    turns: int = 1
    think_s: float = 2.0
    long_every: int = 0
    long_tokens: int = 0
    salted: bool = False
    burst_s: float = 0.0
    leaving_share: float = 0.0
    leaving_s: float = 0.0
    too_long_share: float = 0.0

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Traffic:
        """Read what a scene says of its traffic."""
        return cls(**record)


def plan(traffic: Traffic, seed: str, until_s: float) -> list[Planned]:
    """All requests until a time, in the order in which they are numbered."""
    planned: list[Planned] = []
    for begins_s in _begins(traffic, seed, until_s):
        _plan_conversation(traffic, seed, begins_s, planned)
    return planned


def _begins(traffic: Traffic, seed: str, until_s: float) -> list[float]:
    """When conversations begin; those of one request are all."""
    rng = Random(f"{seed}/arrivals")
    rate = traffic.rate_per_s / traffic.turns
    gap = _gaps(traffic.arrivals, rate, rng)
    begins: list[float] = []
    at_s = 0.0
    while True:
        at_s += gap(at_s / until_s)
        if at_s >= until_s:
            return begins
        begins.append(at_s)


def _gaps(arrivals: str, rate: float, rng: Random) -> Callable[[float], float]:
    """Draws the time to the next arrival, given which share of the run is over."""
    if arrivals == "even":
        return lambda _: rng.uniform(0.9, 1.1) / rate
    if arrivals == "gamma":
        # A shape below one: arrivals cluster, with gaps between the clusters.
        return lambda _: rng.gammavariate(0.4, 1.0 / (0.4 * rate))
    if arrivals == "switching":
        return _switching(rate, rng)
    if arrivals == "fan_out":
        return _fan_out(rate, rng)
    if arrivals == "timer":
        return _timer(rate, rng)
    height = _HEIGHTS[arrivals]
    return lambda done: rng.expovariate(rate * height(done))


_HEIGHTS: Mapping[str, Callable[[float], float]] = {
    "poisson": lambda _: 1.0,
    "ramp": lambda done: 0.6 + 0.8 * done,
    "wave": lambda done: 1.0 + 0.5 * sin(2 * pi * WAVES * done),
    # Rises slowly and falls at once, as where clients are sent elsewhere when it has become too much.
    "sawtooth": lambda done: 0.5 + TEETH * done % 1.0,
    # Few come while something before the engine is down, and what was left undone comes after it.
    "backlog": lambda done: 0.25 if 0.45 <= done < 0.6 else 1.75 if 0.6 <= done < 0.75 else 1.0,
}
"""How many times its mean the rate is, by the share of the run that is over."""


def _switching(rate: float, rng: Random) -> Callable[[float], float]:
    """Two states with a rate each, as where an application is used at times: the mean over time is `rate`."""
    busy = rng.random() < 0.5

    def gap(_: float) -> float:
        nonlocal busy
        at_s = 0.0
        while True:
            arrives_s = rng.expovariate(rate * (1.5 if busy else 0.5))
            switches_s = rng.expovariate(rate / SWITCHED_AFTER)
            if arrives_s < switches_s:
                return at_s + arrives_s
            at_s += switches_s
            busy = not busy

    return gap


def _fan_out(rate: float, rng: Random) -> Callable[[float], float]:
    """Agents that send up to three requests at once, one for each of their tools."""
    more = 0

    def gap(_: float) -> float:
        nonlocal more
        if more:
            more -= 1
            return rng.uniform(*APART_S)
        more = rng.choice(AT_ONCE) - 1
        return rng.expovariate(rate * len(AT_ONCE) / sum(AT_ONCE))

    return gap


def _timer(rate: float, rng: Random) -> Callable[[float], float]:
    """Every other request is a job's that asks at fixed times; the rest are people's, at random ones."""
    every_s = 2.0 / rate
    now_s, job_s, person_s = 0.0, rng.uniform(0.0, every_s), rng.expovariate(rate / 2)

    def gap(_: float) -> float:
        nonlocal now_s, job_s, person_s
        before_s, now_s = now_s, min(job_s, person_s)
        if job_s <= person_s:
            job_s += every_s
        else:
            person_s += rng.expovariate(rate / 2)
        return now_s - before_s

    return gap


def _plan_conversation(traffic: Traffic, seed: str, begins_s: float, planned: list[Planned]) -> None:
    history: tuple[Piece, ...] = ()
    before: int | None = None
    for turn in range(traffic.turns):
        number = len(planned)
        rng = Random(f"{seed}/{number}")
        own_tokens = _length(traffic.prompt_tokens, traffic.prompt_spread, rng)
        output = min(MOST_OUTPUT, _length(traffic.output_tokens, traffic.output_spread, rng))
        leaves, too_long = rng.random(), rng.random()
        tenant = "default"
        if traffic.long_every and number % traffic.long_every == traffic.long_every - 1:
            tenant = "long"
            own_tokens = max(own_tokens, round(traffic.long_tokens * rng.uniform(0.9, 1.1)))
        own = Piece(f"{seed}/own/{number}", own_tokens)
        if not history:
            history = _head(traffic, seed, number)
        history = (*history, own)
        planned.append(
            Planned(
                number,
                history,
                output,
                at_s=_together(begins_s, traffic.burst_s) if turn == 0 else None,
                after=before,
                think_s=0.0 if turn == 0 else rng.expovariate(1.0 / traffic.think_s),
                leaves_s=traffic.leaving_s * rng.uniform(0.5, 1.5)
                if leaves < traffic.leaving_share
                else None,
                too_long=too_long < traffic.too_long_share,
                tenant=tenant,
            )
        )
        history = (*history, Piece(f"{seed}/answer/{number}", output))
        before = number


def _head(traffic: Traffic, seed: str, number: int) -> tuple[Piece, ...]:
    if not traffic.shared_tokens:
        return ()
    shared = Piece(f"{seed}/shared", traffic.shared_tokens)
    return (Piece(f"{seed}/salt/{number}", 8), shared) if traffic.salted else (shared,)


def _together(at_s: float, burst_s: float) -> float:
    return at_s if burst_s <= 0 else burst_s * floor(at_s / burst_s)


def _length(middle: float, spread: float, rng: Random) -> int:
    return max(4, round(exp(rng.gauss(log(middle), spread))))


@lru_cache(maxsize=4096)
def text_of(piece: Piece) -> bytes:
    """The piece as text of exactly its length."""
    size = BYTES_PER_TOKEN * piece.tokens
    text = write_text(piece.tokens, Random(piece.key)).encode()
    while len(text) < size:
        text += b" " + text
    return text[:size]


@lru_cache(maxsize=4096)
def ids_of(piece: Piece) -> tuple[int, ...]:
    """The piece as token ids."""
    values = struct.unpack(f">{piece.tokens}I", text_of(piece))
    return tuple([_PLAIN_TOKEN + value for value in values])
