"""What was observed of engines and of KV transfers between them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.core.kv_transfer import KvProof, kv_proof
from phasewise.core.worker import Role


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine's answers; None where it reports nothing.

    `silence` says why it is not ready. `models` are the names it serves, `wanted_model` is the one in the
    file, `loaded_from` is what it was loaded from.
    """

    name: str
    role: Role
    wanted_model: str
    silence: str | None = None
    models: tuple[str, ...] = ()
    loaded_from: str | None = None
    block_tokens: int | None = None
    cache_dtype: str | None = None
    has_connector: bool | None = None
    recomputes_on_failure: bool | None = None

    @property
    def ready(self) -> bool:
        """Whether it answered."""
        return self.silence is None


class SideChannel(StrEnum):
    """What answered at the address that a prefill engine gives for its KV."""

    ANSWERS = "answers"
    NOBODY = "nobody listens"
    SILENT = "no answer"
    STRANGER = "something else listens"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class TrialFacts:
    """One KV transfer of our own prompt; what was not reached is None.

    `ended` is false if time ran out. `prefill_problem` and `decode_problem` say how a side failed.
    `moved_tokens`, `computed_tokens`, `moved_bytes` and `moving_s` are the growth of the decode engine's own
    counters during the trial, which may include other requests. `computing_s` is how long the prefill engine
    took for the prompt, `first_token_s` how long the decode engine took once it had the KV. `same_text` is
    whether the prefill engine alone writes the same text.
    """

    prefill: str
    decode: str
    ended: bool = True
    prefill_problem: str | None = None
    gave_ticket: bool = False
    side_address: str | None = None
    side_channel: SideChannel = SideChannel.NOT_TRIED
    decode_problem: str | None = None
    decode_timed_out: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    moved_tokens: float | None = None
    computed_tokens: float | None = None
    moved_bytes: float | None = None
    moving_s: float | None = None
    kv_transfer_s: float | None = None
    computing_s: float | None = None
    first_token_s: float | None = None
    same_text: bool | None = None

    @property
    def pair(self) -> str:
        """The two engines, in the direction of the KV."""
        return f"{self.prefill} -> {self.decode}"

    @property
    def proof(self) -> KvProof | None:
        """What the decode engine's counters show about its answer; None without an answer."""
        if not self.ended or not self.gave_ticket or self.decode_problem is not None:
            return None
        if self.prompt_tokens is None:
            return KvProof.UNCOUNTED
        return kv_proof(self.moved_tokens, self.computed_tokens, self.prompt_tokens - self.cached_tokens)

    @property
    def proven(self) -> bool:
        """Whether the decode engine answered and its counters show that the prompt's KV was fetched."""
        return self.proof is KvProof.MOVED

    @property
    def bytes_per_s(self) -> float | None:
        """How fast the KV moved, where the engine counts it."""
        if not self.moved_bytes or not self.moving_s:
            return None
        return self.moved_bytes / self.moving_s


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """Everything observed of a fleet."""

    engines: tuple[EngineFacts, ...]
    trials: tuple[TrialFacts, ...] = ()
