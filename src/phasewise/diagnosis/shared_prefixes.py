"""How much of the traffic's prompts had been seen before: what a prefix cache could have saved at best."""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.model.prefix_marks import MARK_SIZES_BYTES
from phasewise.model.timeline import Timeline


def shared_share(timelines: Sequence[Timeline]) -> float | None:
    """The share of prompt tokens that stood at the beginning of an earlier prompt; None if nobody marked any.

    Marks stand at fixed sizes, so the share is rounded down to them. Bytes are taken for tokens by each
    prompt's own ratio.
    """
    marked = [it for it in timelines if it.prefix_marks and it.prompt_tokens and it.prompt_bytes]
    if not marked:
        return None
    seen: set[str] = set()
    shared_tokens = total_tokens = 0.0
    for timeline in sorted(marked, key=lambda it: it.started_unix_s):
        tokens, prompt_bytes = timeline.prompt_tokens or 0, timeline.prompt_bytes or 1
        known = [
            size for size, mark in zip(MARK_SIZES_BYTES, timeline.prefix_marks, strict=False) if mark in seen
        ]
        total_tokens += tokens
        shared_tokens += tokens * min(1.0, max(known, default=0) / prompt_bytes)
        seen.update(timeline.prefix_marks)
    return shared_tokens / total_tokens
