"""Reads a pool's own engine flags as the engine will: a later one wins, dashes and underscores are alike.

What a flag means is for those who ask for it.
"""

from __future__ import annotations

from collections.abc import Sequence

KV_TRANSFER_FLAG = "--kv-transfer-config"


def flag_value(flags: Sequence[str], *names: str) -> str | None:
    """The value of the last of these flags, written `--name value` or `--name=value`; None without one."""
    value = None
    for place, word in enumerate(flags):
        name, joined, rest = word.partition("=")
        if _plain(name) in names:
            value = rest if joined else next(iter(flags[place + 1 : place + 2]), "")
    return value


def has_flag(flags: Sequence[str], name: str) -> bool:
    """Whether the flag stands there, in any of the engine's ways to write it (`--name.key value` too)."""
    return any(_plain(word.partition("=")[0].partition(".")[0]) == name for word in flags)


def _plain(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name
