"""How one question is worded otherwise than another, without saying what stayed: the change and its parts.

Whether such a change keeps the meaning is learned from outcomes, by evidence_book.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from hashlib import blake2b

from phasewise.caching.words import Word, is_function_word
from phasewise.model.noun import noun

LONGEST_APART = 80
"""In words. Longer stretches that differ are told by what words they have, not place by place."""
MOST_PARTS = 6
"""A change of more parts is known as a whole only: who rewords that much repeats none of it."""
PART_MARK = "."
"""Stands between the parts of a signature."""
SWAP_MARK = "x"
"""Stands before the hash of a part that has other words of content in place of some."""
_ARTICLES = {"an": "a"}

Key = tuple[str, ...]
"""Words as they are compared."""


class Change(StrEnum):
    """What sort of words differ, from least to most.

    `same`: none but fillers. `function`: words that hold a sentence together, or endings. `reordered`: words
    stand elsewhere. `added`: one question has words of content more. `swapped`: it has others.
    """

    SAME = "same"
    FUNCTION = "function"
    REORDERED = "reordered"
    ADDED = "added"
    SWAPPED = "swapped"

    @property
    def of_content(self) -> bool:
        """Whether words differ that carry content."""
        return self in {Change.ADDED, Change.SWAPPED}


@noun
class Rewrite:
    """A change and its parts: what stands in one question where the other has something else or nothing.

    Parts are hashes in which the domain is mixed, so that two domains' changes cannot be compared.
    `exchanges`: both have the same words, some of them in other places; nothing then tells who moved where.
    """

    change: Change
    parts: tuple[str, ...]
    exchanges: bool = False

    @property
    def signature(self) -> str:
        """The whole as one string, the same in both directions."""
        return PART_MARK.join(self.parts)


def rewrite(question: Sequence[Word], stored: Sequence[Word], domain: str) -> Rewrite:
    """How the words of a question differ from those of a stored one.

    Words that stand elsewhere are no parts of their own: what "by" does depends on who moved behind it.
    """
    here, there = _keys(question), _keys(stored)
    gaps = _gaps(here, there)
    lost, gained = _bag(gap[0] for gap in gaps), _bag(gap[1] for gap in gaps)
    moved = lost & gained
    only_here, only_there = lost - moved, gained - moved
    if moved or len(gaps) > MOST_PARTS:
        parts = {_whole(here, there, only_here, only_there): _swaps(only_here, only_there)}
    else:
        parts = {_either_way(" ".join(gap[0]), " ".join(gap[1])): _swaps(*gap) for gap in gaps}
        parts |= dict.fromkeys(_inflections(question, stored, here, there), False)
    change = _change(bool(moved), only_here, only_there, bool(parts))
    return Rewrite(change, _hashed(parts, domain), exchanges=bool(moved) and not only_here and not only_there)


def may_turn(signature: str) -> bool:
    """Whether a part, or the signature of several, has other words of content in place of some."""
    return SWAP_MARK in signature


def _keys(words: Sequence[Word]) -> Key:
    """Words of content by their stems; others as they are, because "is" and "was" have one stem."""
    return tuple(
        _ARTICLES.get(word.lower, word.lower) if is_function_word(word.lower) else word.stem for word in words
    )


def _gaps(here: Key, there: Key) -> list[tuple[Key, Key]]:
    """What stands in either where the other has something else, in order."""
    start = _common(here, there)
    here, there = here[start:], there[start:]
    end = _common(here[::-1], there[::-1])
    here, there = here[: len(here) - end], there[: len(there) - end]
    if not here and not there:
        return []
    if max(len(here), len(there)) > LONGEST_APART:
        return [(here, there)]
    blocks = SequenceMatcher(None, here, there, autojunk=False).get_opcodes()
    return [(here[a:b], there[c:d]) for kind, a, b, c, d in blocks if kind != "equal"]


def _bag(gaps: Iterable[Key]) -> Counter[str]:
    return Counter(word for gap in gaps for word in gap)


def _whole(here: Key, there: Key, only_here: Counter[str], only_there: Counter[str]) -> str:
    """The words of one side, those of the other, and how the stretches that both have are put in order."""
    sides = " ".join(sorted(only_here.elements())), " ".join(sorted(only_there.elements()))
    order, back = _order(here, there), _order(there, here)
    return min(f"{sides[0]}|{sides[1]}|{order}", f"{sides[1]}|{sides[0]}|{back}")


def _order(here: Key, there: Key) -> str:
    """In which order the words of one stand in the other, by number; what moved together counts as one."""
    places = {word: place for place, word in enumerate(_numbered(here))}
    order = [places[word] for word in _numbered(there) if word in places]
    firsts = [
        place
        for before, place in zip([None, *order], order, strict=False)
        if before is None or place != before + 1
    ]
    ranks = {place: rank for rank, place in enumerate(sorted(firsts))}
    return ",".join(str(ranks[place]) for place in firsts)


def _numbered(words: Key) -> list[tuple[str, int]]:
    """Each word with how often it came before."""
    seen: Counter[str] = Counter()
    numbered = []
    for word in words:
        numbered.append((word, seen[word]))
        seen[word] += 1
    return numbered


def _inflections(question: Sequence[Word], stored: Sequence[Word], here: Key, there: Key) -> set[str]:
    """What words of one stem end in here and there, for words that both have."""
    forms = dict(zip(_numbered(there), stored, strict=True))
    endings = set()
    for key, word in zip(_numbered(here), question, strict=True):
        other = forms.get(key)
        if other is not None and other.lower != word.lower:
            kept = _common(word.lower, other.lower)
            endings.add("~" + _either_way(word.lower[kept:], other.lower[kept:]))
    return endings


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many letters, or words, both begin with."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _either_way(one: str, other: str) -> str:
    return "|".join(sorted((one, other)))


def _change(moved: bool, only_here: Counter[str], only_there: Counter[str], any_part: bool) -> Change:
    if _swaps(only_here, only_there):
        return Change.SWAPPED
    if _has_content(only_here) or _has_content(only_there):
        return Change.ADDED
    if moved:
        return Change.REORDERED
    return Change.FUNCTION if any_part else Change.SAME


def _swaps(here: Iterable[str], there: Iterable[str]) -> bool:
    return _has_content(here) and _has_content(there)


def _has_content(words: Iterable[str]) -> bool:
    return any(not is_function_word(word) for word in words)


def _hashed(parts: Mapping[str, bool], domain: str) -> tuple[str, ...]:
    seed = blake2b(domain.encode(), digest_size=32).digest()
    hashes = {text: blake2b(text.encode(), key=seed, digest_size=8).hexdigest() for text in parts}
    return tuple(sorted(SWAP_MARK * swaps + hashes[text] for text, swaps in parts.items()))
