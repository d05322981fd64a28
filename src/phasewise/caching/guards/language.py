"""Languages the other guards do not read: there any other wording may mean anything."""

from __future__ import annotations

import re

from phasewise.caching.guards.reading import Reading, once
from phasewise.caching.vocabulary import vocabulary
from phasewise.caching.words import is_function_word

_LATIN = re.compile(r"[\x00-\u024f\u1e00-\u1eff\u2000-\u2bff]*")
_FOREIGN = vocabulary(
    "der die das den dem ein eine einen ist sind nicht kein und oder wie wer wo wann warum ich du mit von "
    "zu auf für el la los las un una es son que qué como cómo cuál quién dónde por para con del y le les "
    "des est sont ne pas et ou où qui quoi quand comment pourquoi avec dans sur pour je tu il elle nous "
    "vous lo gli che è sono non perché come chi dove quando di da della het een niet wat hoe waar wanneer "
    "waarom og ikke hvad hvor nie jest jak czy gdzie kto não é são um uma os onde quem och inte vad"
)


def unread_language_differs(one: Reading, other: Reading) -> str | None:
    """That two questions are worded differently, in a language whose negations and numbers are not known."""
    if one.lowers == other.lowers or not (_is_unread(one) or _is_unread(other)):
        return None
    return "not in English, and worded differently"


@once
def _is_unread(reading: Reading) -> bool:
    if not _LATIN.fullmatch(reading.text):
        return any(not _LATIN.fullmatch(lower) for lower in reading.lowers)
    foreign = sum(lower in _FOREIGN for lower in reading.lowers)
    english = sum(is_function_word(lower) and lower not in _FOREIGN for lower in reading.lowers)
    return foreign >= 2 and foreign > english
