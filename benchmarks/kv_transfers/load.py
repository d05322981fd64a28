"""Streams that decode steadily while long prompts come one after the other, and when every token came.

What the times add up to is figures.py's matter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from stress.streams import Answer, ask, chat_body

from phasewise.benchmark.generator import now_s
from phasewise.benchmark.workload.prompts import write_text
from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.http_client import HttpClient, Timeouts

STREAM_PROMPT_TOKENS = 40
STREAM_TOKENS = 2_000
"""More than any block has time for: a block ends in the middle of its streams."""
LONG_TOKENS = 8
PAUSE_S = 0.5
"""Between one long prompt's answer and the next prompt."""
GIVE_UP_S = 300.0
PATIENCE = Timeouts(connect_s=10.0, head_s=300.0, idle_s=300.0)


@dataclass(frozen=True)
class Load:
    """So many streams and so many long prompts, after some that are not counted."""

    streams: int
    lead_in: int
    longs: int
    prompt_tokens: int


@dataclass(frozen=True)
class LongPrompt:
    """When a long prompt was sent, and when its first token came, in seconds of the block's clock."""

    sent_s: float
    first_s: float


@dataclass
class Block:
    """What the client saw: every stream's token times, and the long prompts, from the window's begin on.

    `began_unix_s` is that begin on the wall clock, on which engines stamp their steps.
    """

    began_unix_s: float
    ended_s: float
    token_times_s: list[list[float]]
    longs: list[LongPrompt]
    gaps_s: list[float] = field(init=False)

    def __post_init__(self) -> None:
        """Lay out the gaps that ended within the window, of all streams together."""
        self.gaps_s = [
            after - before for times in self.token_times_s for before, after in pairwise(times) if after > 0.0
        ]


async def run_block(url: str, model: str, load: Load, seed: int) -> Block:
    """Begin with long prompts, then the streams, and count while further long prompts come.

    From the first ones a gateway that decides knows what kind of traffic it has. The streams begin while
    nothing else is there: spread over the engines as a steady load would be. Begun beside a long prompt they
    would all be placed where it is not, and so would every prompt after it.
    """
    rng = Random(seed)
    client = HttpClient(url, PATIENCE)
    times_s: list[list[float]] = [[] for _ in range(load.streams)]
    tasks: list[asyncio.Task[Answer]] = []
    try:
        for _ in range(load.lead_in):
            await ask_long(client, model, load, rng)
        for seen_s in times_s:
            body = chat_body(model, write_text(STREAM_PROMPT_TOKENS, rng), STREAM_TOKENS)
            tasks.append(asyncio.create_task(ask(client, body, noting(seen_s))))
        await until(lambda: all(times_s), tasks)
        began_s, began_unix_s = now_s(), time.time()
        longs: list[LongPrompt] = []
        for _ in range(load.longs):
            await asyncio.sleep(PAUSE_S)
            answer = await ask_long(client, model, load, rng)
            assert answer.first_s is not None
            longs.append(LongPrompt(answer.sent_s - began_s, answer.first_s - began_s))
        # A stream that stands still as the last answer ends has its gap ended before the window is.
        counts = [len(seen_s) for seen_s in times_s]
        await until(lambda: all(len(it) > had for it, had in zip(times_s, counts, strict=True)), tasks)
        ended_s = now_s() - began_s
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client.close()
    return Block(began_unix_s, ended_s, [[at - began_s for at in seen_s] for seen_s in times_s], longs)


def noting(seen_s: list[float]) -> Callable[[int], None]:
    """A listener that keeps the time of every token."""
    return lambda _number: seen_s.append(now_s())


async def ask_long(client: HttpClient, model: str, load: Load, rng: Random) -> Answer:
    """A long prompt that shares no beginning with any other, and a short answer to it."""
    answer = await ask(client, chat_body(model, write_text(load.prompt_tokens, rng), LONG_TOKENS))
    if not answer.whole:
        raise SystemExit(f"a long prompt failed (status {answer.status}, {answer.failure or answer.code})")
    return answer


async def until(condition: Callable[[], bool], streams: Sequence[asyncio.Task[Answer]]) -> None:
    """Wait for something that streams bring about; none of them may end in the meantime."""
    deadline_s = now_s() + GIVE_UP_S
    while not condition():
        if now_s() > deadline_s:
            raise SystemExit(f"a stream stood still for {GIVE_UP_S:g} s; look at the engines' logs")
        for task in streams:
            if task.done():
                answer = task.result()
                raise SystemExit(f"a stream ended (status {answer.status}, {answer.failure or answer.code})")
        await asyncio.sleep(0.01)


async def until_idle(urls: Sequence[str]) -> None:
    """Return when no engine has anything left to do, so that blocks do not run into each other."""
    deadline_s = now_s() + GIVE_UP_S
    clients = [HttpClient(url) for url in urls]
    try:
        while True:
            reported = await asyncio.gather(*map(fetch_metrics, clients))
            busy = sum(
                (it.gauge("num_requests_running") or 0) + (it.gauge("num_requests_waiting") or 0)
                for it in reported
            )
            if not busy:
                return
            if now_s() > deadline_s:
                raise SystemExit(f"the engines were not idle within {GIVE_UP_S:g} s")
            await asyncio.sleep(0.2)
    finally:
        for client in clients:
            client.close()
