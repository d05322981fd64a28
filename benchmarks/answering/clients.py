"""A client of a cache: asks, and says how long it took and what the cache had to do with it."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stress.processes import MODEL, serving_pids

from phasewise.clients.http_client import HttpClient, Timeouts

PATIENCE = Timeouts(connect_s=5.0, head_s=30.0, idle_s=30.0)
ADMIN_KEY = "sk-admin"
ADMIN = [(b"authorization", b"Bearer " + ADMIN_KEY.encode())]
LENGTHS = {"min_tokens": 8, "max_tokens": 256}
"""Far more than an answer of a fake engine has: what is kept must say something and end by itself."""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as its client saw it; `said` is the reply's cache-status."""

    took_s: float
    status: int
    said: str

    @property
    def is_hit(self) -> bool:
        """Whether the answer came from the cache."""
        return "; hit" in self.said


def body_of(question: str, **fields: Any) -> bytes:  # noqa: ANN401 - whatever a request may hold
    """A chat request."""
    messages = [{"role": "user", "content": question}]
    return json.dumps({"model": MODEL, "messages": messages, **LENGTHS, **fields}).encode()


def new_question() -> str:
    """A question that was never asked before, and is like no other."""
    number = next(_numbers)
    return f"What can be said of matter {number:06d} in folder {time.monotonic_ns():x}?"


async def ask(client: HttpClient, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> Asked:
    """Send a request and read the whole reply."""
    began_s = time.perf_counter()
    reply = await client.fetch("POST", "/v1/chat/completions", headers=headers, body=body)
    took_s = time.perf_counter() - began_s
    said = next((value.decode() for name, value in reply.headers if name == b"cache-status"), "")
    return Asked(took_s, reply.status, said)


async def ask_many(client: HttpClient, bodies: Sequence[bytes], at_once: int = 4) -> list[Asked]:
    """Send all of them, so many at a time."""
    left = iter(bodies)

    async def one_after_the_other() -> list[Asked]:
        return [await ask(client, body) for body in left]

    return list(itertools.chain(*await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))))


async def ask_until_hit(client: HttpClient, body: bytes, within_s: float = 10.0) -> None:
    """Ask until the answer comes from the cache, which keeps it a moment after it was given."""
    deadline_s = time.monotonic() + within_s
    while not (asked := await ask(client, body)).is_hit:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"error: what was asked again is no hit; the gateway says {asked.said!r}")
        await asyncio.sleep(0.05)


def cpu_ns(pid: int) -> int:
    """Processor time of all living threads of a process, of a gateway those that serve.

    It is finer than the ticks of /proc/PID/stat.
    """
    tasks = [task for each in serving_pids(pid) for task in Path(f"/proc/{each}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
