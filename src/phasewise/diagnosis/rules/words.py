"""How figures are written in facts."""

from __future__ import annotations


def ms(seconds: float | None) -> str:
    """A duration as a person reads it."""
    if seconds is None:
        return "unknown"
    return f"{seconds * 1000:.0f} ms" if abs(seconds) < 10 else f"{seconds:.1f} s"


def percent(share: float) -> str:
    """A share in hundredths."""
    return f"{share:.0%}"


def count(number: float, noun: str) -> str:
    """A number of things: `1 stream`, `2.5 streams`."""
    text = f"{number:.0f}" if float(number).is_integer() else f"{number:.1f}"
    return f"{text} {noun}" if text == "1" else f"{text} {noun}s"
