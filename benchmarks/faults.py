"""Do streams stay whole when engines die, hang, cut, fail, drag, vanish all at once, or meet a poison?

    python benchmarks/faults.py [--streams 500] [--scenarios kill,hang] [--quick] [--json]
    python benchmarks/faults.py --real [--kills 20] [--json] [--home DIR]

Four fake engines, each a process, stand behind one gateway process. Streams run through it, chats and
completions, some with usage, while one kind of fault happens to the engines. Each token of a fake engine is
a hash of all before it, so that a token lost, doubled or changed at a seam shows in the whole rest: every
text is held against that of an engine to which nothing happens. A stream must be whole and right, or end
with an error that is documented, after the right beginning of its text. A poisonous prompt is sent among
the others once; how many engines die of it is counted. The last line is one JSON object: streams, wrong_text,
wrong_usage, attempts_max (of engines that were met), engines_killed_by_poison, undocumented_ends, and per
scenario how many streams were whole, were resumed, and ended with which error.

With --real, two real engines under `phasewise up`: the whole process group of the one that serves a stream
gets kill -9 in mid-stream; the greedy text must be that of an undisturbed engine, or part from it where the
engine's two best choices are nearly alike (`near_ties`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from resuming.asking import CHAT, COMPLETIONS, PATIENT
from resuming.mortal_engines import MortalEngine, mortal_engines, start_anew
from resuming.reading import WHOLE, Read, read_stream
from resuming.real_kills import kill_real_engines
from resuming.scenarios import POISON, SCENARIOS
from resuming.timelines import ADMIN_KEY_SHA256, attempts_of, wait_for_workers
from script import command_line, print_record, say, use_home
from stress.processes import gateway

from phasewise.clients.http_client import HttpClient
from phasewise.core.decision import RejectReason

MODEL = "fake-model"
ENGINES = 4
TOKENS = 60
SLOTS = 64
DOCUMENTED = frozenset([*RejectReason, *(f"stream_{reason}" for reason in RejectReason)])


@dataclass
class Result:
    """What came of one scenario's streams."""

    streams: int = 0
    whole: int = 0
    resumed: int = 0
    wrong_text: int = 0
    wrong_usage: int = 0
    undocumented_ends: int = 0
    attempts_max: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    engines_killed_by_poison: int = 0


def main() -> None:
    """Break things, count, print the record."""
    parser = command_line(__doc__, quick="40 streams each")
    parser.add_argument("--streams", type=int, default=500, help="streams of each scenario")
    parser.add_argument("--at-once", type=int, default=60, help="of them at the same time")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="some of them, comma-separated")
    parser.add_argument("--real", action="store_true", help="two real engines instead")
    parser.add_argument("--kills", type=int, default=20, help="of real engines")
    parser.add_home()
    options = parser.parse_args()
    if options.real:
        use_home(options.home)
        record = asyncio.run(kill_real_engines(2 if options.quick else options.kills))
    else:
        streams, at_once = (40, 20) if options.quick else (options.streams, options.at_once)
        record = run_scenarios(options.scenarios.split(","), streams, at_once)
    print_record(record, options)


def run_scenarios(names: Sequence[str], streams: int, at_once: int) -> dict[str, Any]:
    """All scenarios, one after the other, before the same gateway."""
    results: dict[str, Result] = {}
    settings = {"admin_key_sha256": ADMIN_KEY_SHA256, "keep_timelines": 100_000}
    with mortal_engines(ENGINES + 1) as (healthy, *engines):
        expected = asyncio.run(expected_texts(healthy.url, streams))
        with gateway([engine.url for engine in engines], SLOTS, settings) as running:
            for name in names:
                results[name] = asyncio.run(run_scenario(name, running.url, engines, expected, at_once))
                say(f"{name}: {results[name]}")
                start_anew(engines)
                asyncio.run(wait_for_workers(running.url, ENGINES))
    parts = results.values()
    return {
        "streams": sum(it.streams for it in parts),
        "whole": sum(it.whole for it in parts),
        "resumed": sum(it.resumed for it in parts),
        "wrong_text": sum(it.wrong_text for it in parts),
        "wrong_usage": sum(it.wrong_usage for it in parts),
        "attempts_max": max(it.attempts_max for it in parts),
        "engines_killed_by_poison": max(it.engines_killed_by_poison for it in parts),
        "undocumented_ends": sum(it.undocumented_ends for it in parts),
        "scenarios": {name: asdict(result) for name, result in results.items()},
    }


def request(number: int) -> tuple[str, dict[str, Any]]:
    """The path and body of a stream: chats and completions, short prompts and long, some with usage."""
    text = f"Stream {number}: " + "go on, and on. " * (number % 40)
    body: dict[str, Any] = {"model": MODEL, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    if number % 2:
        body["stream_options"] = {"include_usage": True}
    if number % 3:
        return CHAT, {**body, "messages": [{"role": "user", "content": text}]}
    return COMPLETIONS, {**body, "prompt": text}


async def expected_texts(url: str, streams: int) -> list[Read]:
    """What an engine to which nothing happens answers to each request."""
    client = HttpClient(url, PATIENT)
    try:
        return await asyncio.gather(*(read_stream(client, *request(number)) for number in range(streams)))
    finally:
        client.close()


async def run_scenario(
    name: str, url: str, engines: Sequence[MortalEngine], expected: Sequence[Read], at_once: int
) -> Result:
    """Streams, so many at once, while things go wrong."""
    result, client, places = Result(), HttpClient(url, PATIENT), asyncio.Semaphore(at_once)
    ids: list[str] = []

    async def one(number: int) -> None:
        async with places:
            read = await read_stream(client, *request(number))
        ids.append(read.request_id)
        judge(result, read, expected[number])

    breaking = asyncio.ensure_future(SCENARIOS[name](engines))
    try:
        running = [asyncio.ensure_future(one(number)) for number in range(len(expected))]
        if name == "poison":
            await asyncio.sleep(0.2)
            _, body = request(1)
            body["messages"][0]["content"] += POISON
            poisoned = await read_stream(client, CHAT, body)
            ids.append(poisoned.request_id)
            result.undocumented_ends += poisoned.ended not in DOCUMENTED
            result.engines_killed_by_poison = sum(not engine.serves for engine in engines)
        await asyncio.gather(*running)
        attempts = await attempts_of(client, ids)
        result.attempts_max = max(it.met for it in attempts)
        result.resumed = sum(it.resumed for it in attempts)
    finally:
        breaking.cancel()
        with suppress(asyncio.CancelledError):
            await breaking
        client.close()
    return result


def judge(result: Result, read: Read, expected: Read) -> None:
    """Count one stream."""
    result.streams += 1
    if read.ended == WHOLE:
        result.whole += 1
        result.wrong_text += read.text != expected.text or len(read.ids) != 1
        result.wrong_usage += _counts(read) != _counts(expected)
        return
    result.errors[read.ended] = result.errors.get(read.ended, 0) + 1
    result.undocumented_ends += read.ended not in DOCUMENTED
    result.wrong_text += not expected.text.startswith(read.text)


def _counts(read: Read) -> tuple[Any, ...]:
    usage = read.usage or {}
    return tuple(usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens"))


if __name__ == "__main__":
    main()
