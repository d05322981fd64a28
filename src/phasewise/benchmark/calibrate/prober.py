"""Plays scenes to an engine and records when its tokens arrive.

Prompts are random token ids: their length is exact, and no prefix cache has them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random

import orjson

from phasewise.benchmark.calibrate.scenes import QUIET_STEPS, STEPS_PER_ARRIVAL, Heard, Played, Scene
from phasewise.benchmark.target import Target
from phasewise.clients.http_client import HttpClient
from phasewise.clients.sse import EventSplitter, parse_chunk
from phasewise.core.errors import MeasurementError, PhasewiseError, UpstreamError

FIRST_ID, LAST_ID = 1_000, 20_000
"""Ids of ordinary tokens: special ones are below or above, and every vocabulary is larger."""
COMPLETIONS = "/v1/completions"
REPLY_LIMIT_BYTES = 64 * 1024


class Prober:
    """Plays scenes, one at a time."""

    def __init__(self, client: HttpClient, target: Target, rng: Random) -> None:
        self._client = client
        self._target = target
        self._rng = rng

    async def play(self, scene: Scene) -> Played:
        """Start the streams, send each prompt after some quiet steps, and wait for all to end."""
        streams = [Heard(scene.context_tokens, scene.stream_tokens) for _ in range(scene.streams)]
        arrivals = [Heard(tokens, 1) for tokens in scene.arrivals]
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._ask(stream)) for stream in streams]
                for number, arrival in enumerate(arrivals):
                    await _until_written(streams, QUIET_STEPS // 2 + number * STEPS_PER_ARRIVAL, running)
                    await self._ask(arrival)
        except* PhasewiseError as group:
            # The first failure is the cause; it cancelled the others.
            raise group.exceptions[0] from None
        return Played(scene, tuple(streams), tuple(arrivals))

    async def _ask(self, heard: Heard) -> None:
        body = orjson.dumps(
            {
                "model": self._target.model,
                "prompt": [self._rng.randrange(FIRST_ID, LAST_ID) for _ in range(heard.prompt_tokens)],
                "max_tokens": heard.output_tokens,
                "min_tokens": heard.output_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
            }
        )
        splitter = EventSplitter()

        def stamp(data: bytes) -> None:
            now_s = time.monotonic()
            for event in splitter.feed(data):
                if b'"choices":[{' in event and parse_chunk(event).error is None:
                    heard.times_s.append(now_s)

        heard.sent_s = time.monotonic()
        try:
            await self._stream(body, heard.prompt_tokens, stamp)
        except UpstreamError as error:
            raise UpstreamError(
                error.kind,
                f"{self._target.url} cut off a prompt of {heard.prompt_tokens} ids: {error.message}",
                hint="see the engine's log; if it still runs, it or the network cut the stream",
            ) from error

    async def _stream(self, body: bytes, prompt_tokens: int, stamp: Callable[[bytes], None]) -> None:
        reply = await self._client.send("POST", COMPLETIONS, headers=self._target.headers, body=body)
        async with reply:
            if reply.status != 200:
                await reply.read_all(REPLY_LIMIT_BYTES)
                raise MeasurementError(
                    f"{self._target.url} answered {reply.status} to a prompt of {prompt_tokens} ids",
                    hint="give an engine's own address, not a gateway's: vLLM's /v1/completions is needed",
                )
            await reply.pour(stamp)


async def _until_written(streams: list[Heard], tokens: int, running: list[asyncio.Task[None]]) -> None:
    """Wait until every stream has this many tokens, or one has ended early."""
    while any(len(stream.times_s) < tokens for stream in streams):
        if any(task.done() for task in running):
            return
        await asyncio.sleep(0.002)
