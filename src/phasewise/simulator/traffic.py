"""Traffic for a simulated fleet: what is asked, when, and what follows an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

_NUMBERED = 24
"""Bits of a key for a block's number; the others identify contents."""
_MASK = (1 << 38) - 1
_POSITIVE = 1 << 60


@dataclass(frozen=True, slots=True)
class Content:
    """Some text, by its length and an id: texts of the same id begin alike, up to the shorter one's end."""

    text: int
    tokens: int


Prompt = tuple[Content, ...]
"""What a prompt is made of, in order."""


def tokens_of(prompt: Prompt) -> int:
    """Its length."""
    return sum(content.tokens for content in prompt)


def block_keys(prompt: Prompt, block_tokens: int) -> list[int]:
    """A key for each full block: equal for two prompts as long as they begin alike."""
    keys: list[int] = []
    chain = end = 0
    for content in prompt:
        # Not the id itself: to Python's hash -1 and -2 are the same.
        chain = hash((chain, end, content.text + _POSITIVE)) & _MASK
        end += content.tokens
        first = chain << _NUMBERED
        # A block counts to the content in which it ends.
        keys.extend(range(first + len(keys), first + end // block_tokens))
    return keys


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """One request: what it asks, how long its answer is, and when it follows the answer before it.

    All turns of a conversation have the same number in `conversation`, 0 if they have none. With `keys` its
    blocks, and those of its answer, are known by these instead of its contents, one for each block of the
    engines: traces identify prompts so.
    """

    prompt: Prompt
    output_tokens: int
    think_s: float = 0.0
    tenant: str = "default"
    priority: int = 0
    conversation: int = 0
    keys: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """Turns of one client: each follows the answer to the one before, however long that took.

    A single request is a session of one turn. A client without an answer gives up.
    """

    at_s: float
    turns: tuple[SessionTurn, ...]


@dataclass(slots=True)
class SimulatedTraffic:
    """Sessions, in the order of their beginnings."""

    sessions: list[Session] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sessions.sort(key=attrgetter("at_s"))

    @property
    def turns(self) -> list[SessionTurn]:
        """All requests, if every answer comes."""
        return [turn for session in self.sessions for turn in session.turns]

    @property
    def requests(self) -> int:
        """How many requests it has, if every answer comes."""
        return sum(len(session.turns) for session in self.sessions)


def conversation(
    at_s: float, text: int, turns: Sequence[tuple[int, int, float]], system: Prompt = ()
) -> Session:
    """A session whose every prompt holds all that was asked and answered before.

    Each turn is what is asked and answered, in tokens, and for how long its client thinks before it.
    """
    made, length = [], 0
    for asked_tokens, answered_tokens, think_s in turns:
        length += asked_tokens
        prompt = (*system, Content(text, length))
        made.append(SessionTurn(prompt, answered_tokens, think_s, conversation=text))
        length += answered_tokens
    return Session(at_s, tuple(made))
