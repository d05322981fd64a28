"""How soon is an engine noticed whose core stands still while /health answers, and is a slow one left alone?

    python benchmarks/hung_engine.py [--clients 256] [--processes 1] [--real] [--quick] [--json]

- **Fake engines** behind a gateway process, with many clients that ask again and again. One engine makes no
  more steps. Noticed is when the gateway says `hung`; a client is stuck if nothing came for 20 s. Fake
  engines write the same text for the same prompt, so a lost or doubled token shows.
- **Virtual time**: slow engines that do nothing wrong (a step of a minute, prompts longer than any before, a
  pace that drifts to four times, stolen cores, pauses, a first prompt) are looked at once a second by the
  same rule; so are engines that hang.
- **The real engine** with `--real`: two of them; one's core is stopped by SIGSTOP for five seconds, then for
  good, then continued. Before that, a prompt whose prefill takes over 30 s.

The last line is one JSON object: noticed_s, stuck_over_20s, resumed, wrong_text, false_ejections, and more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
import uvloop
from ending import end_in_order_when_told
from planted.fleet import Fleet, running_fleet
from stress.arrivals import PATIENCE
from stress.processes import MODEL, fake_engines, gateway
from stress.streams import Answer, ask, chat_body, prompts

from phasewise.clients.host import allow_many_streams
from phasewise.clients.http_client import HttpClient
from phasewise.core.worker import WorkerRef
from phasewise.gateway.api.auth import key_sha256
from phasewise.loadgen.generator import now_s
from phasewise.scheduling.progress import Pace, PromptsBooked, WorkerProgress

STUCK_S = 20.0
ADMIN = "admin"
ENGINES, SLOTS = 4, 128
SHAPE = {"max_num_seqs": SLOTS, "max_num_batched_tokens": 2048, "block_size": 16, "total_blocks": 20_000}
COST = {"floor_s": 0.2, "knee_tokens": 256, "beyond_knee_s_per_token": 0.02e-3, "per_request_s": 0.05e-3}
COST |= {"attention_s_per_token_pair": 0.0, "kv_read_s_per_token": 0.0}
OUTPUT_TOKENS = 40
WARM_S, AFTER_S = 15.0, 32.0
SLOW_SCENES, HANGS = 10_000, 1_000


@dataclass(slots=True)
class Client:
    """One client that asks again and again: the longest time in which nothing came, and its answers."""

    longest_s: float = 0.0
    answers: list[tuple[int, Answer]] = field(default_factory=list)

    async def run(self, client: HttpClient, bodies: list[bytes], rng: Random, until_s: float) -> None:
        """Ask until then, and finish the last answer."""
        while now_s() < until_s:
            index, heard_s = rng.randrange(len(bodies)), [now_s()]

            def hear(_number: int, heard_s: list[float] = heard_s) -> None:
                self.longest_s = max(self.longest_s, now_s() - heard_s[0])
                heard_s[0] = now_s()

            answer = await ask(client, bodies[index], hear, keep_text=True)
            self.longest_s = max(self.longest_s, now_s() - heard_s[0])
            self.answers.append((index, answer))


@dataclass(slots=True)
class Watch:
    """When a worker's health became what, since the watch began."""

    url: str
    name: str
    began_s: float = field(default_factory=now_s)
    became_s: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Ask the gateway five times a second."""
        client = HttpClient(self.url, PATIENCE)
        headers = [(b"authorization", f"Bearer {ADMIN}".encode())]
        try:
            while True:
                reply = await client.fetch("GET", "/phasewise/v1/workers", headers=headers)
                (worker,) = (it for it in json.loads(reply.body)["workers"] if it["name"] == self.name)
                self.became_s.setdefault(worker["health"], now_s() - self.began_s)
                await asyncio.sleep(0.2)
        finally:
            client.close()


def main() -> None:
    """Run all parts and print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--processes", type=int, default=1, help="of the gateway before fake engines")
    parser.add_argument("--real", action="store_true", help="on the real engine too")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    options = parser.parse_args()
    end_in_order_when_told()
    allow_many_streams()
    os.environ.setdefault("PHASEWISE_HOME", str(Path(__file__).resolve().parents[1] / ".phasewise"))
    scenes, hangs = (500, 100) if options.quick else (SLOW_SCENES, HANGS)
    found = virtual(scenes, hangs)
    say(options, "virtual time", found)
    found |= uvloop.run(on_fakes(16 if options.quick else options.clients, options.processes))
    say(options, "fake engines", found)
    if options.real:
        found |= {"real": on_real()}
    build = (platform.python_implementation(), platform.python_version(), *platform.python_build())
    print(json.dumps({**found, "python": " ".join(build)}))


def say(options: argparse.Namespace, part: str, found: dict[str, object]) -> None:
    """Progress, for people."""
    if not options.json:
        print(f"{part}: {found}", file=sys.stderr, flush=True)


# --- fake engines -------------------------------------------------------------------------------------------


