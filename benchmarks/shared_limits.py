"""Do several gateways together let exactly a key's limit pass, and what happens when their Redis dies?

    python benchmarks/shared_limits.py [--seconds 20] [--clients 32] [--quick] [--json]

Two gateways, a fake engine and a real redis-server are processes of their own on loopback. In turn, once for
each rule of `when_down`:

- `together`: clients ask both gateways with one key and without a pause. A minute's worth may pass, and what
  flows in during it: the bounds are taken from when the first and the last requests can have been counted;
- `killed`: the same with kill -9 of Redis in the middle. Counted are requests that failed, and those that
  passed beside what the rule allows: each gateway the full limit by itself from then on, or none any more;
- `resumed`: Redis is started again, empty. How long until both gateways count in it; `together` once more.

One client asks slowly, with a key that has no limits and one that never reaches them by turns, while nobody
else does: how long requests take with Redis (`up`), with a dead one (`down`), and from the moment that Redis
is held up and answers nobody (`held_up`). What counting adds is the difference of the two keys' medians.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.request import urlopen

import uvloop
from script import command_line, print_record, say
from stress.processes import MODEL, DidNotStart, fake_engines, free_port, gateway, running, steady_steps

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import UpstreamError
from phasewise.core.statistics import quantile
from phasewise.gateway.api.auth import key_sha256

GATEWAYS = 2
LIMIT_PER_MINUTE = 300
PAUSE_S = 0.005
START_WITHIN_S = 20.0
RULES = ("count_alone", "reject")
PATIENCE = Timeouts(connect_s=5.0, head_s=30.0, idle_s=30.0)
COST = steady_steps(0.001)
SHAPE = {"max_num_seqs": 1024, "max_num_batched_tokens": 10**6, "total_blocks": 20_000}
BODY = json.dumps(
    {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
).encode()
NO_LIMITS, NEVER_REACHED = "no-limits", "never-reached"
LIMITED = ("before", "during", "after")
"""Keys with the limit, one for each scene: a scene begins with a full bucket."""


def main() -> None:
    """Play the scenes under each rule and print the record."""
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each scene lasts")
    parser.add_argument("--clients", type=int, default=32, help="that ask at once")
    options = parser.parse_args()
    seconds, clients = (1.5, 8) if options.quick else (options.seconds, options.clients)
    record: dict[str, Any] = {
        "gateways": GATEWAYS,
        "limit_per_minute": LIMIT_PER_MINUTE,
        "clients": clients,
        "scene_s": seconds,
    }
    with fake_engines(1, COST, SHAPE) as engines:
        for rule in RULES:
            record[rule] = play(engines, rule, seconds, clients)
    print_record(record, options)


def play(engines: Sequence[str], rule: str, seconds: float, clients: int) -> dict[str, Any]:
    """All scenes under one rule, on a Redis and gateways of their own."""
    redis = Redis()
    settings = {
        "api_keys": [
            {"sha256": key_sha256(NO_LIMITS)},
            {"sha256": key_sha256(NEVER_REACHED), "requests_per_minute": 10**6, "max_concurrent": 10**4},
            *({"sha256": key_sha256(key), "requests_per_minute": LIMIT_PER_MINUTE} for key in LIMITED),
        ],
        "redis": {"url": redis.url, "when_down": rule},
    }
    with (
        redis.running(),
        gateway(engines, 1000, settings) as first,
        gateway(engines, 1000, settings) as second,
    ):
        urls = (first.url, second.url)
        return uvloop.run(scenes(redis, urls, rule, seconds, clients))


async def scenes(
    redis: Redis, urls: Sequence[str], rule: str, seconds: float, clients: int
) -> dict[str, Any]:
    """Together, killed, resumed; the slow client between them."""
    asking = [HttpClient(url, PATIENCE) for url in urls]
    found: dict[str, Any] = {}

    def notify(scene: str, facts: dict[str, Any]) -> None:
        found[scene] = facts
        say(f"{rule}, {scene}: {json.dumps(facts)}")

    try:
        notify("up", await ask_slowly(asking, seconds))
        notify("together", (await hammer(asking, "before", seconds, clients)).against_limit())
        load = asyncio.create_task(hammer(asking, "during", 2 * seconds, clients))
        await asyncio.sleep(seconds)
        redis.kill()
        killed_s = time.monotonic()
        notify("killed", (await load).against_rule(rule, killed_s))
        notify("down", await ask_slowly(asking, seconds))
        redis.start()
        resumed_s = await until_shared(urls)
        again = await hammer(asking, "after", seconds, clients)
        notify("resumed", {"after_s": round(resumed_s, 2), **again.against_limit()})
        redis.hold_up()
        notify("held_up", await ask_slowly(asking, seconds))
    finally:
        for client in asking:
            client.close()
    return found


# --- load -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """What came of hammering one key."""

    codes: Counter[str] = field(default_factory=Counter)
    first_sent_s: float = math.inf
    first_reply_s: float = math.inf
    last_sent_s: float = 0.0
    last_reply_s: float = 0.0

    @property
    def passed(self) -> int:
        """Requests that were served."""
        return self.codes["served"]

    @property
    def failed(self) -> int:
        """Requests that were neither served nor rejected by a rule."""
        rules = {"served", "requests_over_limit", "limits_unavailable"}
        return sum(count for code, count in self.codes.items() if code not in rules)

    def against_limit(self) -> dict[str, Any]:
        """What passed beside the limit."""
        least = bucket_pays(self.last_sent_s - self.first_reply_s)
        most = bucket_pays(self.last_reply_s - self.first_sent_s)
        return {
            "asked": self.codes.total(),
            "passed": self.passed,
            "expected": [least, most],
            "over_limit_passed": max(0, self.passed - most),
            "under_use": max(0, least - self.passed),
            "failed": self.failed,
        }

    def against_rule(self, rule: str, killed_s: float) -> dict[str, Any]:
        """The same where Redis died: its bucket paid until then, each gateway's own since then, if at all."""
        together = bucket_pays(killed_s - self.first_sent_s)
        alone = GATEWAYS * bucket_pays(self.last_reply_s - killed_s) if rule == "count_alone" else 0
        return {
            "asked": self.codes.total(),
            "passed": self.passed,
            "allowed": together + alone,
            "over_limit_passed": max(0, self.passed - together - alone),
            "rejected_as_uncounted": self.codes["limits_unavailable"],
            "failed": self.failed,
        }


