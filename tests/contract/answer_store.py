"""What tests of both stores of answers share: vectors with known cosines, answers, lessons, biting names."""

from __future__ import annotations

import math
import struct
import time

from phasewise.core.caching import StoredAnswer

DIMENSIONS = 4
SPACE = "model-4d"
HOUR_S = 3600.0
ASKED_DEG = 0.0
BITING_NAMES = [
    "a", "A", "b", "a|b", "a b", " a", "a,b", "*", "a*", "}", "{a}", "a}|{b", "$vector", "@scope:{a}", "-a",
    "\\", '"', "'", "the", "9", "ä", "名", "", "_", "__", "_61", "_empty", "a:b", "%", "a\nb", "a\r\nb", "\0",
]  # fmt: skip
"""Names that mean something to a query, to a pattern, to a list or to nobody."""


def vector(angle_deg, dimensions=DIMENSIONS):
    """A vector whose cosine with `vector(ASKED_DEG)` is the angle's."""
    angle = math.radians(angle_deg)
    return struct.pack(f"<{dimensions}f", math.cos(angle), math.sin(angle), *[0.0] * (dimensions - 2))


def answer(key="k1", scope="s1", *, lives_s=HOUR_S, angle_deg=None, **fields):
    now_s = time.time()
    return StoredAnswer(
        **{
            "key": key,
            "scope": scope,
            "tenant": "t1",
            "namespace": "n1",
            "model": "m",
            "question": f"question of {key}",
            "text": f"text of {key}",
            "made_unix_s": now_s,
            "expires_unix_s": now_s + lives_s,
            "vector": None if angle_deg is None else vector(angle_deg),
            **fields,
        }
    )


async def all_lessons(store):
    """All lessons from the beginning, page by page."""
    reported, place, before = [], "", None
    while place != before:
        before = place
        place, page = await store.lessons(before)
        reported += page
    return reported


def lesson(number=1):
    """Bytes that a store keeps as they are, whatever they mean."""
    return b"\xff\0{\r\n%d" % number
