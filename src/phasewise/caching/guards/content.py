"""Content: a word that stands in one question alone, and is no filler, changes what is asked.

The most general of the guards, and the only one that may be wrong often: what changed may be a mere synonym.
"""

from __future__ import annotations

from phasewise.caching.guards.reading import Reading, either_alone
from phasewise.caching.guards.roles import parts_differ
from phasewise.caching.guards.voice import voices_agree


def contents_differ(one: Reading, other: Reading) -> str | None:
    """The words of content that only one of two questions has, or the prepositions they stand behind."""
    if told := either_alone(one.content_set, other.content_set):
        return told
    return None if voices_agree(one, other) else parts_differ(one, other)
