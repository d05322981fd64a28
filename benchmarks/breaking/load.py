"""Clients that ask without a pause, and hold every answer against an undisturbed engine's."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson
from resuming.asking import CHAT, COMPLETIONS, PATIENT, AskFailed, ask
from resuming.reading import WHOLE, read_stream
from resuming.timelines import ADMIN, NOT_THERE

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import UpstreamError

from .pairs import MODEL

PROMPTS = 40
TOKENS = 12
GIVE_UP_S = 60.0


@dataclass
class Tally:
    """What clients saw. `ended` counts the answers that did not come whole, by how they ended."""

    requests: int = 0
    wrong_text: int = 0
    ended: Counter[str] = field(default_factory=Counter)


def request(number: int) -> tuple[str, dict[str, Any]]:
    """One of PROMPTS requests: chats and completions, long prompts and longer ones, every fourth plain."""
    text = f"Request {number % PROMPTS}: " + "go on, and on. " * (20 + number % PROMPTS)
    body: dict[str, Any] = {"model": MODEL, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
    body["stream"] = number % 4 != 0
    if number % 3:
        return CHAT, {**body, "messages": [{"role": "user", "content": text}]}
    return COMPLETIONS, {**body, "prompt": text}


async def text_and_ending(client: HttpClient, number: int) -> tuple[str, str]:
    """What came of a request, and how it ended."""
    path, body = request(number)
    if body["stream"]:
        read = await read_stream(client, path, body)
        return read.text, read.ended
    try:
        choice = (await ask(client, path, body))["choices"][0]
    except (AskFailed, UpstreamError) as error:
        return "", str(error)[:80]
    return choice["text"] if path == COMPLETIONS else choice["message"]["content"], WHOLE


async def expected_texts(url: str) -> list[str]:
    """What an engine to which nothing happens answers to each of a whole round of requests."""
    client = HttpClient(url, PATIENT)
    try:
        # Endpoints change with every third, and whether an answer is streamed with every fourth.
        answers = [await text_and_ending(client, number) for number in range(PROMPTS * 3)]
    finally:
        client.close()
    return [text for text, _ in answers]


class Load:
    """So many clients, until told to stop."""

    def __init__(self, url: str, expected: Sequence[str], clients: int) -> None:
        self.tally = Tally()
        self._client = HttpClient(url, PATIENT)
        self._expected = expected
        self._numbers = count()
        self._over = False
        self._clients = [asyncio.ensure_future(self._ask()) for _ in range(clients)]

    async def served(self, more: int) -> None:
        """Return when so many more requests were answered."""
        wanted, deadline_s = self.tally.requests + more, time.monotonic() + GIVE_UP_S
        while self.tally.requests < wanted:
            if time.monotonic() > deadline_s:
                raise SystemExit("the gateway answers no longer")
            await asyncio.sleep(0.01)

    async def stop(self) -> Tally:
        """Let what is under way end."""
        self._over = True
        try:
            await asyncio.gather(*self._clients)
        finally:
            self._client.close()
        return self.tally

    async def _ask(self) -> None:
        while not self._over:
            number = next(self._numbers)
            text, ended = await text_and_ending(self._client, number)
            self.tally.requests += 1
            if ended == WHOLE:
                self.tally.wrong_text += text != self._expected[number % len(self._expected)]
            else:
                self.tally.ended[ended] += 1


@dataclass
class Records:
    """What the gateway's own records say of requests, and the most tries of one that met engines."""

    failed_over: int = 0
    transferred: int = 0
    tries_max: int = 0


async def records_after(client: HttpClient, after: int) -> tuple[Records, int]:
    """Of all requests since a record's number, and the number of the next."""
    records = Records()
    while True:
        path = f"/phasewise/v1/requests?limit=2000&after={after}"
        reply = await client.fetch("GET", path, headers=ADMIN)
        lines = reply.body.splitlines()
        for record in map(orjson.loads, lines):
            _count(records, record["attempts"])
        after = int(dict(reply.headers)[b"x-phasewise-next"])
        if not lines:
            return records, after


def _count(records: Records, attempts: list[dict[str, Any]]) -> None:
    met = [it for it in attempts if not any(gone in (it.get("note") or "") for gone in NOT_THERE)]
    # Both sides of a KV transfer are one try.
    tries = sum(it["kind"] != "decode_side" for it in met)
    records.tries_max = max(records.tries_max, tries)
    records.failed_over += any(it["outcome"] != "succeeded" for it in attempts)
    records.transferred += any(
        it["kind"] == "decode_side" and it["outcome"] == "succeeded" for it in attempts
    )
