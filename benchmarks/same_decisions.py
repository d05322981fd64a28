"""Does the simulator decide as the gateway does? A live run is recorded, replayed, and compared step by step.

    python benchmarks/same_decisions.py [--seconds 60] [--quick] [--json]

For each of four fleets a gateway process with `record_decisions` serves fake engines: prefix_affinity and
least_outstanding over four mixed engines, and two prefill and two decode engines whose requests are
disaggregated by `auto` and `always`. Clients hold conversations, streamed and not; some leave in mid-answer,
some have a limit of tokens, and there are more of them than slots and queue hold. In mid-run an engine
answers with errors until its circuit opens, one dies and comes back, one is removed by a reload that also
changes policy and queue, and comes back by another. Then the record is replayed.

The last line is one JSON object: decisions (placements and rejections), identical, requests, rejected,
grants, failures, events, disaggregated, seconds (of load), python, and the same per fleet. It ends with 1
where a decision differs, or where a fleet saw no rejection, no grant or no failure, or none was
disaggregated: nothing was proven then.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import orjson
import uvloop
from replay import replay
from script import command_line, interpreter, print_record, say
from stress.processes import MODEL, free_port, running, wait_until_ready
from stress.streams import HEADERS, ask

from phasewise.benchmark.workload.prompts import write_text
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.auth import key_sha256
from phasewise.simulator.kv import Connector
from phasewise.simulator.requests import EngineShape, preset

CLIENTS, TURNS, WAITING = 40, 5, 8
PROMPT_WORDS = {"mixed": (20, 200, 900), "prefill": (20, 20, 20, 20, 20, 900)}
SLOTS = {"mixed": 6, "prefill": 8, "decode": 16}
"""A full prefill worker takes no prompts of others: whoever has no slot there is not disaggregated."""
SUMS = ("decisions", "identical", "requests", "rejected", "grants", "failures", "events", "disaggregated")
KEYS = ("a", "b", "limited")
FASTER = 0.15
"""Steps take this share of the time that a small model takes on a CPU: requests queue, and prompts stall
streams."""
MIXED, PHASES = ("mixed",) * 4, ("prefill", "prefill", "decode", "decode")
FLEETS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "prefix_affinity": ("prefix_affinity", MIXED, "auto"),
    "least_outstanding": ("least_outstanding", MIXED, "auto"),
    "disaggregated_auto": ("prefix_affinity", PHASES, "auto"),
    "disaggregated_always": ("least_outstanding", PHASES, "always"),
}
SHAPE = EngineShape(total_blocks=2_000)
PREFILL = b'{"is":"Prefill"'
Config = dict[str, Any]


def main() -> None:
    """Record and replay each fleet, and print the record."""
    parser = command_line(__doc__, quick="8 seconds each")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load on each fleet")
    options = parser.parse_args()
    seconds = 8.0 if options.quick else options.seconds
    fleets = {}
    for name in FLEETS:
        fleets[name] = uvloop.run(record_and_replay(name, seconds))
        say(f"{name}: {fleets[name]}")
    record = {
        **{key: sum(it[key] for it in fleets.values()) for key in SUMS},
        "seconds": seconds * len(fleets),
        "python": interpreter(),
        "fleets": fleets,
    }
    print_record(record, options)
    if wrong := what_is_wrong(fleets):
        sys.exit(f"not as promised: {', '.join(wrong)}")


def what_is_wrong(fleets: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Decisions that differ, and whatever did not happen at all."""
    wrong = [f"{name} differs: {it['difference']}" for name, it in fleets.items() if it["difference"]]
    wrong += [f"the record of {name} has no end" for name, it in fleets.items() if not it["complete"]]
    needed = ("decisions", "rejected", "grants", "failures")
    split = [name for name, it in fleets.items() if name.startswith("disaggregated") and it["disaggregated"]]
    if len(split) < 2:
        wrong.append("a fleet disaggregated no request")
    return wrong + [f"{name} saw no {key}" for name, it in fleets.items() for key in needed if not it[key]]


