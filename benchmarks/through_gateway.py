"""How much of a real engine's throughput is left behind the gateway?

    python benchmarks/through_gateway.py [--minutes 10] [--streams 8] [--quick] [--json] [--home DIR]

`phasewise up` starts one engine with the demo model and the gateway before it, with all that it has on by
default. The whole engine is kept on one core; the gateway and the clients share another, and are never what
the engine waits for. A block is a closed loop of so many clients, who ask again as soon as they are served,
for 32 to 96 tokens, so that answers do not begin together; the prompts and lengths are the same in every
block. Once all have begun, and after a lead-in, tokens that arrive within eight seconds are counted, and the
clients leave.

A round has six blocks: the engine bare (twice, called A and A') and through the gateway (B), then the same
backwards, so that a steady drift falls on all alike; rounds take turns in which comes first. Every round
gives one ratio of B to the bare blocks, and as a control one of A' to A. The interval is Student's t over the
rounds' logarithms. Where the control's own interval is wider than 2% either way, the run does not tell.
Beside the wall clock stand tokens per second of CPU time that the engine used, which other programs on the
machine disturb less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import exp, log, sqrt
from pathlib import Path
from random import Random
from statistics import mean, median, stdev
from typing import Any

import uvloop
from engine_placement import move, phasewise, processes_of
from stress.processes import cpu_s
from stress.streams import ask, chat_body, prompts

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.step_feed import PORT_OFFSET
from phasewise.loadgen.generator import now_s
from phasewise.loadgen.statistics.bootstrap import t_quantile

TARGET_RATIO = 0.97
CONTROL_HALFWIDTH = 0.02
CONFIDENCE = 0.95
OUTPUT_TOKENS = (32, 96)
PROMPT_WORDS = 40
ASKS = 20
LEAD_IN_S = 2.0
COUNTED_S = 8.0
QUICK_S = 1.0
GIVE_UP_S = 120.0
PATIENCE = Timeouts(connect_s=10.0, head_s=300.0, idle_s=300.0)
BARE, AGAIN, THROUGH = "bare", "bare again", "gateway"
ROUNDS = ((BARE, THROUGH, AGAIN), (THROUGH, AGAIN, BARE), (AGAIN, BARE, THROUGH))
"""Each is followed by itself backwards."""
FLEET = "through-gateway"


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the engine is, and which processes are its own."""

    model: str
    urls: dict[str, str]
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What every block asks for, by client one request after the other, and for how long it counts."""

    bodies: tuple[tuple[bytes, ...], ...]
    lead_in_s: float
    counted_s: float


@dataclass(frozen=True, slots=True)
class Block:
    """Output tokens per second of the wall clock, and of the engine's CPU time."""

    per_s: float
    per_cpu_s: float


@dataclass(slots=True)
class Round:
    """The blocks of one round, by arm."""

    blocks: dict[str, list[Block]] = field(default_factory=lambda: {BARE: [], AGAIN: [], THROUGH: []})

    def rate(self, *arms: str, cpu: bool = False) -> float:
        """The mean over these arms' blocks."""
        blocks = [block for arm in arms for block in self.blocks[arm]]
        return mean(block.per_cpu_s if cpu else block.per_s for block in blocks)


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio and its bounds."""

    middle: float
    low: float
    high: float

    @property
    def halfwidth(self) -> float:
        """How far the bounds are from the middle, as a share of it."""
        return (self.high - self.low) / (2 * self.middle)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default_home = Path(__file__).resolve().parent.parent / ".phasewise"
    parser.add_argument(
        "--home", type=Path, default=default_home, help="where engine and model are installed"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to measure")
    parser.add_argument("--streams", type=int, default=8, help="answers at once")
    parser.add_argument("--quick", action="store_true", help="two short rounds, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print only the closing JSON object")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("needs two cores: one for the engine, one for the gateway and the clients")
    os.environ.setdefault("PHASEWISE_HOME", str(options.home))
    with one_engine() as setting:
        asked = load(setting.model, options.streams, options.quick)
        rounds = uvloop.run(measure(setting, asked, options.minutes, options.quick))
    record = summary(rounds, asked, options.quick)
    if not options.json:
        print(json.dumps(record, indent=2))
    print(json.dumps(record))


@contextmanager
def one_engine() -> Iterator[Setting]:
    """A fleet of one engine on a core of its own; everything else, this process too, on another."""
    engine_port, gateway_port = free_ports()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        settings = {"name": FLEET, "first_engine_port": engine_port, "gateway": {"port": gateway_port}}
        # YAML reads JSON too.
        file.write_text(json.dumps(settings))
        try:
            state = phasewise("up", str(file), "--detach", "--no-engine-keys")
            yield set_apart(state)
        finally:
            phasewise("down", "--name", FLEET)


def set_apart(state: dict[str, Any]) -> Setting:
    """Move the processes to their cores."""
    engine, gateway = state["engines"][0], state["gateway"]
    own = tuple(engine["cores"][:1])
    others = tuple(sorted(os.sched_getaffinity(0) - set(own)))[:1]
    front, core = processes_of(engine["process"]["pid"])
    move([*front, *core], own)
    move([gateway["process"]["pid"], os.getpid()], others)
    urls = {BARE: engine["url"], AGAIN: engine["url"], THROUGH: gateway["url"]}
    return Setting(state["model"], urls, (*front, *core))


def load(model: str, streams: int, quick: bool) -> Load:
    """So many clients, each with more to ask for than a block has time for."""
    rng = Random(1)
    bodies = tuple(
        tuple(
            chat_body(model, text, rng.randint(*OUTPUT_TOKENS)) for text in prompts(ASKS, PROMPT_WORDS, seed)
        )
        for seed in range(streams)
    )
    return Load(bodies, QUICK_S, QUICK_S) if quick else Load(bodies, LEAD_IN_S, COUNTED_S)


async def measure(setting: Setting, asked: Load, minutes: float, quick: bool) -> list[Round]:
    """Rounds until the time is up, at least two."""
    clients = {arm: HttpClient(url, PATIENCE) for arm, url in setting.urls.items()}
    rounds: list[Round] = []
    try:
        for arm in (BARE, THROUGH):
            await run_block(clients[arm], asked, setting.pids)
        began_s, longest_s = now_s(), 0.0
        while len(rounds) < 2 or (not quick and now_s() - began_s + longest_s < 60 * minutes):
            round_began_s = now_s()
            order = ROUNDS[len(rounds) % len(ROUNDS)]
            rounds.append(Round())
            for arm in (*order, *reversed(order)):
                rounds[-1].blocks[arm].append(await run_block(clients[arm], asked, setting.pids))
            longest_s = max(longest_s, now_s() - round_began_s)
            say(rounds)
    finally:
        for client in clients.values():
            client.close()
    return rounds


async def run_block(client: HttpClient, asked: Load, pids: Sequence[int]) -> Block:
    """One closed loop, which ends in the middle of answers."""
    tokens = begun = 0

    def count(number: int) -> None:
        nonlocal tokens, begun
        tokens += 1
        begun += number == 1

    async def ask_in_turn(bodies: Sequence[bytes]) -> None:
        for body in bodies:
            answer = await ask(client, body, count)
            if not answer.whole:
                raise SystemExit(
                    f"a request failed (status {answer.status}, {answer.failure or answer.code})"
                )
        raise SystemExit("a client has nothing left to ask for: raise ASKS")

    tasks = [asyncio.create_task(ask_in_turn(bodies)) for bodies in asked.bodies]
    await until(lambda: begun >= len(tasks))
    await asyncio.sleep(asked.lead_in_s)
    before, used_s, began_s = tokens, sum(map(cpu_s, pids)), now_s()
    await asyncio.sleep(asked.counted_s)
    # On a machine so busy that not one token came, the time is as long as that takes.
    await until(lambda: tokens > before)
    counted, wall_s, used_s = tokens - before, now_s() - began_s, sum(map(cpu_s, pids)) - used_s
    ended_early = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended_early:
        task.result()
    return Block(counted / wall_s, counted / used_s)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that streams bring about."""
    deadline_s = now_s() + GIVE_UP_S
    while not condition():
        if now_s() > deadline_s:
            raise SystemExit(
                f"nothing came for {GIVE_UP_S:g} s; look at `phasewise status` and the engine's log"
            )
        await asyncio.sleep(0.01)