async def on_fakes(clients: int, processes: int) -> dict[str, object]:
    """Many clients, of whom one engine in four stops serving its own."""
    settings = {"admin_key_sha256": key_sha256(ADMIN), "keep_timelines": 20_000, "processes": processes}
    with fake_engines(ENGINES, COST, SHAPE) as urls, gateway(urls, SLOTS, settings) as served:
        client = HttpClient(served.url, PATIENCE)
        bodies = [chat_body(MODEL, text, OUTPUT_TOKENS) for text in prompts(32, 40, 1)]
        whole = [it.text for it in await asyncio.gather(*(ask(client, it, keep_text=True) for it in bodies))]
        everyone = [Client() for _ in range(clients)]
        until_s = now_s() + WARM_S + AFTER_S
        tasks = [
            asyncio.create_task(it.run(client, bodies, Random(number), until_s))
            for number, it in enumerate(everyone)
        ]
        await asyncio.sleep(WARM_S)
        post(f"{urls[0]}/fake/fault", {"kind": "core_hang"})
        watch = Watch(served.url, "engine-0")
        watching = asyncio.create_task(watch.run())
        await asyncio.gather(*tasks)
        watching.cancel()
        metrics = (await client.fetch("GET", "/metrics")).body.decode()
        client.close()
    answers = [it for one in everyone for it in one.answers]
    return {
        "clients": clients,
        "answers": len(answers),
        "suspected_s": rounded(watch.became_s.get("suspect")),
        "noticed_s": rounded(watch.became_s.get("hung")),
        "stuck_over_20s": sum(it.longest_s > STUCK_S for it in everyone),
        "longest_silence_s": rounded(max(it.longest_s for it in everyone)),
        "not_whole": sum(not answer.whole for _, answer in answers),
        "wrong_text": sum(answer.whole and answer.text != whole[index] for index, answer in answers),
        "resumed": total(metrics, "phasewise_resumes_total{"),
        "retried": total(metrics, "phasewise_retries_total{"),
    }


def total(metrics: str, begins: str) -> int:
    """The sum of a metric's series, by how their rows begin."""
    return round(sum(float(row.split()[-1]) for row in metrics.splitlines() if row.startswith(begins)))


def rounded(seconds: float | None) -> float | None:
    """To a tenth of a second."""
    return None if seconds is None else round(seconds, 1)


def post(url: str, body: dict[str, object]) -> None:
    """Send JSON, and read nothing of the answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=60).close()


# --- virtual time -------------------------------------------------------------------------------------------


def virtual(scenes: int, hangs: int) -> dict[str, object]:
    """Engines that are slow for good reasons, and engines that hang, both looked at once a second."""
    rng = Random(7)
    paces = [slow_scene(rng) for _ in range(scenes)]
    noticed_s = [hang(rng) for _ in range(hangs)]
    caught = [it for it in noticed_s if it is not None]
    return {
        "slow_scenes": scenes,
        "false_ejections": sum(Pace.HUNG in it for it in paces),
        "false_suspicion_share": round(sum(Pace.SUSPECT in it for it in paces) / scenes, 4),
        "virtual_hangs": hangs,
        "recall": round(len(caught) / hangs, 4),
        "noticed_virtual_p50_s": rounded(sorted(caught)[len(caught) // 2]),
        "noticed_virtual_max_s": rounded(max(caught)),
    }


class Engine:
    """An engine in virtual time whose steps take as long as their prompts, and a look at it each second."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.progress = WorkerProgress(WorkerRef("w0", "1"))
        self.per_token_s = rng.uniform(0.2e-3, 8e-3)
        self.step_s = rng.uniform(0.02, 0.3)
        self.noise = rng.uniform(0.0, 0.4)
        self.now_s, self.looked_s, self.steps = 0.0, 0.0, 0
        self.before = 0
        self.paces: set[Pace] = set()

    def step(self, prompt_tokens: int = 0, factor: float = 1.0) -> None:
        """One step, and every look until it ends."""
        cost_s = self.step_s + self.per_token_s * prompt_tokens
        cost_s *= factor * self.rng.lognormvariate(0.0, self.noise)
        self.stand_still(cost_s, prompt_tokens)
        self.steps += 1
        self.before = max(self.before, prompt_tokens)

    def stand_still(self, seconds: float, prompt_tokens: int = 0, *, works: bool = True) -> None:
        """No step ends for so long."""
        until_s = self.now_s + seconds
        while self.looked_s + 1.0 <= until_s:
            self.looked_s += 1.0
            self.progress.look(self.steps, works=works, now_s=self.looked_s, unread=prompt_tokens)
            booked = PromptsBooked(prompt_tokens, prompt_tokens, self.before, self.before)
            self.paces.add(self.progress.pace(booked))
        self.now_s = until_s


def warmed(rng: Random, seconds: float) -> Engine:
    """An engine after some usual traffic."""
    engine = Engine(rng)
    while engine.now_s < seconds:
        engine.step(rng.choice((0, 0, 0, rng.randint(20, 600))))
    return engine


