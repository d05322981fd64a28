"""How soon does a changed configuration hold, and does it disturb anybody?

    python benchmarks/reload.py [--rounds 20] [--quick] [--json]

Three fake engines in a process of their own; the gateway is another process with a file, two of the engines
in it and two keys. Streams run all the time. In each round the file is changed four times and SIGHUP is sent,
in every second round the file's change alone has to do:

1. a key is revoked: the time until a request with it gets 401;
2. the third engine is added, and one in use is removed: the time until a request is served by the new one;
3. the file is broken, in one of six ways: whether keys, workers and answers stay as they were;
4. all is put back.

The last line is one JSON object: revoked_s and added_worker_s (the longest over all rounds), bad_config_kept
(the share of broken files that changed nothing), and streams, with how many were not whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop
from ending import end_in_order_when_told
from stress.processes import MODEL, fake_engines, free_port, running, wait_until_ready
from stress.streams import HEADERS, ask, chat_body

from phasewise.clients.http_client import HttpClient, Reply, Timeouts
from phasewise.core.request import Endpoint
from phasewise.gateway.api.auth import key_sha256

SHAPE = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "block_size": 16, "total_blocks": 8192}
COST = {"floor_s": 0.02, "knee_tokens": 256, "beyond_knee_s_per_token": 0.1e-3, "per_request_s": 0.1e-3}
COST |= {"attention_s_per_token_pair": 0.0, "kv_read_s_per_token": 0.0}
STAYS, LEAKED, ADMIN = "stays", "leaked", "admin"
AS_ADMIN = ((b"authorization", f"Bearer {ADMIN}".encode()),)
STREAMS, STREAM_TOKENS = 16, 100
GIVE_UP_S = 20.0
SETTLED_S = 1.5
"""After a broken file: long enough for a gateway that watches its file to read it."""
Config = dict[str, Any]


def _unknown_key(config: Config) -> None:
    config["gateway"]["api_kyes"] = []


def _unknown_policy(config: Config) -> None:
    config["gateway"]["policy"] = "fastest"


def _two_of_a_name(config: Config) -> None:
    config["workers"].append(config["workers"][0])


def _other_port(config: Config) -> None:
    config["gateway"]["port"] = 1 + config["gateway"]["port"]


def _no_workers(config: Config) -> None:
    config["workers"] = []


def _missing_key_file(config: Config) -> None:
    config["workers"][0]["api_key_file"] = "/nowhere/key"


BREAKS: tuple[Callable[[Config], None], ...] = (
    _unknown_key,
    _unknown_policy,
    _two_of_a_name,
    _other_port,
    _no_workers,
    _missing_key_file,
)


@dataclass(slots=True)
class Seen:
    """What all rounds showed."""

    revoked_s: list[float] = field(default_factory=list)
    added_s: list[float] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    streams: int = 0
    broken: int = 0


@dataclass(slots=True)
class Served:
    """The gateway and the file that it reads."""

    url: str
    pid: int
    file: Path

    def write(self, config: Mapping[str, Any], *, signals: bool) -> None:
        """Replace the file at once, as editors and Kubernetes do, and say so if that is to be done."""
        beside = self.file.with_suffix(".new")
        beside.write_text(json.dumps(config))
        beside.replace(self.file)
        if signals:
            os.kill(self.pid, signal.SIGHUP)


def main() -> None:
    """Run all rounds and print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    options = parser.parse_args()
    end_in_order_when_told()
    rounds = 2 if options.quick else options.rounds
    with fake_engines(3, COST, SHAPE) as urls, tempfile.TemporaryDirectory() as folder:
        file, config = Path(folder) / "gateway.yaml", starting(urls[:2])
        file.write_text(json.dumps(config))
        command = [sys.executable, "-m", "phasewise.cli", "gateway", str(file)]
        log = Path(folder) / "gateway.log"
        with log.open("wb") as written, running(command, stderr=written) as process:
            url = f"http://127.0.0.1:{config['gateway']['port']}"
            wait_until_ready(url, process, log)
            served = Served(url, process.pid, file)
            seen = uvloop.run(play(served, config, urls[2], rounds, quiet=options.json))
            assert process.poll() is None, "the gateway ended"
    print(json.dumps(record(seen, rounds)))


def starting(urls: list[str]) -> Config:
    """The file at the start of each round."""
    keys = [{"sha256": key_sha256(name), "tenant": name} for name in (STAYS, LEAKED)]
    workers = [{"name": f"engine-{at}", "url": url, "model": MODEL} for at, url in enumerate(urls)]
    gateway = {
        "port": free_port(),
        "api_keys": keys,
        "admin_key_sha256": key_sha256(ADMIN),
        "reload_on_change": True,
    }
    return {"gateway": gateway, "workers": workers}


