"""Stored answers, and the outcome of a cache lookup."""

from __future__ import annotations

from enum import StrEnum

from phasewise.core.value import value

Vector = bytes
"""An embedding of unit length as little-endian float32: kept, sent and compared as it is."""


class CacheResult(StrEnum):
    """The outcome of a request's cache lookup: a closed vocabulary, used in headers, metrics and timelines.

    `hit_alias`: a judge found this request to ask the same as another one, whose answer is served.
    `shadow_*`: the cache would have served it, but runs in shadow mode. `explored`: a stored answer was near,
    but the model answered, and a judge decides whether the stored one would have served. `guarded`: a stored
    answer was near, but a guard rejected it.
    """

    HIT_EXACT = "hit_exact"
    HIT_ALIAS = "hit_alias"
    HIT_SEMANTIC = "hit_semantic"
    JOINED = "joined"
    SHADOW_EXACT = "shadow_exact"
    SHADOW_ALIAS = "shadow_alias"
    SHADOW_SEMANTIC = "shadow_semantic"
    EXPLORED = "explored"
    GUARDED = "guarded"
    MISS = "miss"
    BYPASS = "bypass"

    @property
    def found(self) -> bool:
        """Whether the answer came from the cache, or in shadow mode would have."""
        return self not in ("explored", "guarded", "miss", "bypass")

    @property
    def served(self) -> bool:
        """Whether the answer came from the cache."""
        return self.found and not self.startswith("shadow")


class Bypass(StrEnum):
    """Why a request skips the cache: it gets no stored answer, and its answer is not stored."""

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
    UNKNOWN_FIELD = "unknown_field"


@value
class StoredAnswer:
    """A complete answer, which requests may get it, and what it took to generate.

    `key` identifies the whole request, `scope` all of it but the last user turn (both contain the tenant and
    the namespace), `question` is that turn. `start_s` and `stream_s` are what prefill and decode took for the
    first client: its time to first token and the rest; None where they were not measured. `stop_reason` is
    which of the request's stop strings or stop tokens ended the answer.
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


@value
class Neighbour:
    """A stored answer of the same scope, and the cosine similarity of the two questions."""

    answer: StoredAnswer
    similarity: float


@value
class Purge:
    """Which answers to delete: those that match every field given here; all answers if none is given."""

    tenant: str | None = None
    namespace: str | None = None
    tag: str | None = None

    def names(self, answer: StoredAnswer) -> bool:
        """Whether this answer is to be deleted."""
        return (
            self.tenant in {None, answer.tenant}
            and self.namespace in {None, answer.namespace}
            and (self.tag is None or self.tag in answer.tags)
        )


@value
class CacheNote:
    """The outcome of a request's cache lookup, for its timeline.

    `reason` says why the cache did not answer (a bypass, a guard, a match that is not proven yet).
    `look_up_s` is the whole wait, `embed_s` the embedding's part of it. `saved_start_s` and `saved_stream_s`
    are what prefill and decode took when the answer was generated: a hit saves them, and shadow mode would
    have saved them.
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
