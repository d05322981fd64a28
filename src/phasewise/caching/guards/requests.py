"""How questions are put to a machine: "how do I", "how to", "could you explain". Who asks is anybody."""

from __future__ import annotations

from phasewise.caching.vocabulary import vocabulary

_ASKS_A_FAVOUR = vocabulary("can could would will")
_FAVOURS = vocabulary(
    "explain describe give show list write help translate summarize summarise provide compare suggest "
    "recommend name teach clarify outline define elaborate tell walk share generate"
)
_ANYBODY = vocabulary("i you we one people someone")
_HOW_TO_AUXILIARIES = vocabulary("do does can could should would to must may might")


def asks_how_to(lowers: tuple[str, ...]) -> bool:
    """Whether a question opens with "how to", "how do I", "how can one"."""
    return (
        len(lowers) > 2
        and lowers[0] == "how"
        and lowers[1] in _HOW_TO_AUXILIARIES
        and (lowers[1] == "to" or lowers[2] in _ANYBODY)
    )


def skips_request(lowers: tuple[str, ...]) -> tuple[str, ...]:
    """The words without the "could you" of a request."""
    asks = len(lowers) > 2 and lowers[0] in _ASKS_A_FAVOUR and lowers[1] == "you" and lowers[2] in _FAVOURS
    return lowers[2:] if asks else lowers
