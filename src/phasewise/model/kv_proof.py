"""What a decode engine's counters say of a prompt that was handed over to it. Reading them is others'."""

from __future__ import annotations

from enum import StrEnum

from phasewise.model.noun import noun


class KvProof(StrEnum):
    """Where a prompt's KV came from, as far as counters can tell."""

    MOVED = "moved"
    """So much was fetched, and too little computed for the prompt to be among it."""
    NOT_MOVED = "not_moved"
    """Less was fetched than the prompt holds."""
    HIDDEN = "hidden"
    """Others had as much fetched and as much computed meanwhile: the prompt may be among either."""
    UNCOUNTED = "uncounted"
    """The engine tells nobody where its prompts' KV comes from."""


@noun
class KvGrowth:
    """By how much an engine's counters grew between two looks, by whomever; None where it does not count."""

    moved_tokens: float | None = None
    computed_tokens: float | None = None
    moved_bytes: float | None = None
    moving_s: float | None = None

    def proof_of(self, prompt_tokens: int) -> KvProof:
        """What became of a prompt that ended meanwhile, with so many tokens that the engine did not have."""
        if self.moved_tokens is None and self.computed_tokens is None:
            return KvProof.UNCOUNTED
        if (self.moved_tokens or 0.0) < max(prompt_tokens, 1):
            return KvProof.NOT_MOVED
        return KvProof.MOVED if (self.computed_tokens or 0.0) < prompt_tokens else KvProof.HIDDEN
