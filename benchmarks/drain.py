"""Are streams cut when the gateway stops, and does work go on for clients who left?

    python benchmarks/drain.py [--streams 500] [--quick] [--json]

Fake engines and the gateway are processes of their own. Each scene has a gateway of its own:

- `drain`: SIGTERM with so many streams open. Counted are those that end with [DONE] and the same text as the
  engine writes without a gateway, connections rejectd in the meantime, and how the process ended;
- `leave_midway`: so many clients leave in the middle of their answers. How long until the engine has nothing
  left to do, beside the time of one of its steps;
- `leave_early`: the same before the first token, half of them while they wait in the gateway's line.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import uvloop
from script import command_line, print_record, say
from stress.processes import MODEL, Gateway, fake_engines, gateway, steady_steps
from stress.streams import Answer, ask, chat_body, prompts

from phasewise.benchmark.generator import now_s
from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.host import allow_many_streams
from phasewise.clients.http_client import HttpClient, Timeouts

PATIENCE = Timeouts(connect_s=30.0, head_s=120.0, idle_s=120.0)
DIFFERENT_PROMPTS = 20
PROMPT_WORDS = 30
DRAIN_S = 60.0
GIVE_UP_S = 60.0
MIDWAY_STEP_S = 0.2
EARLY_STEP_S = 0.5
CHUNK_TOKENS = 512
ALLOWED_S = 1.0
"""Beyond one step of the engine: so long may work for nobody go on."""


def main() -> None:
    """Play the scenes and print the record."""
    parser = command_line(__doc__, quick="forty streams: proves that the script runs")
    parser.add_argument("--streams", type=int, default=500, help="open at once")
    options = parser.parse_args()
    streams = 40 if options.quick else options.streams
    allow_many_streams()
    record: dict[str, Any] = {"streams": streams}
    for name, scene in SCENES.items():
        record[name] = scene(streams)
        say(f"{name}: {json.dumps(record[name])}")
    record["held"] = all(scene["held"] for scene in record.values() if isinstance(scene, dict))
    record["quick"] = options.quick
    print_record(record, options)


# --- stopping -----------------------------------------------------------------------------------------------


def drain(streams: int) -> dict[str, Any]:
    """SIGTERM, and everything that was begun is answered."""
    bodies = [chat_body(MODEL, prompt, 64) for prompt in prompts(DIFFERENT_PROMPTS, PROMPT_WORDS, seed=1)]
    with (
        fake_engines(2, steady_steps(0.1), SHAPE) as urls,
        gateway(urls, streams, {"drain_s": DRAIN_S}) as running,
    ):

        async def play() -> dict[str, Any]:
            wanted = await texts(urls[0], bodies)
            client = HttpClient(running.url, PATIENCE)
            answers: list[tuple[bytes, Answer]] = []
            tasks = await open_streams(client, bodies, streams, answers)
            running.process.send_signal(signal.SIGTERM)
            sent_s = now_s()
            rejected = await connections_rejected(running.url)
            await asyncio.wait(tasks, timeout=DRAIN_S)
            code = await exit_code(running)
            client.close()
            whole = sum(answer.whole and answer.text == wanted[body] for body, answer in answers)
            return {
                "whole": whole,
                "ended": dict(Counter(how_ended(answer) for _, answer in answers)),
                "new_connections_rejected": rejected,
                "exit_code": code,
                "exit_s": round(now_s() - sent_s, 2),
                "held": whole == streams and rejected and code == 0,
            }

        return uvloop.run(play())


# --- leaving ------------------------------------------------------------------------------------------------


def leave_midway(streams: int) -> dict[str, Any]:
    """All clients leave while their answers are being written."""
    bodies = [chat_body(MODEL, prompt, 600) for prompt in prompts(DIFFERENT_PROMPTS, PROMPT_WORDS, seed=4)]
    with (
        fake_engines(1, steady_steps(MIDWAY_STEP_S), SHAPE) as (url,),
        gateway([url], streams, {}) as running,
    ):
        return uvloop.run(left(running.url, url, [bodies[index % len(bodies)] for index in range(streams)]))


def leave_early(streams: int) -> dict[str, Any]:
    """All clients leave before the first token: half of them wait in the engine, half in the queue."""
    bodies = [chat_body(MODEL, prompt, 600) for prompt in prompts(streams, CHUNK_TOKENS, seed=5)]
    # A prompt takes a step of its own, so that all but the first few still wait for theirs.
    one_prompt_a_step = {**SHAPE, "max_num_batched_tokens": CHUNK_TOKENS}
    with (
        fake_engines(1, steady_steps(EARLY_STEP_S), one_prompt_a_step) as (url,),
        gateway([url], streams // 2, {"queue": {"max_waiting": streams}}) as running,
    ):
        return uvloop.run(left(running.url, url, bodies, early=True))


async def left(url: str, engine_url: str, bodies: list[bytes], *, early: bool = False) -> dict[str, Any]:
    """Open streams, leave all at once, and wait for the engine to be idle."""
    client, engine, watch = (HttpClient(each, PATIENCE) for each in (url, engine_url, url))
    step_s, begun = (EARLY_STEP_S if early else MIDWAY_STEP_S), 0

    def count(number: int) -> None:
        nonlocal begun
        begun += number == 1

    async def all_there() -> bool:
        if not early:
            return begun == len(bodies)
        return await work_in(engine) == len(bodies) // 2 and await in_line(watch) >= len(bodies) // 2

    async def idle() -> bool:
        return await work_in(engine) == 0

    tasks = [asyncio.create_task(ask(client, body, count)) for body in bodies]
    await until_true(all_there)
    in_engine, waiting = await work_in(engine), await in_line(watch)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    left_s = now_s()
    await until_true(idle)
    idle_s = now_s() - left_s
    # Nobody may come out of the line into an engine that was just freed.
    await asyncio.sleep(2 * step_s)
    in_engine_after, waiting_after = await work_in(engine), await in_line(watch)
    for each in (client, engine, watch):
        each.close()
    return {
        "left": len(bodies),
        "before_first_token": len(bodies) - begun,
        "in_engine": in_engine,
        "in_line": waiting,
        "in_engine_after": in_engine_after,
        "in_line_after": waiting_after,
        "step_s": step_s,
        "idle_after_s": round(idle_s, 2),
        "held": in_engine_after == waiting_after == 0 and idle_s <= step_s + ALLOWED_S,
    }


# --- parts of scenes ----------------------------------------------------------------------------------------

SHAPE = {
    "max_model_len": 1024,
    "max_num_seqs": 512,
    "max_num_batched_tokens": 65536,
    "block_size": 16,
    "total_blocks": 65536,
}


async def texts(url: str, bodies: list[bytes]) -> dict[bytes, str]:
    """What the engine writes to each of these when nothing is before it."""
    client = HttpClient(url, PATIENCE)
    try:
        answers = await asyncio.gather(*(ask(client, body, keep_text=True) for body in bodies))
    finally:
        client.close()
    return {body: answer.text for body, answer in zip(bodies, answers, strict=True)}


async def open_streams(
    client: HttpClient, bodies: list[bytes], count: int, answers: list[tuple[bytes, Answer]]
) -> list[asyncio.Task[None]]:
    """So many streams, all of which have written something; their answers are added when they end."""
    begun, all_begun = 0, asyncio.Event()

    def note(number: int) -> None:
        nonlocal begun
        begun += number == 1
        if begun == count:
            all_begun.set()

    async def one(body: bytes) -> None:
        answers.append((body, await ask(client, body, note, keep_text=True)))

    tasks = [asyncio.create_task(one(bodies[index % len(bodies)])) for index in range(count)]
    await asyncio.wait_for(all_begun.wait(), GIVE_UP_S)
    return tasks


def how_ended(answer: Answer) -> str:
    """A stream's end in a few words."""
    if answer.error_event is not None:
        return f"error event {answer.error_event}"
    if answer.failure is not None:
        return f"broken off: {answer.failure}"
    return "whole" if answer.whole else f"incomplete, status {answer.status}"