async def play(served: Served, config: Config, third_url: str, rounds: int, *, quiet: bool) -> Seen:
    """All rounds, beside streams."""
    seen = Seen()
    client = HttpClient(served.url, Timeouts(connect_s=10.0, head_s=60.0, idle_s=60.0))
    over = asyncio.Event()
    streams = [asyncio.create_task(stream(client, seen, over)) for _ in range(STREAMS)]
    try:
        for number in range(rounds):
            await play_round(served, client, config, third_url, number, seen)
            if not quiet:
                print(
                    f"round {number + 1} of {rounds}: revoked after {seen.revoked_s[-1]:.2f} s, "
                    f"added after {seen.added_s[-1]:.2f} s",
                    file=sys.stderr,
                    flush=True,
                )
        over.set()
        await asyncio.gather(*streams)
    finally:
        client.close()
    return seen


async def play_round(
    served: Served, client: HttpClient, config: Config, third_url: str, number: int, seen: Seen
) -> None:
    """The four changes of one round."""
    signals = number % 2 == 0
    revoked = deepcopy(config)
    revoked["gateway"]["api_keys"].pop()
    served.write(revoked, signals=signals)
    seen.revoked_s.append(await seconds_until(lambda: status_of(client, LEAKED), 401))
    added = deepcopy(revoked)
    added["workers"][0] = {"name": f"new-{number}", "url": third_url, "model": MODEL}
    served.write(added, signals=signals)
    name = added["workers"][0]["name"]
    seen.added_s.append(await seconds_until(lambda: serves(client, name), wanted=True))
    broken = deepcopy(added)
    broken["gateway"]["api_keys"] = config["gateway"]["api_keys"]
    BREAKS[number % len(BREAKS)](broken)
    before = await workers_of(client)
    served.write(broken, signals=signals)
    await asyncio.sleep(SETTLED_S)
    # The broken file holds the leaked key again: had it been taken in part, the key would be known.
    same = await workers_of(client) == before and await status_of(client, LEAKED) == 401
    seen.kept.append(same and await status_of(client, STAYS) == 200)
    served.write(config, signals=signals)
    await seconds_until(lambda: status_of(client, LEAKED), 200)


async def seconds_until(look: Callable[[], Any], wanted: object) -> float:
    """How long it takes until a look shows what is wanted."""
    began_s = time.monotonic()
    while await look() != wanted:
        if time.monotonic() > began_s + GIVE_UP_S:
            raise SystemExit(f"{wanted} was not seen within {GIVE_UP_S:.0f} s")
        await asyncio.sleep(0.02)
    return time.monotonic() - began_s


async def asked(client: HttpClient, key: str) -> Reply:
    """The reply to a short request with this key, whose prompt nobody has sent before."""
    headers = (*HEADERS, (b"authorization", f"Bearer {key}".encode()))
    body = chat_body(MODEL, f"{time.monotonic_ns()} is a number", 2)
    return await client.fetch("POST", Endpoint.CHAT, headers=headers, body=body)


async def status_of(client: HttpClient, key: str) -> int:
    """How a short request with this key is answered."""
    return (await asked(client, key)).status


async def serves(client: HttpClient, name: str) -> bool:
    """Whether a short request is served by this worker."""
    request_id = dict((await asked(client, STAYS)).headers)[b"x-request-id"].decode()
    reply = await client.fetch("GET", f"/phasewise/v1/requests/{request_id}", headers=AS_ADMIN)
    attempts = orjson.loads(reply.body).get("attempts", ())
    return any(attempt["worker"][0] == name for attempt in attempts)


async def workers_of(client: HttpClient) -> list[tuple[str, str]]:
    """The workers' names and addresses."""
    reply = await client.fetch("GET", "/phasewise/v1/workers", headers=AS_ADMIN)
    return [(it["name"], it["url"]) for it in orjson.loads(reply.body)["workers"]]


async def stream(client: HttpClient, seen: Seen, over: asyncio.Event) -> None:
    """One stream after the other."""
    headers = (*HEADERS, (b"authorization", f"Bearer {STAYS}".encode()))
    while not over.is_set():
        answer = await ask(
            client, chat_body(MODEL, f"{time.monotonic()} words", STREAM_TOKENS), headers=headers
        )
        seen.streams += 1
        seen.broken += not (answer.whole and answer.chunks == STREAM_TOKENS)


def record(seen: Seen, rounds: int) -> dict[str, object]:
    """The figures of all rounds."""
    build = (platform.python_implementation(), platform.python_version(), *platform.python_build())
    return {
        "revoked_s": round(max(seen.revoked_s), 3),
        "added_worker_s": round(max(seen.added_s), 3),
        "bad_config_kept": sum(seen.kept) / len(seen.kept),
        "rounds": rounds,
        "streams": seen.streams,
        "streams_not_whole": seen.broken,
        "python": " ".join(build),
    }


if __name__ == "__main__":
    main()