def bucket_pays(seconds: float) -> int:
    """How many requests a bucket that was full pays for within a time."""
    return math.floor(LIMIT_PER_MINUTE * (1 + max(0.0, seconds) / 60))


async def hammer(asking: Sequence[HttpClient], key: str, seconds: float, clients: int) -> Tally:
    """Ask with one key without a pause, by as many clients, over all gateways."""
    tally, until_s = Tally(), time.monotonic() + seconds

    async def client(number: int) -> None:
        while (sent_s := time.monotonic()) < until_s:
            tally.codes[await ask(asking[number % len(asking)], key)] += 1
            replied_s = time.monotonic()
            tally.first_sent_s = min(tally.first_sent_s, sent_s)
            tally.first_reply_s = min(tally.first_reply_s, replied_s)
            tally.last_sent_s = max(tally.last_sent_s, sent_s)
            tally.last_reply_s = max(tally.last_reply_s, replied_s)

    await asyncio.gather(*map(client, range(clients)))
    return tally


async def ask(client: HttpClient, key: str) -> str:
    """`served`, or the error's code."""
    headers = [(b"authorization", b"Bearer " + key.encode())]
    try:
        reply = await client.fetch("POST", "/v1/chat/completions", headers=headers, body=BODY)
    except UpstreamError as error:
        return f"connection_{error.kind}"
    return "served" if reply.status == 200 else str(json.loads(reply.body)["error"]["code"])


async def ask_slowly(asking: Sequence[HttpClient], seconds: float) -> dict[str, Any]:
    """One request after the other, of either key and at either gateway by turns; times of those served."""
    times_s: dict[str, list[float]] = {NO_LIMITS: [], NEVER_REACHED: []}
    codes: Counter[str] = Counter()
    until_s, number = time.monotonic() + seconds, 0
    while time.monotonic() < until_s:
        key, client = (NO_LIMITS, NEVER_REACHED)[number % 2], asking[number // 2 % len(asking)]
        began_s = time.monotonic()
        code = await ask(client, key)
        if code == "served":
            times_s[key].append(time.monotonic() - began_s)
        codes[code] += 1
        number += 1
        await asyncio.sleep(PAUSE_S)
    summaries = {key: summary_ms(values) for key, values in times_s.items() if values}
    found: dict[str, Any] = {"codes": dict(codes), "ms": summaries}
    if len(summaries) == 2:
        added_ms = summaries[NEVER_REACHED]["p50"] - summaries[NO_LIMITS]["p50"]
        found["counting_adds_ms_p50"] = round(added_ms, 3)
    return found


def summary_ms(values_s: Sequence[float]) -> dict[str, float]:
    """Quantiles in milliseconds."""
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(1e3 * quantile(values_s, share), 3) for name, share in shares.items()}


# --- Redis ------------------------------------------------------------------------------------------------


class Redis:
    """A redis-server on a port of its own that keeps nothing on disk."""

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise SystemExit("redis-server is not installed; try: apt-get install redis-server")
        self._port = free_port()
        self._command = [
            program, "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
        ]  # fmt: skip
        self._life = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self._port}/0"

    @contextmanager
    def running(self) -> Iterator[None]:
        """From now until the block is left, unless it is killed."""
        with self._life:
            self.start()
            yield

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = self._life.enter_context(running(self._command))
        deadline_s = time.monotonic() + START_WITHIN_S
        while time.monotonic() < deadline_s:
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=1.0):
                    return
            except OSError:
                time.sleep(0.02)
        raise DidNotStart("redis-server did not start")

    def hold_up(self) -> None:
        """It keeps its connections and answers nobody."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """As kill -9 does."""
        assert self._process is not None
        self._process.kill()
        self._life.close()


async def until_shared(urls: Sequence[str]) -> float:
    """How long until no gateway says any more that it cannot count."""
    began_s = time.monotonic()
    while not all(b"\nphasewise_quota_degraded 0" in page for page in map(metrics_of, urls)):
        if time.monotonic() - began_s > START_WITHIN_S:
            raise SystemExit(f"the gateways did not find Redis again within {START_WITHIN_S:g} s")
        await asyncio.sleep(0.05)
    return time.monotonic() - began_s


def metrics_of(url: str) -> bytes:
    """A gateway's metrics."""
    with urlopen(f"{url}/metrics", timeout=10) as page:
        content: bytes = page.read()
        return content


if __name__ == "__main__":
    main()