async def record_and_replay(name: str, seconds: float) -> dict[str, Any]:
    """A fleet under load, and what its record replays to."""
    policy, roles, when = FLEETS[name]
    connector = Connector() if "prefill" in roles else None
    engine = FakeEngineConfig(model=MODEL, cost=preset("cpu-demo"), shape=SHAPE, kv_transfer=connector)
    with tempfile.TemporaryDirectory() as folder:
        file, record = Path(folder) / "gateway.json", Path(folder) / "decisions"
        async with running_engines(len(roles), engine) as engines:
            for it in engines:
                it.inject("slow", factor=FASTER)
            config = gateway_config(policy, roles, engines, record)
            config["gateway"]["kv_transfer"] = {"when": when}
            write(file, config)
            command = [sys.executable, "-m", "phasewise.cli", "gateway", str(file)]
            with running(command, environment={"PHASEWISE_HOME": folder}) as process:
                url = f"http://127.0.0.1:{config['gateway']['port']}"
                await asyncio.to_thread(wait_until_ready, url, process)
                await under_load(
                    url, seconds, roles, lambda: trouble(engines, config, file, process.pid, seconds)
                )
                process.terminate()
                await asyncio.to_thread(process.wait, 60)
        written = await asyncio.to_thread(record.read_bytes)
        result = asdict(replay(written.splitlines()))
        return result | {"disaggregated": written.count(PREFILL), "record_bytes": len(written)}


def gateway_config(policy: str, roles: tuple[str, ...], engines: list[FakeEngine], record: Path) -> Config:
    """The gateway's file."""
    keys: list[Config] = [{"sha256": key_sha256(key), "tenant": f"tenant-{key}"} for key in KEYS]
    keys[-1] |= {"tokens_per_minute": 20_000, "priority": 1}
    return {
        "gateway": {
            "port": free_port(),
            "policy": policy,
            "record_decisions": str(record),
            "api_keys": keys,
            "queue": {"max_waiting": WAITING},
        },
        "workers": [
            {"name": f"w{at}", "url": it.base_url, "model": MODEL, "role": role, "slots": SLOTS[role]}
            for at, (it, role) in enumerate(zip(engines, roles, strict=True))
        ],
    }


def write(file: Path, config: Config) -> None:
    """Replace the file."""
    file.write_text(json.dumps(config))


# --- what happens -----------------------------------------------------------------------------------------


async def under_load(
    url: str, seconds: float, roles: tuple[str, ...], begin_trouble: Callable[[], Awaitable[None]]
) -> None:
    """Conversations without a pause, and trouble in their midst."""
    until_s = time.monotonic() + seconds
    client = HttpClient(url, Timeouts(connect_s=10.0, head_s=60.0, idle_s=60.0))
    try:
        talks = (converse(client, number, until_s, PROMPT_WORDS[roles[0]]) for number in range(CLIENTS))
        await asyncio.gather(begin_trouble(), *talks)
    finally:
        client.close()


async def converse(client: HttpClient, number: int, until_s: float, lengths: tuple[int, ...]) -> None:
    """One conversation after the other: each turn sends all before it."""
    dice = Random(number)
    key = KEYS[number % len(KEYS)]
    headers = (*HEADERS, (b"authorization", f"Bearer {key}".encode()))
    while time.monotonic() < until_s:
        messages: list[dict[str, str]] = []
        for _ in range(TURNS):
            words = dice.choice(lengths)
            messages.append({"role": "user", "content": write_text(words, dice)})
            tokens, stream = dice.randint(2, 60), dice.random() < 0.7
            fields = {"max_tokens": tokens, "stream": stream, "temperature": 0}
            body = orjson.dumps({"model": MODEL, "messages": messages, **fields})
            with suppress(TimeoutError):
                # Some leave, most of them in mid-answer.
                async with asyncio.timeout(dice.choice((0.3, 30.0, 30.0, 30.0, 30.0))):
                    answer = await ask(client, body, headers=headers)
                    if answer.status != 200:
                        await asyncio.sleep(dice.uniform(0.2, 1.0))
                        break
            messages.append({"role": "assistant", "content": write_text(30, dice)})


async def trouble(engines: list[FakeEngine], config: Config, file: Path, pid: int, seconds: float) -> None:
    """Errors, a death, a reload and another: again and again, spread over the run."""
    part_s = seconds / max(1, round(seconds / 8.0)) / 5
    reloaded: Config = json.loads(json.dumps(config))
    del reloaded["workers"][-1]
    reloaded["gateway"] |= {"policy": "round_robin", "queue": {"max_waiting": 3}}
    ends_s = time.monotonic() + seconds
    while time.monotonic() + 4 * part_s < ends_s:
        await asyncio.sleep(part_s)
        engines[1].inject("error", times=20)
        await asyncio.sleep(part_s)
        engines[2].die(1.0)
        await asyncio.sleep(part_s)
        for changed in (reloaded, config):
            write(file, changed)
            os.kill(pid, signal.SIGHUP)
            await asyncio.sleep(part_s)


if __name__ == "__main__":
    main()
