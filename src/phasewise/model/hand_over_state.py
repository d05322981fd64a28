"""What is known of hand-overs to one decode worker, for those who tell others of it."""

from __future__ import annotations

from phasewise.model.noun import noun


@noun
class HandOverState:
    """Tokens that the worker computed again, bytes that came, and how long ago a hand-over was last proven.

    `proven_ago_s` is None while none was. `failing` counts prefill workers whose last trial with it failed.
    """

    worker: str
    recomputed_tokens: int
    moved_bytes: int
    proven_ago_s: float | None
    failing: int
