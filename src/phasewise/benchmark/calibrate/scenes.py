"""The scenes that show an engine's costs, and playing them: prompts alone, streams, prompts among streams.

Sizes follow from the engine's limits and the available time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import orjson

from phasewise.benchmark.target import Target
from phasewise.clients.http_client import HttpClient
from phasewise.clients.sse import EventSplitter, parse_chunk
from phasewise.core.errors import MeasurementError, PhasewiseError, UpstreamError

SMALLEST_TOKENS = 16
SHORT_CONTEXT_TOKENS = 32
CONTEXT_LADDER = 8
"""Contexts grow by this factor: a larger one would leave the middle of the range unobserved."""
LADDER = 1.6
"""Prompts grow by this factor: small enough to show a knee between two of them."""
QUIET_STEPS = 8
"""Steps of each batch without a prompt among them."""
STEPS_PER_ARRIVAL = 6
"""How many tokens the streams write for every prompt that arrives among them."""
ROUNDS_WANTED = 4
"""A scene observed less often does not show how much its time varies."""
LARGEST_BATCH = 128
SCENES_WORTH = 17
"""A round asks for about as much prefill as this many of the largest scenes."""
KV_SHARE = 0.6
"""Streams fill at most this share of the KV cache: with a prompt among them nothing is preempted."""
MARGIN_TOKENS = 150
"""What a stream holds in addition to its prompt: what it writes, and the rest of its last block."""


@dataclass(frozen=True, slots=True)
class SceneLimits:
    """The limits of scenes.

    `tokens_per_s` is how fast the engine prefills, `budget_s` the time for all rounds together. `kv_tokens`
    is how much context fits the engine's memory, where it reports it.
    """

    tokens_per_s: float
    budget_s: float
    context_tokens: int
    kv_tokens: int | None = None

    @property
    def kv_limit_tokens(self) -> int:
        """How much context may be held at once."""
        return int((self.kv_tokens or 2**31) * KV_SHARE)

    @property
    def tokens_per_scene(self) -> int:
        """How much prefill a scene may ask for, so that a round of all scenes ends in time."""
        affordable = self.tokens_per_s * self.budget_s / ROUNDS_WANTED / SCENES_WORTH
        return int(max(min(affordable, self.kv_limit_tokens), 4 * SMALLEST_TOKENS))

    @property
    def longest_prompt_tokens(self) -> int:
        """The longest prompt to send."""
        return min(self.tokens_per_scene, self.context_tokens - QUIET_STEPS - 2)


@dataclass(frozen=True, slots=True)
class Scene:
    """`streams` sequences decode, each with `context_tokens`; `arrivals` are prompts that arrive among them.

    Without streams the prompts are sent alone, one after the other.
    """

    streams: int = 0
    context_tokens: int = 0
    arrivals: tuple[int, ...] = ()

    @property
    def stream_tokens(self) -> int:
        """How many tokens each stream writes."""
        return QUIET_STEPS + STEPS_PER_ARRIVAL * len(self.arrivals)

    @property
    def prompt_tokens(self) -> int:
        """All prompt tokens of the scene."""
        return self.streams * self.context_tokens + sum(self.arrivals)


def plan_scenes(limits: SceneLimits) -> tuple[Scene, ...]:
    """One round."""
    prompts = tuple(_ladder(limits.longest_prompt_tokens))
    alone = [Scene(arrivals=(tokens,)) for tokens in prompts]
    return (*alone, *_batches(limits, prompts))


def _ladder(longest_tokens: int) -> Iterator[int]:
    tokens = float(SMALLEST_TOKENS)
    while tokens * LADDER**0.5 < longest_tokens:
        yield round(tokens)
        tokens *= LADDER
    yield longest_tokens


def _batches(limits: SceneLimits, prompts: tuple[int, ...]) -> Iterator[Scene]:
    """Every batch at contexts from short to the longest that fits.

    Prompts of all sizes arrive in turn at the shortest and the longest context; streams run alone at others.
    """
    most_tokens = limits.tokens_per_scene // 2
    streams, turn = 1, 0
    while streams <= LARGEST_BATCH:
        contexts = tuple(_contexts(limits, streams))
        for context_tokens in contexts:
            if context_tokens not in {contexts[0], contexts[-1]}:
                yield Scene(streams, context_tokens)
                continue
            arrivals = (prompts[turn % len(prompts)], prompts[(turn + len(prompts) // 2) % len(prompts)])
            yield Scene(streams, context_tokens, tuple(min(each, most_tokens) for each in arrivals))
            turn += 1
        streams *= 2


def _contexts(limits: SceneLimits, streams: int) -> Iterator[int]:
    """From a short context to a long one, as far as this many streams fit."""
    most_tokens = min(limits.tokens_per_scene // streams, limits.kv_limit_tokens // streams - MARGIN_TOKENS)
    if most_tokens < SHORT_CONTEXT_TOKENS:
        return
    long_tokens = min(most_tokens, limits.longest_prompt_tokens // 2)
    tokens = SHORT_CONTEXT_TOKENS
    yield tokens
    while (tokens := tokens * CONTEXT_LADDER) * 2 <= long_tokens:
        yield tokens
    if long_tokens >= 2 * SHORT_CONTEXT_TOKENS:
        yield long_tokens


# --- What was observed while scenes were played: times only.


@dataclass(slots=True)
class Heard:
    """What was observed of one request: when it was sent, and when each token's chunk arrived."""

    prompt_tokens: int
    output_tokens: int
    sent_s: float = 0.0
    times_s: list[float] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every token arrived in its own chunk; otherwise gaps between chunks are not steps."""
        return len(self.times_s) == self.output_tokens


@dataclass(frozen=True, slots=True)
class Played:
    """A scene and what was observed of its requests."""

    scene: Scene
    streams: tuple[Heard, ...]
    arrivals: tuple[Heard, ...]


# --- Plays scenes to an engine and records when its tokens arrive.
#
# Prompts are random token ids: their length is exact, and no prefix cache has them.

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
