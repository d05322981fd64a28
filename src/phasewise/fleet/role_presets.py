"""What the levers of a pool are set to by its role where the file leaves them out. Pure.

A prefill engine wants whole prompts in a step and few of them; a decode engine many streams and short steps.
What a lever then sets stands in levers.py; docs/reference/fleet-file.md has these values in a table.
"""

from __future__ import annotations

from phasewise.config import Levers, Pool
from phasewise.model.worker import Role

PRESETS = {
    Role.MIXED: Levers(),
    Role.PREFILL: Levers(prefill_chunk_tokens=8192, max_running=16),
    Role.DECODE: Levers(prefill_chunk_tokens=512, max_running=256),
}


def levers_of(pool: Pool) -> Levers:
    """The pool's levers, with its role's presets where it says nothing."""
    preset, own = PRESETS[pool.role], pool.levers
    chunk_tokens, running = preset.prefill_chunk_tokens, preset.max_running
    # The engine refuses a step that could not hold one token of each running request.
    if chunk_tokens is not None and own.max_running is not None:
        chunk_tokens = max(chunk_tokens, own.max_running)
    if running is not None and own.prefill_chunk_tokens is not None:
        running = min(running, own.prefill_chunk_tokens)
    return own.model_copy(
        update={
            "prefill_chunk_tokens": own.prefill_chunk_tokens or chunk_tokens,
            "max_running": own.max_running or running,
        }
    )
