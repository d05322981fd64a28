"""What is to be asked, not yet when: requests as they follow from a shape, a trace or written prompts.

Numbering, times and ends are the plan's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import cycle

from phasewise.workload.presets import Shape
from phasewise.workload.prompts import (
    TEMPLATE_TOKENS,
    WORDS,
    Message,
    opened,
    word_count,
    write_messages,
    write_text,
)
from phasewise.workload.streams import stream
from phasewise.workload.traces import Trace, TracedRequest
from phasewise.workload.written import Written

CHARACTERS_PER_TOKEN = 4
"""Of written text, roughly; only a tokenizer knows."""
OWN_WORDS = 3
"""So many words of its own a written prompt begins with in a run that has an opening."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A request without its place in a run; its fields mean what they mean in the plan."""

    messages: tuple[Message, ...]
    max_tokens: int
    prompt_tokens: int
    shared_words: int = 0
    kept_words: int = 0
    think_s: float = 0.0
    as_written: bool = False


def drafts_of_shape(shape: Shape, seed: int, opening: str) -> Iterator[Draft]:
    """Requests of a shape, without end."""
    sizes, words, choices = stream(seed, "sizes"), stream(seed, "words"), stream(seed, "choices")
    used: set[int] = set()
    while True:
        prompt_tokens, max_tokens = shape.prompt.draw(sizes), shape.output.draw(sizes)
        # Drawn in any case, so that nothing else depends on whether and which prefixes are shared.
        shares = choices.random() < shape.shared_share and shape.shared_prefix_tokens > 0
        chosen = choices.randrange(shape.shared_prefixes)
        if not shares:
            messages = _open(write_messages(prompt_tokens, None, words), opening)
            yield Draft(messages, max_tokens, prompt_tokens, shared_words=_opening_words(messages, opening))
            continue
        system = write_text(shape.shared_prefix_tokens, stream(seed, "shared prefix", chosen))
        messages = _open(write_messages(prompt_tokens, system, words), opening)
        yield Draft(
            messages,
            max_tokens,
            # A short prompt has the whole system prompt all the same.
            max(prompt_tokens, _words(messages) + TEMPLATE_TOKENS),
            shared_words=word_count(system) if chosen in used else _opening_words(messages, opening),
        )
        used.add(chosen)


def drafts_of_trace(
    trace: Trace, requests: Iterable[TracedRequest], seed: int, opening: str
) -> Iterator[Draft]:
    """The given requests of a trace, in order, with text whose equal blocks are equal words.

    A block's words follow from the seed and its id alone. The chat template's tokens are taken off the end
    of the prompt, but never off a full block: others may share it. Such a prompt is a few tokens longer
    than the trace's.
    """
    seen = _SeenBlocks(trace.block_tokens)
    for number, request in enumerate(requests):
        kept_words = (
            min(request.prompt_tokens // trace.block_tokens, len(request.block_ids)) * trace.block_tokens
        )
        words = max(request.prompt_tokens - TEMPLATE_TOKENS, kept_words, 1)
        text = opened(_traced_text(trace, request, words, seed, number), opening)
        messages = (Message("user", text),)
        yield Draft(
            messages,
            max(request.output_tokens, 1),
            max(request.prompt_tokens, words + TEMPLATE_TOKENS),
            shared_words=max(seen.walk(request.block_ids, words), _opening_words(messages, opening)),
            kept_words=kept_words,
        )


def drafts_of_written(written: Written, seed: int, opening: str) -> Iterator[Draft]:
    """Written prompts, without end: shuffled once, then round and round in that order.

    A prompt is sent as it is. In a run with an opening a line stands before it, `Note: <the run's words> <the
    request's own>.`, as the same prompt comes again and again, and a cache that had it would answer for what
    is to be measured. It must be the first line: whatever stands behind the prompt leaves its prefix warm. It
    names nothing and asks for nothing, so that models answer as they do without it.
    """
    order = stream(seed, "order").sample(written.prompts, len(written.prompts))
    sizes, words = stream(seed, "sizes"), stream(seed, "words")
    for number, prompt in enumerate(cycle(order)):
        # Drawn in any case, so that outputs are as long with an opening as without one.
        own = write_text(OWN_WORDS, words)
        text = f"Note: {opening} {own}.\n\n{prompt}" if opening else prompt
        again = word_count(prompt) if number >= len(order) else 0
        yield Draft(
            (Message("user", text),),
            written.output.draw(sizes),
            written_tokens(text),
            shared_words=1 + word_count(opening) if opening else again,
            as_written=True,
        )


def written_tokens(text: str) -> int:
    """About how many tokens a text comes to as one user's message."""
    return max(len(text) // CHARACTERS_PER_TOKEN, word_count(text)) + TEMPLATE_TOKENS


@dataclass(slots=True)
class _SeenBlocks:
    """The prefixes that requests have begun with so far, as a tree whose edges are block ids."""

    block_tokens: int
    _children: dict[tuple[int, int], int] = field(default_factory=dict)

    def walk(self, block_ids: tuple[int, ...], words: int) -> int:
        """Add a prompt; how many of its words at most were a prefix before."""
        node = known = 0
        for block in block_ids:
            size = len(self._children)
            node = self._children.setdefault((node, block), size + 1)
            known += len(self._children) == size
        return min(known * self.block_tokens, words)


def _traced_text(trace: Trace, request: TracedRequest, words: int, seed: int, number: int) -> str:
    drawn: list[str] = []
    for block in request.block_ids:
        drawn += stream(seed, "block", block).choices(WORDS, k=trace.block_tokens)
    if len(drawn) < words:
        drawn += stream(seed, "request", number).choices(WORDS, k=words - len(drawn))
    return " ".join(drawn[:words])


def _open(messages: tuple[Message, ...], opening: str) -> tuple[Message, ...]:
    first, *others = messages
    return (Message(first.role, opened(first.content, opening)), *others)


def _opening_words(messages: tuple[Message, ...], opening: str) -> int:
    return min(word_count(opening), word_count(messages[0].content))


def _words(messages: tuple[Message, ...]) -> int:
    return sum(word_count(message.content) for message in messages)
