"""Requests drafted from a shape, a trace or written prompts; the plan adds their index and their time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from math import inf
from random import Random

from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.benchmark.workload.prompts import (
    TEMPLATE_TOKENS,
    WORDS,
    Message,
    TextRuler,
    opened,
    stream,
    word_count,
    write_messages,
    write_text,
)
from phasewise.benchmark.workload.traces import Trace, TracedRequest
from phasewise.core.errors import ConfigError, UsageError


@dataclass(frozen=True, slots=True)
class Written:
    """Prompts to be sent as they are, however long that is, and how much is to be answered.

    `about` says in a few words what is asked. Only outputs have a length that can be chosen.
    """

    about: str
    prompts: tuple[str, ...] = field(repr=False)
    output_tokens: int | Lengths

    def __post_init__(self) -> None:
        if not self.prompts or not all(self.prompts):
            raise ConfigError("a workload without prompts", hint="write at least one, and none that is empty")

    @property
    def output(self) -> Lengths:
        """How long outputs are, whichever way it was said."""
        tokens = self.output_tokens
        return tokens if isinstance(tokens, Lengths) else Lengths.fixed(tokens)


CHARACTERS_PER_TOKEN = 4
"""Of written text, roughly; only a tokenizer knows exactly."""
OWN_WORDS = 3
"""How many words of its own a written prompt begins with in a run that has an opening."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to send: at a time (open loop), or when a slot is free (`at_s` is None).

    A later turn of a conversation has `turn` above 0. Its `messages` are the new user message alone, which
    follows the history with the engine's real replies; it is due `think_s` after the previous reply ended,
    and its `prompt_tokens` are an estimate of the whole.

    The first `shared_words` of the messages also begin an earlier request. The first `kept_words` of the last
    message belong to blocks that others may share: fitting does not change them. Fitting does not change a
    request `as_written` at all.
    """

    index: int
    at_s: float | None
    messages: tuple[Message, ...]
    max_tokens: int
    prompt_tokens: int
    turn: int = 0
    think_s: float = 0.0
    shared_words: int = 0
    kept_words: int = 0
    as_written: bool = False

    @property
    def fresh_words(self) -> int:
        """Words that no earlier request of the plan had at this position.

        A word is one token or more: of a prompt of n tokens, at most n minus these can come from a cache that
        only this run has filled.
        """
        return max(sum(word_count(message.content) for message in self.messages) - self.shared_words, 0)


def drafts_of_shape(shape: Shape, ruler: TextRuler, seed: int, opening: str) -> Iterator[PlannedRequest]:
    """Endless requests of a shape."""
    sizes, words, choices = stream(seed, "sizes"), stream(seed, "words"), stream(seed, "choices")
    used: set[int] = set()
    while True:
        prompt_tokens, max_tokens = shape.prompt.draw(sizes), shape.output.draw(sizes)
        # Always drawn, so that nothing else depends on whether and which prefixes are shared.
        shares = choices.random() < shape.shared_share and shape.shared_prefix_tokens > 0
        chosen = choices.randrange(shape.shared_prefixes)
        if not shares:
            messages = _open(write_messages(prompt_tokens, None, words, ruler), opening)
            yield PlannedRequest(
                0, None, messages, max_tokens, prompt_tokens, shared_words=_opening_words(messages, opening)
            )
            continue
        system = write_text(ruler.words(shape.shared_prefix_tokens), stream(seed, "shared prefix", chosen))
        messages = _open(write_messages(prompt_tokens, system, words, ruler), opening)
        yield PlannedRequest(
            0,
            None,
            messages,
            max_tokens,
            # A short prompt still has the whole system prompt.
            max(prompt_tokens, shape.shared_prefix_tokens + ruler.template_tokens + 1),
            shared_words=word_count(system) if chosen in used else _opening_words(messages, opening),
        )
        used.add(chosen)


def drafts_of_trace(
    trace: Trace, requests: Iterable[TracedRequest], ruler: TextRuler, seed: int, opening: str
) -> Iterator[PlannedRequest]:
    """The given requests of a trace, in order, with text in which equal blocks are equal words.

    A block's words follow from the seed and its id alone. The chat template's tokens are taken off the end
    of the prompt, but never off a full block, which others may share. Such a prompt is a few tokens longer
    than the trace's.
    """
    block_words = max(ruler.words(trace.block_tokens), 1)
    seen = _SeenBlocks(block_words)
    for number, request in enumerate(requests):
        kept_blocks = min(request.prompt_tokens // trace.block_tokens, len(request.block_ids))
        kept_words = kept_blocks * block_words
        words = max(ruler.words(request.prompt_tokens - ruler.template_tokens), kept_words, 1)
        text = opened(_traced_text(block_words, request, words, seed, number), opening)
        messages = (Message("user", text),)
        yield PlannedRequest(
            0,
            None,
            messages,
            max(request.output_tokens, 1),
            max(request.prompt_tokens, max(kept_blocks * trace.block_tokens, 1) + ruler.template_tokens),
            shared_words=max(seen.walk(request.block_ids, words), _opening_words(messages, opening)),
            kept_words=kept_words,
        )


def drafts_of_written(written: Written, seed: int, opening: str) -> Iterator[PlannedRequest]:
    """Written prompts, without end: shuffled once, then repeated in that order.

    A prompt is sent as it is. In a run with an opening a line precedes it, `Note: <the run's words> <the
    request's own>.`, because prompts repeat and a cached prompt would hide what is to be measured. It must be
    the first line: text after the prompt would leave its prefix warm. It names nothing and asks for nothing,
    so that models answer as they do without it.
    """
    order = stream(seed, "order").sample(written.prompts, len(written.prompts))
    sizes, words = stream(seed, "sizes"), stream(seed, "words")
    for number, prompt in enumerate(cycle(order)):
        # Always drawn, so that outputs are as long with an opening as without one.
        own = write_text(OWN_WORDS, words)
        text = f"Note: {opening} {own}.\n\n{prompt}" if opening else prompt
        again = word_count(prompt) if number >= len(order) else 0
        yield PlannedRequest(
            0,
            None,
            (Message("user", text),),
            written.output.draw(sizes),
            written_tokens(text),
            shared_words=1 + word_count(opening) if opening else again,
            as_written=True,
        )


def written_tokens(text: str) -> int:
    """About how many tokens a text has as one user's message."""
    return max(len(text) // CHARACTERS_PER_TOKEN, word_count(text)) + TEMPLATE_TOKENS


@dataclass(slots=True)
class _SeenBlocks:
    """The prefixes of all requests so far, as a tree whose edges are block ids."""

    block_words: int
    _children: dict[tuple[int, int], int] = field(default_factory=dict)

    def walk(self, block_ids: tuple[int, ...], words: int) -> int:
        """Add a prompt; returns how many of its words at most were a known prefix."""
        node = known = 0
        for block in block_ids:
            size = len(self._children)
            node = self._children.setdefault((node, block), size + 1)
            known += len(self._children) == size
        return min(known * self.block_words, words)


def _traced_text(block_words: int, request: TracedRequest, words: int, seed: int, number: int) -> str:
    drawn: list[str] = []
    for block in request.block_ids:
        drawn += stream(seed, "block", block).choices(WORDS, k=block_words)
    if len(drawn) < words:
        drawn += stream(seed, "request", number).choices(WORDS, k=words - len(drawn))
    return " ".join(drawn[:words])


def _open(messages: tuple[Message, ...], opening: str) -> tuple[Message, ...]:
    first, *others = messages
    return (Message(first.role, opened(first.content, opening)), *others)


def _opening_words(messages: tuple[Message, ...], opening: str) -> int:
    return min(word_count(opening), word_count(messages[0].content))


# --- Conversations of several turns: what a user writes next, and how long that takes.


@dataclass(frozen=True, slots=True)
class Conversations:
    """Every first request is followed by others that build on it, `turns` in all.

    A user reads and writes for `think_s` on average, exponentially distributed, after a reply has ended.
    """

    turns: int
    think_s: float

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise UsageError(f"the number of turns is {self.turns}", hint="use 1 or more")
        if not 0 <= self.think_s < inf:
            raise UsageError(f"the think time is {self.think_s:g} s", hint="use 0 or more")


def later_turns(
    conversations: Conversations,
    shape: Shape,
    first: PlannedRequest,
    budget_tokens: int,
    rng: Random,
    ruler: TextRuler,
) -> Iterator[PlannedRequest]:
    """The turns after the first, as long as prompt and output fit into `budget_tokens`.

    The length of a turn's prompt is an estimate. A reply may be tokenized differently than it was generated,
    so every turn keeps one more template's length of the budget free.
    """
    before = first
    for turn in range(1, conversations.turns):
        user_tokens = shape.follow_up.draw(rng)
        text = write_text(ruler.words(user_tokens), rng)
        max_tokens = shape.output.draw(rng)
        think_s = rng.expovariate(1 / conversations.think_s) if conversations.think_s else 0.0
        prompt_tokens = before.prompt_tokens + before.max_tokens + user_tokens + ruler.template_tokens
        if prompt_tokens + max_tokens > budget_tokens - turn * ruler.template_tokens:
            return
        before = PlannedRequest(0, None, (Message("user", text),), max_tokens, prompt_tokens, think_s=think_s)
        yield before
