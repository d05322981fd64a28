"""Marks on a prompt's beginning that tell shared prefixes without telling the prompt.

A mark is a keyed hash of the first so many bytes: equal marks mean an equal beginning. The key never leaves
the process that made it, so a mark cannot be guessed back into text.
"""

from __future__ import annotations

from hashlib import blake2b

MARK_SIZES_BYTES = (512, 1024, 2048, 4096, 8192, 16384)


def prefix_marks(prompt: bytes, key: bytes) -> tuple[str, ...]:
    """One mark for each size that the prompt is at least as long as."""
    digest = blake2b(key=key, digest_size=5)
    marks: list[str] = []
    done = 0
    for size in MARK_SIZES_BYTES:
        if len(prompt) < size:
            break
        digest.update(prompt[done:size])
        marks.append(digest.copy().hexdigest())
        done = size
    return tuple(marks)
