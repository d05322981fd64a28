"""What is played to an engine to learn its costs: prompts alone, batches of streams, prompts among them.

Pure: sizes follow from what the engine can take and how long there is. Playing them is prober.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SMALLEST_TOKENS = 16
SHORT_CONTEXT_TOKENS = 32
CONTEXT_LADDER = 8
"""Contexts grow by this factor: with a wider gap between two, nothing near its middle would be seen."""
LADDER = 1.6
"""Prompts grow by this factor: close enough that a knee between two of them is seen."""
QUIET_STEPS = 8
"""Steps of each batch that are left without a prompt among them."""
STEPS_PER_ARRIVAL = 6
"""Streams go on for so many tokens for every prompt that is to come among them."""
ROUNDS_WANTED = 4
"""A scene seen less often tells nothing of how much its time varies."""
LARGEST_BATCH = 128
SCENES_WORTH = 17
"""A round asks for about as much prefill as so many of the largest scenes."""
KV_SHARE = 0.6
"""Streams fill at most this much of the KV memory: with a prompt among them nothing is preempted."""
MARGIN_TOKENS = 150
"""What a stream holds beyond its prompt: what it writes, and the rest of its last block."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What scenes must keep to.

    `tokens_per_s` is how fast the engine prefills, `budget_s` the time for all rounds together. `kv_tokens`
    is how much context fits the engine's memory, where it tells.
    """

    tokens_per_s: float
    budget_s: float
    context_tokens: int
    kv_tokens: int | None = None

    @property
    def room_tokens(self) -> int:
        """So much context may be held at once."""
        return int((self.kv_tokens or 2**31) * KV_SHARE)

    @property
    def tokens_per_scene(self) -> int:
        """So much prefill a scene may ask for, so that a round of all scenes is over in time."""
        affordable = self.tokens_per_s * self.budget_s / ROUNDS_WANTED / SCENES_WORTH
        return int(max(min(affordable, self.room_tokens), 4 * SMALLEST_TOKENS))

    @property
    def longest_prompt_tokens(self) -> int:
        """The longest prompt that is asked for."""
        return min(self.tokens_per_scene, self.context_tokens - QUIET_STEPS - 2)


@dataclass(frozen=True, slots=True)
class Scene:
    """`streams` sequences decode, each with `context_tokens`; `arrivals` are prompts that come among them.

    Without streams the prompts come alone, one after the other.
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


def plan_scenes(limits: Limits) -> tuple[Scene, ...]:
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


def _batches(limits: Limits, prompts: tuple[int, ...]) -> Iterator[Scene]:
    """Every batch at contexts from short to the longest it can afford.

    Prompts of all sizes come in turn among the shortest and the longest; in between streams are alone.
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


def _contexts(limits: Limits, streams: int) -> Iterator[int]:
    """From a short context to a long one, as far as so many streams can have them."""
    most_tokens = min(limits.tokens_per_scene // streams, limits.room_tokens // streams - MARGIN_TOKENS)
    if most_tokens < SHORT_CONTEXT_TOKENS:
        return
    long_tokens = min(most_tokens, limits.longest_prompt_tokens // 2)
    tokens = SHORT_CONTEXT_TOKENS
    yield tokens
    while (tokens := tokens * CONTEXT_LADDER) * 2 <= long_tokens:
        yield tokens
    if long_tokens >= 2 * SHORT_CONTEXT_TOKENS:
        yield long_tokens
