"""Which words the guards were told: what is held out must not be among them, but for closed classes.

The lists are read from the guards' own modules, so that a word added to one of them is noticed here.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator, Mapping
from importlib import import_module

import phasewise.semantic_match.guards
from phasewise.semantic_match.words import stem_of, vocabulary

from .grammar import plain_words
from .library import Library

CLOSED_CLASSES = vocabulary(
    """
    a all an any at each half least more most no none not only some ten than third
    two three four five six seven eight nine eleven twelve first second
    after around before during in of on over the this to under until up with without do
    how what when where which who why
    january february march april may june july august september october november december
    """
)
"""Every language has few of these and the guards name them all, so that nobody can ask without them."""


def told_words() -> set[str]:
    """All words in the guards' lists, as written and as stems."""
    reported: set[str] = set()
    for module in pkgutil.iter_modules(
        phasewise.semantic_match.guards.__path__, "phasewise.semantic_match.guards."
    ):
        for name, value in vars(import_module(module.name)).items():
            if not name.startswith("__") and not isinstance(value, str):
                reported.update(word for text in _texts(value) for word in plain_words(text))
    return reported | {stem_of(word) for word in reported}


def words_told_already(library: Library) -> set[str]:
    """Words that matter in a library, but are on a list: to be exchanged for others."""
    reported = told_words()
    open_words = library.words_that_matter() - CLOSED_CLASSES
    return {word for word in open_words if word in reported or stem_of(word) in reported}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, re.Pattern):
        yield value.pattern
    elif isinstance(value, Mapping):
        yield from (text for item in value.items() for part in item for text in _texts(part))
    elif isinstance(value, frozenset | set | tuple | list):
        yield from (text for item in value for text in _texts(item))
