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

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, count
from operator import add
from random import Random
from statistics import mean, median
from typing import Any

from phasewise.core.kv_transfer import EngineAccount
from phasewise.core.request import BYTES_PER_TOKEN, Endpoint, GenerationRequest
from phasewise.core.steps import FinishedRequest
from phasewise.core.worker import Worker, WorkerRef
from phasewise.gateway.api.quotas import ProcessQuotas
from phasewise.gateway.processes.neighbours import PREFIXES_EVERY_S
from phasewise.scheduling import CacheMiss, Generate, RequestFlow, Succeeded, World, request_flow
from phasewise.scheduling.breakers import Breakers, RetryBudget
from phasewise.scheduling.policies import POLICIES, whole
from phasewise.scheduling.prefix_index import PrefixIndex
from phasewise.scheduling.queue import Turn, WaitingQueue
from phasewise.scheduling.world import ClusterView, LoadLedger
from phasewise.simulator.engine import EmittedToken, EngineShape, VirtualEngine, VirtualRequest
from phasewise.simulator.step_times import PRESETS

OURS, OTHERS = "prefix_affinity", ("least_outstanding", "round_robin")
MODEL = "virtual"
HASHED_BLOCK_TOKENS = 111
"""What the gateway's blocks of 512 bytes hold of English text: less than a block of these engines."""
NEVER_WORSE = 1.1
"""The ratio in TTFT that no cell may reach: in virtual time, so that no machine is too slow for it."""
LEAST_HIT_SHARE = 0.6
"""Of conversations' prompt tokens, in every cell: only first turns, and what is new in others, is cold."""
THINK_S = 5.0
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short cell of each kind")
    parser.add_argument("--json", action="store_true", help="print only the closing JSON object")
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
    if not options.json:
        print(json.dumps(record, indent=2))
    print(json.dumps(record))
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
    print(f"{cell.kind.name}, {cell.engines} engines, load {cell.load}", file=sys.stderr, flush=True)
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
    fleet = Fleet(policy, cell.engines)
    Traffic(cell, fleet).begin()
    fleet.run()
    ended = fleet.ended
    cached = sum(it.finished.cached_tokens for it in ended)
    return Figures(
        mean(it.ttft_s for it in ended),
        mean(it.e2e_s for it in ended),
        cached / sum(it.finished.prompt_tokens for it in ended),
    )


@dataclass(frozen=True, slots=True)
class Answered:
    """One request as it went."""

    ttft_s: float
    e2e_s: float
    finished: FinishedRequest


class Fleet:
    """Virtual engines behind the gateway's flow, in virtual time.

    Of several `gateways` each gets requests by chance and knows its own alone, but all find the same home of
    a conversation. With `processes` they are those of one gateway, which share what they know.
    """

    def __init__(self, policy: str, engines: int, gateways: int = 1, *, processes: bool = False) -> None:
        workers = [Worker(f"w{index}", "http://127.0.0.1", MODEL, "1") for index in range(engines)]
        self._engines = {it.name: VirtualEngine(EngineShape(), PRESETS["cpu-demo"]) for it in workers}
        self._busy: set[str] = set()
        self._listeners: dict[str, Callable[[EmittedToken, float], None]] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self.now_s = 0.0
        self._chance = Random(SEED)
        self._names_conversations = gateways > 1 and not processes
        neighbours = [OtherProcesses(self) if processes else None for _ in range(gateways)]
        self._worlds = [_world(policy, workers, it) for it in neighbours]
        for each in neighbours:
            if each is not None:
                each.know(self._worlds)
        self.spreads: list[int] = []
        self.ended: list[Answered] = []

    def at(self, when_s: float, act: Callable[[float], None]) -> None:
        """Do something then."""
        heappush(self._events, (when_s, next(self._order), act))

    def run(self) -> None:
        """Until nothing is left to do."""
        while self._events:
            self.now_s, _, act = heappop(self._events)
            act(self.now_s)

    def ask(
        self,
        ids: tuple[int, ...],
        opening: int,
        tokens: int,
        now_s: float,
        done: Callable[[float], None],
    ) -> None:
        """Place a request as the gateway would, and run it there."""
        request = _request(f"r{next(self._order)}", ids, tokens, now_s)
        if self._names_conversations:
            request = replace(request, conversation=hash(ids[:opening]) % 2**64)
        self.spreads.append(self._spread())
        flow = request_flow(request, self._chance.choice(self._worlds))
        next(flow)
        step = flow.send(CacheMiss(now_s))
        if not isinstance(step, Generate):
            raise TypeError(f"a virtual fleet cannot perform {type(step).__name__}")
        times_s: list[float] = []

        def on_token(token: EmittedToken, at_s: float) -> None:
            times_s.append(at_s)
            if len(times_s) == 1 and step.on_first_content is not None:
                step.on_first_content()
            if token.finished is not None:
                self.ended.append(Answered(times_s[0] - now_s, at_s - now_s, token.finished))
                _end(flow, at_s, token.finished)
                done(at_s)

        name = step.worker.name
        self._listeners[request.request_id] = on_token
        self._engines[name].add(
            VirtualRequest(request.request_id, ids, tokens, now_s, ignore_eos=True), now_s
        )
        self._step(name, now_s)

    def _spread(self) -> int:
        """How many more tokens the fullest engine has still to compute than the emptiest."""
        tokens = dict.fromkeys(self._engines, 0)
        for world in self._worlds:
            for worker, load in world.ledger.loads.items():
                tokens[worker.name] += load.tokens
        return max(tokens.values()) - min(tokens.values())

    def _step(self, name: str, now_s: float) -> None:
        report = None if name in self._busy else self._engines[name].step(now_s)
        if report is None:
            return
        self._busy.add(name)

        def end(at_s: float) -> None:
            self._busy.discard(name)
            for token in report.emitted:
                self._listeners[token.request_id](token, at_s)
            self._step(name, at_s)

        self.at(report.step.ended_unix_s, end)


