"""How one question is worded otherwise than another, without saying what stayed: the change and its parts.

Whether such a change keeps the meaning is learned from outcomes, by evidence_book.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from hashlib import blake2b

from phasewise.caching.words import Word, is_function_word
from phasewise.model.noun import noun

LONGEST_APART = 80
"""In words. Longer stretches that differ are told by what words they have, not place by place."""
MOST_PARTS = 6
"""A change of more parts is known as a whole only: who rewords that much repeats none of it."""
_ARTICLES = {"an": "a"}

Key = tuple[str, ...]
"""Words as they are compared."""


class Change(StrEnum):
    """What sort of words differ, from least to most.

    `same`: none but fillers. `function`: words that hold a sentence together. `reordered`: words of content
    stand elsewhere. `added`: one question has words of content more. `swapped`: it has others.
    """

    SAME = "same"
    FUNCTION = "function"
    REORDERED = "reordered"
    ADDED = "added"
    SWAPPED = "swapped"


@noun
class Rewrite:
    """A change and its parts: what stands in one question where the other has something else or nothing.

    Parts are hashes in which the domain is mixed, so that two domains' changes cannot be compared.
    """

    change: Change
    parts: tuple[str, ...]

    @property
    def signature(self) -> str:
        """The whole as one string, the same in both directions."""
        return ".".join(self.parts)


def rewrite(question: Sequence[Word], stored: Sequence[Word], domain: str) -> Rewrite:
    """How the words of a question differ from those of a stored one."""
    here, there = _keys(question), _keys(stored)
    gaps = _gaps(here, there)
    lost, gained = _bag(gap[0] for gap in gaps), _bag(gap[1] for gap in gaps)
    moved = lost & gained
    only_here, only_there = lost - moved, gained - moved
    moved_content = sorted(word for word in moved.elements() if not is_function_word(word))
    if moved_content or len(gaps) > MOST_PARTS:
        texts = [_part(sorted(only_here.elements()), sorted(only_there.elements()), bool(moved))]
    else:
        texts = sorted({_part(*gap, moved=False) for gap in gaps})
    return Rewrite(_change(bool(moved_content), only_here, only_there, bool(gaps)), _hashed(texts, domain))


def _keys(words: Sequence[Word]) -> Key:
    """Words of content by their stems; others as they are, because "is" and "was" have one stem."""
    return tuple(
        _ARTICLES.get(word.lower, word.lower) if is_function_word(word.lower) else word.stem for word in words
    )


def _gaps(here: Key, there: Key) -> list[tuple[Key, Key]]:
    """What stands in either where the other has something else, in order."""
    start = 0
    while start < min(len(here), len(there)) and here[start] == there[start]:
        start += 1
    end = 0
    while end < min(len(here), len(there)) - start and here[-1 - end] == there[-1 - end]:
        end += 1
    here, there = here[start : len(here) - end], there[start : len(there) - end]
    if not here and not there:
        return []
    if max(len(here), len(there)) > LONGEST_APART:
        return [(here, there)]
    blocks = SequenceMatcher(None, here, there, autojunk=False).get_opcodes()
    return [(here[a:b], there[c:d]) for kind, a, b, c, d in blocks if kind != "equal"]


def _bag(gaps: Iterable[Key]) -> Counter[str]:
    return Counter(word for gap in gaps for word in gap)


def _part(here: Sequence[str], there: Sequence[str], moved: bool) -> str:
    sides = sorted((" ".join(here), " ".join(there)))
    return f"{sides[0]}|{sides[1]}|{'moved' if moved else ''}"


def _change(moved: bool, only_here: Counter[str], only_there: Counter[str], any_gap: bool) -> Change:
    content_here, content_there = _has_content(only_here), _has_content(only_there)
    if content_here and content_there:
        return Change.SWAPPED
    if content_here or content_there:
        return Change.ADDED
    if moved:
        return Change.REORDERED
    return Change.FUNCTION if any_gap else Change.SAME


def _has_content(words: Counter[str]) -> bool:
    return any(not is_function_word(word) for word in words)


def _hashed(texts: Sequence[str], domain: str) -> tuple[str, ...]:
    seed = blake2b(domain.encode(), digest_size=32).digest()
    return tuple(sorted(blake2b(text.encode(), key=seed, digest_size=8).hexdigest() for text in texts))
