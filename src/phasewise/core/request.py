"""Requests as the policies see them: tenant, endpoint, priority, limits and size, never the text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.core.value import value

BYTES_PER_TOKEN = 4
"""A rule of thumb for the size of a prompt before tokenization; only used to compare loads."""
DEFAULT_MAX_WAIT_S = 10.0
"""How long a request waits for a free slot before it is rejected."""


class Endpoint(StrEnum):
    """The endpoints that engines serve: OpenAI's, and Anthropic's messages; and one for all other paths."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    COUNT_TOKENS = "/v1/messages/count_tokens"
    FORWARDED = "forwarded paths"

    @property
    def generates(self) -> bool:
        """Whether answers have a decode phase."""
        return self not in _WITHOUT_DECODE

    @property
    def is_completion(self) -> bool:
        """Whether its answers can be disaggregated, resumed and cached."""
        return self in _COMPLETIONS


# Looking up a member of an enum takes ten times as long as a look-up in a set.
_WITHOUT_DECODE = frozenset({Endpoint.EMBEDDINGS, Endpoint.COUNT_TOKENS, Endpoint.FORWARDED})
_COMPLETIONS = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
WITH_KNOWN_FIELDS: tuple[Endpoint, ...] = tuple(
    endpoint for endpoint in Endpoint if endpoint is not Endpoint.FORWARDED
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key may use; None is no bound.

    Rates are buckets that hold a minute's worth and fill continuously: a key that was idle may use a
    minute's worth at once.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None

    @property
    def unlimited(self) -> bool:
        """Whether there is nothing to count."""
        return self == NO_LIMITS


NO_LIMITS = Limits()


@value
class GenerationRequest:
    """One request for an engine, without its text.

    `key_id` is what its key's limits are counted under, `max_wait_s` how long it may wait for a free slot.
    `weight` is its tenant's share of the slots when several tenants wait.
    `prefix_hashes` identify equal prompt prefixes, block by block (core/prefixes.py). All turns of a
    conversation have the same number in `conversation`; it is 0 where no other gateway has to know it. The
    prompt of a `splittable` request may be computed on another worker than its answer. `media_bytes` of
    `prompt_bytes` are images and audio, beyond what their tokens are worth in text. `workers` are the names
    of those that may serve it, None if all may.
    """

    request_id: str
    endpoint: Endpoint
    model: str
    arrived_s: float
    prompt_bytes: int
    max_output_tokens: int | None = None
    stream: bool = False
    tenant: str = "default"
    priority: int = 0
    weight: float = 1.0
    slo_class: str = "default"
    prefix_marks: tuple[str, ...] = ()
    choices: int = 1
    text_marks: tuple[str, ...] = ()
    key_id: str = ""
    limits: Limits = NO_LIMITS
    max_wait_s: float = DEFAULT_MAX_WAIT_S
    prefix_hashes: tuple[int, ...] = ()
    conversation: int = 0
    splittable: bool = False
    media_bytes: int = 0
    workers: frozenset[str] | None = None

    @property
    def text_bytes(self) -> int:
        """The part of the prompt that its token count is estimated from."""
        return self.prompt_bytes - self.media_bytes

    @property
    def estimated_prompt_tokens(self) -> int:
        """The prompt's size before tokenization."""
        return max(1, self.text_bytes // BYTES_PER_TOKEN)
