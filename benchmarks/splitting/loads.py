"""The cells that the rules are tried on: which fleet, how much traffic, and how much of it is long.

What was promised to clients stands here too: the first token within 2 s + 2 s per 1,000 prompt tokens, tokens
0.1 s apart. With an engine to itself a prompt of 5,000 tokens takes 7 s and a token 0.06 s, so that these
have to be served in 1.7 times that; but a prompt of 20 to 100 tokens takes 0.06 s, and may take over thirty
times as long. Short requests can hardly miss the first part. The strict promise gives 0.5 s instead of 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from phasewise.costs.fit.step import StepCost, prefilling

TTFT_FLOOR_S = 2.0
STRICT_TTFT_FLOOR_S = 0.5
TTFT_S_PER_TOKEN = 2.0e-3
TPOT_S = 0.1
STREAMS_PER_STEP = 8
"""How many streams a step is taken to serve when a load is sized; only ever used to name loads."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a load."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of traffic on one fleet; `load` is the share of all engines' time that it would take."""

    prefill: int
    decode: int
    long_share: float
    load: float

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.prefill}+{self.decode} long {self.long_share:.0%} load {self.load:g}"


LONG_SHARES = (0.05, 0.2, 0.5)
LOADS = (0.3, 0.6, 0.9)
FLEETS = ((1, 1), (1, 2))
CELLS = (
    *(Cell(*fleet, share, load) for fleet in FLEETS for share in LONG_SHARES for load in LOADS),
    # No long prompt at all, and more to write than decode engines alone can.
    *(Cell(*fleet, 0.0, 1.2) for fleet in FLEETS),
)


def asks(cell: Cell, cost: StepCost, seconds: float, seed: int) -> list[Ask]:
    """Poisson arrivals of short chat turns and long documents."""
    rng = Random(seed)
    per_second = cell.load * (cell.prefill + cell.decode) / _engine_seconds(cell, cost)
    sent, at_s = [], 0.0
    while (at_s := at_s + rng.expovariate(per_second)) < seconds:
        sent.append(_ask(rng, at_s, rng.random() < cell.long_share))
    return sent


def _ask(rng: Random, at_s: float, long: bool) -> Ask:
    if long:
        return Ask(at_s, rng.randint(2_000, 5_000), rng.randint(30, 90))
    return Ask(at_s, rng.randint(20, 250), rng.randint(40, 160))


def _engine_seconds(cell: Cell, cost: StepCost) -> float:
    """What a request takes of an engine on average."""
    rng = Random(0)
    long, short = ([_ask(rng, 0.0, kind) for _ in range(200)] for kind in (True, False))
    step_s = cost.floor_s / STREAMS_PER_STEP + cost.per_request_s

    def mean_s(drawn: list[Ask]) -> float:
        return sum(cost(prefilling(it.prompt_tokens)) + it.output_tokens * step_s for it in drawn) / len(
            drawn
        )

    return cell.long_share * mean_s(long) + (1 - cell.long_share) * mean_s(short)


def met(ask: Ask, ttft_s: float, tpot_s: float | None, ttft_floor_s: float = TTFT_FLOOR_S) -> bool:
    """Whether the client got what it was promised."""
    in_time = ttft_s <= ttft_floor_s + TTFT_S_PER_TOKEN * ask.prompt_tokens
    return in_time and (tpot_s is None or tpot_s <= TPOT_S)
