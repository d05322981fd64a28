"""Reads a pool's own engine flags as the engine does: a later one wins, dashes equal underscores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from phasewise.fleet.config.source import Place


class Flag(NamedTuple):
    """A flag's value, and the flag's position in the list."""

    value: str
    position: int


def find_flag(flags: Sequence[str], *names: str) -> Flag | None:
    """The last of the flags with one of these names, written `--name value` or `--name=value`."""
    found = None
    for position, word in enumerate(flags):
        name, joined, value = word.partition("=")
        if _plain(name) in names:
            found = Flag(value if joined else next(iter(flags[position + 1 : position + 2]), ""), position)
    return found


def find_dotted(flags: Sequence[str], name: str) -> int | None:
    """The position of a flag that sets one key of a setting, as in `--name.key value`."""
    dotted = (
        place for place, word in enumerate(flags) if _plain(word.partition(".")[0]) == name and "." in word
    )
    return next(dotted, None)


def flag_place(pool_number: int, position: int) -> Place:
    """The flag's path in the file."""
    return ("pools", pool_number, "engine_flags", position)


def json_object(value: str) -> dict[str, Any] | None:
    """A flag's value as a JSON object (None: it is something else)."""
    try:
        parsed = json.loads(value)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _plain(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name
