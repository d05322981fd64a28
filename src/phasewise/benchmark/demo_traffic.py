"""The traffic of `phasewise up --demo`: users who each ask a short question after another, for ever.

Each waits for its answer before it asks again, so that no more requests are open than there are users. The
ids of all its requests begin with `demo-`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from itertools import count
from random import Random

from phasewise.benchmark.run import request_body
from phasewise.benchmark.target import Target, find_target
from phasewise.benchmark.workload.prompts import Message
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import PhasewiseError, UpstreamError
from phasewise.core.request import Endpoint

USERS = 8
MARK = "demo-"
ANSWER_S = 1.0
"""How long an answer takes an engine with nothing else to do: users wait for seconds, however fast it is."""
FIRST_TOKENS, FEWEST_TOKENS, MOST_TOKENS = 32, 32, 512
"""Of the requests that measure this, and of an answer: shorter ones would be mostly prefill."""
PAUSE_S = 2.0
"""After a failure, so that a gateway without an engine is not asked again and again."""
THINGS = (
    "a lighthouse", "a glacier", "a violin", "a compass", "a bridge", "an eclipse", "a comet", "a harbour",
    "a volcano", "a library", "a windmill", "a telescope", "a desert", "a coral reef", "an island", "a kite",
)  # fmt: skip
QUESTIONS = ("What is {}?", "Say something about {}.", "Why do people like {}?", "Describe {} to a child.")


async def play(url: str) -> None:
    """Ask until the process is ended."""
    client = HttpClient(url, Timeouts(connect_s=5.0, head_s=120.0, idle_s=120.0))
    target = await _found(client)
    tokens = await _tokens_of_an_answer(client, target)
    async with asyncio.TaskGroup() as users:
        for user in range(USERS):
            users.create_task(_ask_on(client, target, user, tokens))


async def _found(client: HttpClient) -> Target:
    while True:
        try:
            return await find_target(client)
        except PhasewiseError:  # the gateway or its engine is not ready yet
            await asyncio.sleep(PAUSE_S / 4)


async def _tokens_of_an_answer(client: HttpClient, target: Target) -> int:
    """How many tokens take a lone request about as long as an answer should. An engine's first is slower."""
    while not await _answered(client, target, f"{MARK}first", "Hello!", FIRST_TOKENS):
        pass
    began_s = time.monotonic()
    await _answered(client, target, f"{MARK}second", "Good morning!", FIRST_TOKENS)
    per_token_s = (time.monotonic() - began_s) / FIRST_TOKENS
    return min(max(round(ANSWER_S / per_token_s), FEWEST_TOKENS), MOST_TOKENS)


async def _ask_on(client: HttpClient, target: Target, user: int, tokens: int) -> None:
    rng = Random(user)  # noqa: S311 - which question is asked, no secret
    for number in count():
        question = rng.choice(QUESTIONS).format(rng.choice(THINGS))
        length = round(tokens * rng.uniform(0.6, 1.4))
        await _answered(client, target, f"{MARK}{user}-{number}", question, length)


async def _answered(
    client: HttpClient, target: Target, request_id: str, question: str, max_tokens: int
) -> bool:
    """Ask one question; a pause follows if it was not answered."""
    body = request_body(target.model, (Message("user", question),), max_tokens, fixed=True)
    headers = (*target.headers, (b"x-request-id", request_id.encode()))
    try:
        answered = (await client.fetch("POST", Endpoint.CHAT, headers=headers, body=body)).status == 200
    except UpstreamError:
        answered = False
    if not answered:
        await asyncio.sleep(PAUSE_S)
    return answered


if __name__ == "__main__":
    asyncio.run(play(sys.argv[1]))
