"""Prompts of about so many tokens, as English-like words drawn at random.

A text's first words are drawn too, so no two texts share a prefix that a cache could use, unless the prefix
is given. Only an engine's tokenizer knows the exact length: it is asked elsewhere, and `resized` obeys.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

# Common words that usual tokenizers keep whole: with the space before it, each is one token.
WORDS = tuple(
    """
    the of and to in is was for on that with as are at by from this which have had not but were they one all
    been their more when who will no if out so up about into than them can only other time new some could
    these two may first then do any like my now over such our man even most made after also did many off
    before must well back through years much where your way down should because long each just state people
    those how too little good make world very year still see own work men day get here between both under
    never same another know while last might us great old come since against go came right used take three
    place use house without small found home part once general school high upon number city night water
    light road river hand eye face room door side book line end order form case group point plan course
    system program question government company interest power change service money business history study
    field class table music paper story letter word body voice heart child mother father friend student
    teacher doctor north south east west summer winter spring morning evening week month hour minute land
    country street town island mountain tree garden bird horse fish stone iron gold silver glass wood fire
    wind rain snow cold warm strong dark young early late clear true free full open short large human local
    national public social common simple special single possible certain natural final
    """.split()  # noqa: SIM905 - a list of 255 strings reads worse
)
SHORT_WORDS = tuple(word for word in WORDS if len(word) <= 3)
"""A tokenizer that splits words splits the long ones: with these a length is met to the token."""
FINE_TOKENS = 4
TEMPLATE_TOKENS = 12
"""What a chat template usually adds around one user's message; a guess until a tokenizer is asked."""

OPENING_WORDS = 6
"""255 words to the sixth power: two runs' openings meet once in 270 million million."""


@dataclass(frozen=True, slots=True)
class TextRuler:
    """How an engine counts tokens: of a word of this module, on average, and of the chat template around one
    user's message.
    """

    tokens_per_word: float = 1.0
    template_tokens: int = TEMPLATE_TOKENS

    def words(self, tokens: int) -> int:
        """How many words come to this many tokens."""
        return round(tokens / self.tokens_per_word)


A_WORD_A_TOKEN = TextRuler()
"""As usual tokenizers count, and until one is asked."""

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


def write_text(words: int, rng: Random) -> str:
    """So many words, at least one."""
    return " ".join(rng.choices(WORDS, k=max(words, 1)))


def write_opening(rng: Random) -> str:
    """Words for one run's prompts to begin with, so that no earlier run's cached prefixes fit them.

    They take the place of a prompt's first words instead of standing before them: the prompt stays as long
    as it was, so a cold run and a warm one of the same seed differ in what is cached and in nothing else.
    """
    return write_text(OPENING_WORDS, rng)


def opened(text: str, opening: str) -> str:
    """The text with its first words replaced by the opening's, as far as it has any."""
    if not opening:
        return text
    words = opening.split(" ")
    had = text.split(" ", len(words))
    return " ".join((*words[: len(had)], *had[len(words) :]))


def word_count(text: str) -> int:
    """How many words a text of this module has."""
    return text.count(" ") + 1 if text else 0


def resized(text: str, by_tokens: int, rng: Random, kept_words: int = 0) -> str:
    """The text with words added to, or taken from, its end; the first `kept_words` stay, and one always."""
    if by_tokens > FINE_TOKENS:
        return f"{text} {write_text(by_tokens, rng)}"
    if by_tokens > 0:
        return " ".join((text, *rng.choices(SHORT_WORDS, k=by_tokens)))
    words = text.split(" ")
    return " ".join(words[: max(len(words) + by_tokens, kept_words, 1)])


def write_messages(
    prompt_tokens: int, shared_prefix: str | None, rng: Random, ruler: TextRuler = A_WORD_A_TOKEN
) -> tuple[Message, ...]:
    """A conversation of about `prompt_tokens` tokens in all, with a given system prompt or none."""
    shared_words = 0 if shared_prefix is None else word_count(shared_prefix)
    user = Message("user", write_text(ruler.words(prompt_tokens - ruler.template_tokens) - shared_words, rng))
    return (user,) if shared_prefix is None else (Message("system", shared_prefix), user)


# --- Random numbers by name: everything of a plan follows from its seed, each thing from a stream of its own.


def stream(seed: int, *names: object) -> Random:
    """The numbers that belong to a name; how many are drawn under one does not change another's."""
    return Random(" ".join(map(str, (seed, *names))))  # noqa: S311 - a workload to be repeated, no secret
