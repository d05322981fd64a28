"""Takes out of a text what a published report must not hold: addresses, paths, names of hosts and users."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_PATTERNS = (
    (re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://[^\s'\"<>)]+", re.IGNORECASE), "(address)"),
    (re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){0,8}"), "(address)"),
    (re.compile(r"(?<![\w./~])~?(?:/[\w.@+~-]{1,255}){1,40}/?"), "(path)"),
    (re.compile(rf"(?<![\w.])(?:{_OCTET}\.){{3}}{_OCTET}(?![\w.]*\w)(?::\d{{1,5}})?"), "(address)"),
    (re.compile(r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE), "(address)"),
    (re.compile(r"\b[a-z][\w-]{0,62}(?:\.[\w-]{1,63}){0,8}:\d{2,5}\b", re.IGNORECASE), "(address)"),
)
"""Every repetition is bounded, so that no text takes long."""
SHORTEST_NAME = 3
"""Shorter names of hosts and users are parts of ordinary words."""


def without_addresses(text: str) -> str:
    """A text without addresses and paths."""
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


@dataclass(frozen=True, slots=True)
class PrivateNames:
    """The names of this machine and of its user, which no report may hold."""

    names: tuple[str, ...] = ()

    def taken_out(self, text: str) -> str:
        """A text from outside without addresses, paths and these names, on one line."""
        text = without_addresses(" ".join(text.split()))
        for name in sorted(
            {name for name in self.names if len(name) >= SHORTEST_NAME}, key=len, reverse=True
        ):
            text = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", "(private)", text, flags=re.IGNORECASE)
        return text
