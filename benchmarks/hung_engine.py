"""How soon is an engine noticed whose core stands still while /health answers?

    python benchmarks/hung_engine.py [--clients 256] [--processes 1] [--quick] [--json]

Fake engines stand behind a gateway process, with many clients that ask again and again. One engine makes no
more steps. Noticed is when the gateway says `hung`; a client is stuck if nothing came for 20 s. Fake engines
write the same text for the same prompt, so a lost or doubled token shows.

The last line is one JSON object: noticed_s, stuck_over_20s, resumed, wrong_text and more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import urllib.request
from dataclasses import dataclass, field
from random import Random

import uvloop
from script import command_line, interpreter, use_home
from stress.arrivals import PATIENCE
from stress.processes import MODEL, fake_engines, gateway
from stress.streams import Answer, ask, chat_body, prompts

from phasewise.benchmark.generator import now_s
from phasewise.clients.host import allow_many_streams
from phasewise.clients.http_client import HttpClient
from phasewise.gateway.api.auth import key_sha256

STUCK_S = 20.0
ADMIN = "admin"
ENGINES, SLOTS = 4, 128
SHAPE = {"max_num_seqs": SLOTS, "max_num_batched_tokens": 2048, "block_size": 16, "total_blocks": 20_000}
COST = {"floor_s": 0.2, "knee_tokens": 256, "beyond_knee_s_per_token": 0.02e-3, "per_request_s": 0.05e-3}
COST |= {"attention_s_per_token_pair": 0.0, "kv_read_s_per_token": 0.0}
OUTPUT_TOKENS = 40
WARM_S, AFTER_S = 15.0, 32.0


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
    parser = command_line(__doc__)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--processes", type=int, default=1, help="of the gateway before fake engines")
    options = parser.parse_args()
    allow_many_streams()
    use_home()
    found = uvloop.run(on_fakes(16 if options.quick else options.clients, options.processes))
    say(options, "fake engines", found)
    print(json.dumps({**found, "python": interpreter()}))


def say(options: argparse.Namespace, part: str, found: dict[str, object]) -> None:
    """Progress, for people."""
    if not options.json:
        print(f"{part}: {found}", file=sys.stderr, flush=True)


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


if __name__ == "__main__":
    main()