async def connections_rejected(url: str) -> bool:
    """Whether new connections come to be rejected while the old ones are served."""
    address = urlsplit(url)

    async def rejected() -> bool:
        try:
            with socket.create_connection((address.hostname or "", address.port or 0), timeout=1.0):
                return False
        except ConnectionRefusedError:
            return True

    await until_true(rejected)
    return True


async def exit_code(running: Gateway) -> int | None:
    """How the process ended; None if it does not."""
    try:
        return await asyncio.to_thread(running.process.wait, GIVE_UP_S)
    except subprocess.TimeoutExpired:
        return None


async def work_in(engine: HttpClient) -> int:
    """Requests that the engine runs or keeps waiting."""
    metrics = await fetch_metrics(engine)
    return int(sum(metrics.gauge(f"num_requests_{which}") or 0 for which in ("running", "waiting")))


async def in_line(watch: HttpClient) -> int:
    """Requests that wait in the gateway, by its own metrics."""
    text = (await watch.fetch("GET", "/metrics")).body.decode()
    rows = [row for row in text.splitlines() if row.startswith("phasewise_waiting_requests{")]
    return int(sum(float(row.rpartition(" ")[2]) for row in rows))


async def until_true(check: Callable[[], Awaitable[bool]]) -> None:
    """Return when it holds, which it must within a minute."""
    deadline_s = now_s() + GIVE_UP_S
    while not await check():
        if now_s() > deadline_s:
            raise SystemExit("what the scene waits for did not happen within a minute")
        await asyncio.sleep(0.02)


SCENES: dict[str, Callable[[int], dict[str, Any]]] = {
    "drain": drain,
    "leave_midway": leave_midway,
    "leave_early": leave_early,
}


if __name__ == "__main__":
    main()