def summary(rounds: Sequence[Round], asked: Load, quick: bool) -> dict[str, Any]:
    """The record that is printed."""
    through, control = (ratio(rounds, THROUGH, BARE, AGAIN), ratio(rounds, AGAIN, BARE))
    cpu = ratio(rounds, THROUGH, BARE, AGAIN, cpu=True)
    cpu_control = ratio(rounds, AGAIN, BARE, cpu=True)
    conclusive = control.halfwidth <= CONTROL_HALFWIDTH
    return {
        "throughput_ratio": round(through.middle, 4),
        "throughput_ratio_low": round(through.low, 4),
        "throughput_ratio_high": round(through.high, 4),
        "aa_ratio": round(control.middle, 4),
        "aa_halfwidth": round(control.halfwidth, 4),
        "conclusive": conclusive,
        "target_ratio": TARGET_RATIO,
        "held": through.low >= TARGET_RATIO if conclusive else None,
        "engine_cpu_ratio": round(cpu.middle, 4),
        "engine_cpu_ratio_low": round(cpu.low, 4),
        "engine_cpu_aa_halfwidth": round(cpu_control.halfwidth, 4),
        "tokens_per_s": {
            arm: round(median(block.per_s for it in rounds for block in it.blocks[arm]), 1)
            for arm in (BARE, AGAIN, THROUGH)
        },
        "streams": len(asked.bodies),
        "counted_s": asked.counted_s,
        "rounds": len(rounds),
        "quick": quick,
    }


def ratio(rounds: Sequence[Round], arm: str, *to: str, cpu: bool = False) -> Interval:
    """An arm's rate as a share of others', with the bounds that 95% of such runs would keep."""
    logs = [log(it.rate(arm, cpu=cpu) / it.rate(*to, cpu=cpu)) for it in rounds]
    middle = mean(logs)
    spread = t_quantile((1 + CONFIDENCE) / 2, len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    return Interval(exp(middle), exp(middle - spread), exp(middle + spread))


def free_ports() -> tuple[int, int]:
    """A port for the engine, whose recorder listens so many above it, and one for the gateway."""
    for _ in range(100):
        with (
            socket.create_server(("127.0.0.1", 0)) as first,
            socket.create_server(("127.0.0.1", 0)) as second,
        ):
            port = first.getsockname()[1] - PORT_OFFSET
            try:
                with socket.create_server(("127.0.0.1", port)):
                    return port, second.getsockname()[1]
            except (OSError, OverflowError):
                time.sleep(0.01)
    raise SystemExit("no free ports")


def say(rounds: Sequence[Round]) -> None:
    """Progress, apart from the results."""
    last = rounds[-1]
    reported = ", ".join(f"{arm} {last.rate(arm):.1f}" for arm in (BARE, AGAIN, THROUGH))
    print(f"round {len(rounds)}: {reported} tokens/s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
