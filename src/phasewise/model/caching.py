"""Answers that were kept, what a look for one came to, and what is learned of matches by meaning.

Which requests may be answered so, and which matches are safe, is caching/'s to say.
"""

from __future__ import annotations

from enum import StrEnum

from phasewise.model.noun import noun

Vector = bytes
"""An embedding of unit length as little-endian float32: kept, sent and compared as it is."""


class CacheResult(StrEnum):
    """What a request had of the cache: a closed vocabulary, used in headers, metrics and timelines.

    `shadow_*`: would have been served, were the cache not in shadow mode. `explored`: a stored answer was
    near, but the model was asked so that something is learned of such matches. `guarded`: one was near and a
    guard forbade it.
    """

    HIT_EXACT = "hit_exact"
    HIT_SEMANTIC = "hit_semantic"
    JOINED = "joined"
    SHADOW_EXACT = "shadow_exact"
    SHADOW_SEMANTIC = "shadow_semantic"
    EXPLORED = "explored"
    GUARDED = "guarded"
    MISS = "miss"
    BYPASS = "bypass"

    @property
    def served(self) -> bool:
        """Whether the answer came from the cache."""
        return self in {CacheResult.HIT_EXACT, CacheResult.HIT_SEMANTIC, CacheResult.JOINED}


class Bypass(StrEnum):
    """Why a request is not answered from the cache, nor its answer kept."""

    NOT_CHAT = "not_chat"
    TOOLS = "tools"
    MEDIA = "media"
    TEMPERATURE = "temperature"
    SEED = "seed"
    SEVERAL_ANSWERS = "several_answers"
    LOGPROBS = "logprobs"
    OPTED_OUT = "opted_out"
    SHORT_FOLLOW_UP = "short_follow_up"
    NO_USER_TURN = "no_user_turn"
    TOO_LONG = "too_long"
    LARGE_NUMBER = "large_number"


@noun
class StoredAnswer:
    """A complete answer, whom it may be given to, and what it took to make.

    `key` stands for the whole request, `scope` for all of it but the last user turn (the tenant and the
    namespace are in both), `question` is that turn. `start_s` and `stream_s` are what prefill and decode took
    the client who asked first: its time to first token and the rest; None where nobody saw. `stop_reason` is
    what the model stopped at, of the texts and tokens that the request named.
    """

    key: str
    scope: str
    tenant: str
    namespace: str
    model: str
    question: str
    text: str
    made_unix_s: float
    expires_unix_s: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    start_s: float | None = None
    stream_s: float | None = None
    stop_reason: int | str | None = None
    tags: tuple[str, ...] = ()
    vector: Vector | None = None


@noun
class Neighbour:
    """A stored answer of the same scope, and how near its question is: the cosine of both."""

    answer: StoredAnswer
    similarity: float


@noun
class Purge:
    """Which answers to forget: those of all that is named here. All of the store's if nothing is named."""

    tenant: str | None = None
    namespace: str | None = None
    tag: str | None = None

    def names(self, answer: StoredAnswer) -> bool:
        """Whether this answer is to be forgotten."""
        return (
            self.tenant in {None, answer.tenant}
            and self.namespace in {None, answer.namespace}
            and (self.tag is None or self.tag in answer.tags)
        )


@noun
class Lesson:
    """The verified outcome of one match: would the stored answer have been right?

    `domain` is whom it teaches (a tenant, a namespace and a model: never anybody else), `cell` the
    neighbourhood it was counted in, `rewrite` a keyed hash of how the two questions differed. `basis` names
    the judge and the rules that it was made under: it says nothing of what others would find. No text.
    """

    domain: str
    cell: str
    rewrite: str
    right: bool
    at_unix_s: float
    basis: str = ""


@noun
class CacheNote:
    """What a request had of the cache, for its timeline.

    `reason` tells why it was not answered from there (a bypass, a guard, what was not proven yet).
    `look_up_s` is the whole wait, `embed_s` the embedding's part of it. `saved_start_s` and `saved_stream_s`
    are what prefill and decode had taken when the answer was made: spared by a hit, and what shadow mode
    would have spared.
    """

    result: CacheResult
    reason: str | None = None
    similarity: float | None = None
    age_s: float | None = None
    look_up_s: float = 0.0
    embed_s: float | None = None
    saved_start_s: float | None = None
    saved_stream_s: float | None = None
    saved_tokens: int | None = None
