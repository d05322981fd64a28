"""Is placement by prefix ever worse than placement by load alone, or than taking turns?

    python benchmarks/affinity_cells.py [--quick] [--json]

The gateway's own flow and policies before virtual engines with the demo model's costs and cache, in virtual
time: nothing else on the machine matters, and the same requests come at the same times under every policy.
Prompts are token ids without words; they are hashed in blocks of as many tokens as the gateway's blocks of
bytes have of English text. A cell is a kind of traffic, a number of engines and a load. The kinds: prompts
that share nothing; conversations of five turns; the same behind a common system prompt, or one too short for
a block of the engines' cache; and single requests behind one, or one of eight, system prompts of 2,000
tokens. The last line is one JSON object: `cells`; the ratios of prefix_affinity to each other policy in mean
TTFT and mean E2E, the worst of all cells and the median of those with conversations; the mean `hit_share`
there by policy, and the least of prefix_affinity's. It ends with 1 where the worst ratio in TTFT is 1.1 or
more, or the least hit share below 0.6.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean, median
from typing import Any

from script import command_line, print_record, say

from phasewise.gateway.processes.replicas import AT_LEAST_EVERY_S, SENDER_BYTES, OtherReplicas
from phasewise.scheduling import World
from phasewise.scheduling.ledger import Neighbours
from phasewise.simulator.fleet import EnginePool, FleetScenario, SimulatedFleet
from phasewise.simulator.gateway import SimulatedRequest
from phasewise.simulator.requests import PRESETS
from phasewise.simulator.traffic import Content, Session, SimulatedTraffic, conversation

OURS, OTHERS = "prefix_affinity", ("least_outstanding", "round_robin")
NEVER_WORSE = 1.1
"""The ratio in TTFT that no cell may reach: in virtual time, so that no machine is too slow for it."""
LEAST_HIT_SHARE = 0.6
"""Of conversations' prompt tokens, in every cell: only first turns, and what is new in others, is cold."""
THINK_S = 5.0
THROUGH_REDIS_S = 0.001
"""From a gateway through Redis to another. On one machine it takes 0.3 ms."""
SEED = 1


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of traffic. `engine_s` is about what a request takes of an engine; it only names loads."""

    name: str
    turns: int
    systems: int
    system_tokens: int
    own_tokens: tuple[int, int]
    engine_s: float


KINDS = (
    Kind("singles", 1, 0, 0, (100, 2_000), 1.9),
    Kind("conversations", 5, 0, 0, (100, 2_000), 0.85),
    Kind("conversations, one system prompt", 5, 1, 256, (100, 1_500), 0.85),
    # One of the gateway's blocks in common, and none that an engine could cache.
    Kind("conversations, one short system prompt", 5, 1, 115, (100, 1_500), 0.85),
    Kind("singles, one long system prompt", 1, 1, 2_000, (20, 300), 1.1),
    Kind("singles, eight long system prompts", 1, 8, 2_000, (20, 300), 1.1),
)
LOADS = (0.3, 0.7, 0.95)
ENGINES = (2, 8)


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of traffic on so many engines; `load` is the share of their time that it would about take."""

    kind: Kind
    engines: int
    load: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What a policy made of a cell."""

    ttft_s: float
    e2e_s: float
    hit_share: float


def main() -> None:
    """Run all cells and print."""
    parser = command_line(__doc__, quick="one short cell of each kind")
    options = parser.parse_args()
    if options.quick:
        cells = [Cell(kind, 2, 0.7, 40.0) for kind in KINDS]
    else:
        cells = [
            Cell(kind, engines, load, 400.0 / engines)
            for kind in KINDS
            for engines in ENGINES
            for load in LOADS
        ]
    results = [
        (cell, {policy: _run(cell, policy) for policy in (OURS, *OTHERS)}) for cell in map(_say, cells)
    ]
    record = _summary(results)
    print_record(record, options)
    if wrong := what_is_wrong(record):
        sys.exit(f"not as promised: {', '.join(wrong)}")


def what_is_wrong(record: Mapping[str, Any]) -> list[str]:
    """The policies that were clearly better in some cell, and conversations that were not kept together."""
    worst = {other: record[f"ttft_ratio_to_{other}"]["worst"] for other in OTHERS}
    wrong = [f"TTFT was {it} times that of {other}" for other, it in worst.items() if it >= NEVER_WORSE]
    if (share := record["least_hit_share_of_conversations"]) < LEAST_HIT_SHARE:
        wrong.append(f"only {share} of conversations' prompt tokens were cached")
    return wrong


def _say(cell: Cell) -> Cell:
    say(f"{cell.kind.name}, {cell.engines} engines, load {cell.load}")
    return cell


def _summary(results: list[tuple[Cell, dict[str, Figures]]]) -> dict[str, Any]:
    talking = [figures for cell, figures in results if cell.kind.turns > 1]

    def ratios(among: list[dict[str, Figures]], other: str, name: str) -> list[float]:
        return [getattr(it[OURS], name) / getattr(it[other], name) for it in among]

    every = [figures for _, figures in results]
    return {
        "cells": len(results),
        **{
            f"{name.removesuffix('_s')}_ratio_to_{other}": {
                "worst": round(max(ratios(every, other, name)), 3),
                "median_of_conversations": round(median(ratios(talking, other, name)), 3),
            }
            for other in OTHERS
            for name in ("ttft_s", "e2e_s")
        },
        "least_hit_share_of_conversations": round(min(it[OURS].hit_share for it in talking), 3),
        "hit_share": {
            policy: round(mean(it[policy].hit_share for it in talking), 3) for policy in (OURS, *OTHERS)
        },
    }


def _run(cell: Cell, policy: str) -> Figures:
    fleet = fleet_of(policy, cell.engines)
    served = fleet.run(traffic_of(cell))
    cached = sum(it.cached_tokens for it in served)
    return Figures(
        mean(it.ttft_s for it in served),
        mean(it.e2e_s for it in served),
        cached / sum(it.prompt_tokens for it in served),
    )


def fleet_of(
    policy: str, engines: int, replicas: int = 1, *, redis: bool = False, seed: int = SEED
) -> SimulatedFleet:
    """Engines with the demo model's costs behind replicas of a gateway.

    Of several `replicas` each gets requests by chance and knows its own alone, but all find the same home of
    a conversation. With `redis` they exchange what they know as often as real ones.
    """
    plan = FleetScenario((EnginePool(engines, PRESETS["cpu-demo"]),), replicas, policy)
    return with_redis(plan, seed) if redis else SimulatedFleet(plan, seed)


def with_redis(plan: FleetScenario, seed: int) -> SimulatedFleet:
    """A fleet whose gateways exchange what they know."""
    replicas: list[OtherReplicas] = []

    def neighbours_of(_fleet: SimulatedFleet, number: int) -> Neighbours:
        replicas.append(OtherReplicas(bytes([number]) * SENDER_BYTES, b"key"))
        return replicas[-1]

    fleet = SimulatedFleet(plan, seed, neighbours_of)
    channel = [*zip(replicas, (gateway.world for gateway in fleet.gateways), strict=True)]
    for others, world in channel:
        Exchange(fleet, others, world, channel)
    return fleet


def watch_spread(fleet: SimulatedFleet, spreads: list[int]) -> None:
    """At each arrival: how many more tokens the fullest engine has still to compute than the emptiest."""

    def note(_request: SimulatedRequest) -> None:
        tokens = dict.fromkeys(fleet.hosts, 0)
        for gateway in fleet.gateways:
            for worker, load in gateway.world.ledger.loads.items():
                tokens[worker.name] += load.tokens
        spreads.append(max(tokens.values()) - min(tokens.values()))

    fleet.on_arrival = note


class Exchange:
    """Sends a gateway's messages to all, as often as ReplicaExchange does while things change."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        others: OtherReplicas,
        world: World,
        channel: Sequence[tuple[OtherReplicas, World]],
    ) -> None:
        self._clock = fleet.clock
        self._others = others
        self._world = world
        self._channel = channel
        self._due = False
        self._sent_s = 0.0
        others.on_change = self._changed
        self._clock.background += 1
        self._beat()

    def _beat(self) -> None:
        self._changed()
        self._clock.at(self._clock.now_s + AT_LEAST_EVERY_S, self._beat)

    def _changed(self) -> None:
        if not self._due:
            self._due = True
            self._clock.at(max(self._clock.now_s, self._sent_s + self._others.every_s), self._send)

    def _send(self) -> None:
        now_s = self._clock.now_s
        self._due, self._sent_s = False, now_s
        message = self._others.message(self._world, now_s)

        def hear() -> None:
            for others, world in self._channel:
                others.hear(message, world, self._clock.now_s)

        self._clock.at(now_s + THROUGH_REDIS_S, hear)


def traffic_of(cell: Cell, seed: int = SEED) -> SimulatedTraffic:
    """The requests of a cell. What comes when hangs on nothing that a policy does, but for later turns."""
    kind, rng = cell.kind, Random(seed)
    per_second = cell.load * cell.engines / kind.engine_s / kind.turns
    sessions: list[Session] = []
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(per_second)) < cell.seconds:
        system = (Content(-1 - rng.randrange(kind.systems), kind.system_tokens),) if kind.systems else ()
        turns = [(rng.randint(*kind.own_tokens), rng.randint(20, 120), 0.0)]
        turns += [
            (rng.randint(20, 120), rng.randint(20, 120), rng.expovariate(1 / THINK_S))
            for _ in range(kind.turns - 1)
        ]
        sessions.append(conversation(at_s, 1 + len(sessions), turns, system))
    return SimulatedTraffic(sessions)


if __name__ == "__main__":
    main()
