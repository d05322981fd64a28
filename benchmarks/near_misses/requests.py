"""What a stream is made of."""

from __future__ import annotations

from dataclasses import dataclass

REPEAT, FRESH = "repeat", "fresh"
"""Kinds of request: the very text was asked before; nothing like it was."""


@dataclass(frozen=True)
class Request:
    """One question of a stream. Those of the same answer class have the same right answer."""

    text: str
    answer_class: str
    kind: str
    third: int