class OtherProcesses:
    """What processes of one gateway learn of each other. Nothing waits for a slot here."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._others: list[World] = []

    def know(self, worlds: Sequence[World]) -> None:
        """Those of the others are among these."""
        self._others = [it for it in worlds if it.neighbours is not self]

    def booked(self, worker: str, *change: int) -> None:
        """The ledger itself has it."""

    def loads(self) -> Mapping[str, Sequence[int]]:
        """Their sums."""
        found: dict[str, list[int]] = {}
        for world in self._others:
            for worker, load in world.ledger.loads.items():
                fields = (load.requests, load.tokens, load.unread_tokens, load.streams, load.unread_requests)
                found[worker.name] = [*map(add, found.get(worker.name, [0] * len(fields)), fields)]
        return found

    def served(self, worker: WorkerRef, hashes: Sequence[int], *more: int) -> None:
        """They learn it as late as real ones do."""

        def learn(_now_s: float) -> None:
            for world in self._others:
                world.prefixes.served(worker, hashes, *more)

        self._fleet.at(self._fleet.now_s + PREFIXES_EVERY_S, learn)

    def waiting(self, turn: Turn | None) -> None:
        """Nobody has to know."""

    def give_way(self, now_s: float) -> bool:
        """Nobody waits."""
        return False


class Traffic:
    """The requests of a cell. What comes when hangs on nothing that a policy does, but for later turns."""

    def __init__(self, cell: Cell, fleet: Fleet) -> None:
        self._cell = cell
        self._fleet = fleet
        self._ids = count()
        self._systems = [self._words(cell.kind.system_tokens) for _ in range(cell.kind.systems)]

    def begin(self) -> None:
        """Let the first turns come."""
        cell, rng = self._cell, Random(SEED)
        per_second = cell.load * cell.engines / cell.kind.engine_s / cell.kind.turns
        at_s = 0.0
        while (at_s := at_s + rng.expovariate(per_second)) < cell.seconds:
            system = rng.choice(self._systems) if self._systems else ()
            ids = system + self._words(rng.randint(*cell.kind.own_tokens))
            # Each conversation has chances of its own, in whatever order they go on.
            own = Random(rng.random())
            self._fleet.at(at_s, partial(self._turn, ids, len(ids), 1, own))

    def _turn(self, ids: tuple[int, ...], opening: int, turn: int, rng: Random, now_s: float) -> None:
        tokens = rng.randint(20, 120)

        def done(at_s: float) -> None:
            if turn < self._cell.kind.turns:
                longer = ids + self._words(tokens + rng.randint(20, 120))
                think_s = rng.expovariate(1 / THINK_S)
                self._fleet.at(at_s + think_s, partial(self._turn, longer, opening, turn + 1, rng))

        self._fleet.ask(ids, opening, tokens, now_s, done)

    def _words(self, tokens: int) -> tuple[int, ...]:
        return tuple(next(self._ids) for _ in range(tokens))


def _request(request_id: str, ids: tuple[int, ...], tokens: int, now_s: float) -> GenerationRequest:
    starts = range(0, len(ids) - HASHED_BLOCK_TOKENS + 1, HASHED_BLOCK_TOKENS)
    whole_blocks = [ids[start : start + HASHED_BLOCK_TOKENS] for start in starts]
    return GenerationRequest(
        request_id,
        Endpoint.CHAT,
        MODEL,
        now_s,
        prompt_bytes=len(ids) * BYTES_PER_TOKEN,
        max_output_tokens=tokens,
        stream=True,
        prefix_hashes=tuple(accumulate(whole_blocks, lambda before, block: hash((before, block)), initial=0))[
            1:
        ],
    )


def _end(flow: RequestFlow, at_s: float, finished: FinishedRequest) -> None:
    account = EngineAccount(
        finished.prompt_tokens,
        finished.cached_tokens,
        finished.output_tokens,
        finished.queue_s,
        finished.prefill_s,
    )
    with suppress(StopIteration):
        flow.send(Succeeded(at_s, account=account))


def _world(policy: str, workers: list[Worker], neighbours: OtherProcesses | None) -> World:
    cluster, prefixes = ClusterView(workers), PrefixIndex()
    for worker in workers:
        cluster.mark_up(worker.name, worker.incarnation)
    return World(
        cluster,
        LoadLedger(neighbours),
        RetryBudget(),
        whole(POLICIES[policy](prefixes)),
        Breakers(),
        WaitingQueue(),
        ProcessQuotas(),
        prefixes=prefixes,
        neighbours=neighbours,
    )


if __name__ == "__main__":
    main()
