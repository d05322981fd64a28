"""Conversations of several turns: what a user writes next, and how long that takes.

The history with the engine's real replies is put before it by the load generator, which alone has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random

from phasewise.errors import ConfigError
from phasewise.workload.drafts import Draft
from phasewise.workload.presets import Shape
from phasewise.workload.prompts import TEMPLATE_TOKENS, Message, word_count, write_text


@dataclass(frozen=True, slots=True)
class Conversations:
    """Every first request is followed by others that build on it, `turns` in all.

    A user reads and writes for `think_s` on average, exponentially spread, after a reply has ended.
    """

    turns: int
    think_s: float

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ConfigError(f"conversations of {self.turns} turns", hint="use 1 or more")
        if not 0 <= self.think_s < inf:
            raise ConfigError(f"{self.think_s:g} s to think", hint="use 0 or more")


def later_turns(
    conversations: Conversations, shape: Shape, first: Draft, room_tokens: int, rng: Random
) -> Iterator[Draft]:
    """The turns after the first, as long as prompt and output fit into `room_tokens`.

    What a turn's prompt comes to is an estimate. A reply may be read as other tokens than it was written in,
    so every turn keeps the length of a template more of the room free.
    """
    before = first
    for turn in range(1, conversations.turns):
        text = write_text(shape.follow_up.draw(rng), rng)
        max_tokens = shape.output.draw(rng)
        think_s = rng.expovariate(1 / conversations.think_s) if conversations.think_s else 0.0
        prompt_tokens = before.prompt_tokens + before.max_tokens + word_count(text) + TEMPLATE_TOKENS
        if prompt_tokens + max_tokens > room_tokens - turn * TEMPLATE_TOKENS:
            return
        before = Draft((Message("user", text),), max_tokens, prompt_tokens, think_s=think_s)
        yield before