def slow_scene(rng: Random) -> set[Pace]:
    """What is said of an engine that does nothing wrong."""
    kind = rng.randrange(7)
    engine = warmed(rng, 0.0 if kind == 0 else rng.uniform(20.0, 120.0))
    if kind == 0:  # not known yet
        engine.step(round(rng.uniform(1.0, 40.0) / engine.per_token_s))
    elif kind == 1:  # a step of a minute: a prompt far longer than any before it
        engine.step(max(engine.before * 5, round(60.0 / engine.per_token_s)))
    elif kind == 2:  # the pace drifts to four times
        for number in range(200):
            engine.step(rng.choice((0, rng.randint(20, 600))), 1.0 + 3.0 * number / 200)
    elif kind == 3:  # a third to two thirds of the cores are stolen
        for _ in range(100):
            engine.step(rng.choice((0, rng.randint(20, 600))), rng.uniform(1.5, 3.0))
    elif kind == 4:  # preempted: what was computed is computed again, as long as any prompt before
        for _ in range(50):
            engine.step(engine.before)
    elif kind == 5:  # paused by its operator
        engine.stand_still(rng.uniform(30.0, 300.0), works=False)
    else:  # prompts up to four times as long as any before
        engine.step(round(engine.before * rng.uniform(1.0, 4.0)))
    return engine.paces


def hang(rng: Random) -> float | None:
    """How long it takes until a hang is noticed; None if it is not within ten minutes."""
    engine = warmed(rng, rng.uniform(20.0, 120.0))
    began_s = engine.now_s
    while Pace.HUNG not in engine.paces:
        engine.stand_still(1.0, rng.choice((0, engine.before)))
        if engine.now_s > began_s + 600:
            return None
    return engine.looked_s - began_s


# --- the real engine ----------------------------------------------------------------------------------------

LONG_LEVERS = "max_model_len: 8192, max_num_batched_tokens: 8192"
LONG_WORDS = 4_200
STREAMS, REAL_TOKENS, PAUSE_S = 4, 60, 5.0


def on_real() -> dict[str, object]:
    """Two engines of which one is stopped."""
    with running_fleet(LONG_LEVERS, 2, fresh=False, logprobs=False) as fleet:
        return uvloop.run(stop_and_go(fleet))


async def stop_and_go(fleet: Fleet) -> dict[str, object]:
    """A long prompt, a short stop, a long one, and the engine's return."""
    client = HttpClient(fleet.url, PATIENCE)
    bodies = [chat_body(fleet.model, text, REAL_TOKENS) for text in prompts(STREAMS, 30, 3)]
    core = core_of(fleet.engines[0].pid)
    found: dict[str, object] = {}

    async def rounds(seconds: float) -> list[Answer]:
        until_s, answers = now_s() + seconds, []
        while now_s() < until_s:
            answers += await asyncio.gather(*(ask(client, it, keep_text=True) for it in bodies))
        return answers

    try:
        await rounds(25.0)
        began_s = now_s()
        (text,) = prompts(1, LONG_WORDS, 9)
        long = await ask(client, chat_body(fleet.model, text, 8))
        found["long_prefill_s"] = rounded(None if long.first_s is None else long.first_s - began_s)
        found["long_prefill_whole"] = long.whole
        found["stood_still_in_prefill"] = await still(client)
        asked = asyncio.create_task(rounds(PAUSE_S + 5.0))
        await asyncio.sleep(2.0)
        os.kill(core, signal.SIGSTOP)
        await asyncio.sleep(PAUSE_S)
        os.kill(core, signal.SIGCONT)
        found["whole_after_short_stop"] = all(it.whole for it in await asked)
        asked = asyncio.create_task(rounds(30.0))
        await asyncio.sleep(3.0)
        os.kill(core, signal.SIGSTOP)
        found["out_of_service_s"] = await until(client, is_still=True)
        answers = await asked
        found["answers"], found["whole"] = len(answers), sum(it.whole for it in answers)
        found["longest_answer_s"] = rounded(max(it.last_s - it.sent_s for it in answers))
        os.kill(core, signal.SIGCONT)
        found["back_s"] = await until(client, is_still=False)
    finally:
        os.kill(core, signal.SIGCONT)
        client.close()
    return found


async def until(client: HttpClient, *, is_still: bool) -> float | None:
    """How long it takes until an engine stands still, or none does."""
    began_s = now_s()
    for _ in range(600):
        if await still(client) is is_still:
            return rounded(now_s() - began_s)
        await asyncio.sleep(0.2)
    return None


async def still(client: HttpClient) -> bool:
    """Whether an engine is out of service because it stands still."""
    metrics = (await client.fetch("GET", "/metrics")).body.decode()
    return total(metrics, "phasewise_worker_stands_still{") > 0


def core_of(session: int) -> int:
    """The process of the engine's core in this session."""
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and "EngineCore" in " ".join(
                (process.name(), *process.cmdline())
            ):
                return process.pid
        except (psutil.Error, ProcessLookupError):
            continue
    raise SystemExit("the engine has no process of its core")


if __name__ == "__main__":
    main()
