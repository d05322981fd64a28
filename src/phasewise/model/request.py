"""Requests as the policies see them: who asks, for what, how urgent, how large. Never what was said."""

from __future__ import annotations

from enum import StrEnum

from phasewise.model.limits import NO_LIMITS, Limits
from phasewise.model.noun import noun

BYTES_PER_TOKEN = 4
"""A rule of thumb for sizing a prompt before any tokenizer has seen it; only ever used to compare loads."""
DEFAULT_MAX_WAIT_S = 10.0
"""How long a request waits for room on a worker before it is turned away."""


class Endpoint(StrEnum):
    """The OpenAI endpoints that engines work for. All but embeddings write an answer token by token."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"

    @property
    def generates(self) -> bool:
        """Whether answers have a decode phase."""
        return self is not Endpoint.EMBEDDINGS


@noun
class GenerationRequest:
    """One request for an engine's work, without its text.

    `key_id` is what its key's limits are counted under, `max_wait_s` how long it may wait for room.
    `prefix_hashes` tell equal beginnings of prompts, block after block (model/prefix_hashes.py). One that is
    `splittable` may have its prompt computed on another worker than its answer. `media_bytes` of
    `prompt_bytes` are pictures and sound, beyond what their tokens are worth in text.
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
    slo_class: str = "default"
    lora: str | None = None
    prefix_marks: tuple[str, ...] = ()
    choices: int = 1
    text_marks: tuple[str, ...] = ()
    key_id: str = ""
    limits: Limits = NO_LIMITS
    max_wait_s: float = DEFAULT_MAX_WAIT_S
    prefix_hashes: tuple[int, ...] = ()
    splittable: bool = False
    media_bytes: int = 0

    @property
    def text_bytes(self) -> int:
        """What of the prompt tokens go by."""
        return self.prompt_bytes - self.media_bytes

    @property
    def estimated_prompt_tokens(self) -> int:
        """The prompt's size before a tokenizer has seen it."""
        return max(1, self.text_bytes // BYTES_PER_TOKEN)
