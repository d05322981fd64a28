"""Order and roles: the same words in another order ask something else, unless English leaves it open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from phasewise.semantic_match.guards.reading import Reading, content_of, is_distinctive, once
from phasewise.semantic_match.guards.roles import PREPOSITIONS, governors_clash, parts_swapped, voices_agree
from phasewise.semantic_match.words import Word, stem_of, vocabulary

# --- Orders of words that ask the same: "a nurse and an artist", "from Paris to Rome", "in Python, how".


class WordPart(NamedTuple):
    """A word as it is compared, the word, and what stands right before it."""

    key: str
    word: Word
    before: str


Keys = list[str]


class Parts(NamedTuple):
    """Some parts of a question in their order, and the keys they are compared by."""

    parts: list[WordPart]
    keys: Keys

    @classmethod
    def of(cls, parts: list[WordPart]) -> Parts:
        """Parts with their keys."""
        return cls(parts, [part.key for part in parts])

    def only(self, kept: frozenset[str]) -> Parts:
        """Those that have one of some keys."""
        return Parts.of([part for part in self.parts if part.key in kept])

    def between(self, head: int, tail: int) -> Parts:
        """Those without so many at the beginning and so many at the end."""
        end = len(self.keys) - tail
        return Parts(self.parts[head:end], self.keys[head:end])


Rule = Callable[[Parts, Parts], bool]

_JOINS = vocabulary("and or vs versus &")
_MUTUAL = frozenset(map(stem_of, vocabulary(
    "married engaged dating friend acquaintance related sibling cousin twin neighbor neighbour colleague "
    "coworker partner roommate classmate similar same equal equivalent identical different differ compatible "
    "adjacent parallel perpendicular divorced"
)))  # fmt: skip
_TURNS = _JOINS | _MUTUAL
_MOVES = PREPOSITIONS - vocabulary("of than by as like")
_VERB_FOLLOWS = vocabulary("to i you we they he she not can could should must will would do does did please")
_OWNS = vocabulary("of for from in")
_LONGEST_FRONTED = 7
_STEPS_BACK = 3
_TRIES = 8


def is_rearranged(one: Reading, other: Reading) -> bool:
    """Whether two questions differ only by an order that English leaves open, in what both of them say."""
    if governors_clash(one, other):
        return False
    contents = one.content_set & other.content_set
    ours, theirs = _parts(one), _parts(other)
    common = frozenset(ours.keys) & frozenset(theirs.keys)
    tried: list[tuple[Keys, Keys]] = []
    for kept in (contents | PREPOSITIONS | _JOINS, contents | common | _OWNS, common):
        mine, yours = ours.only(kept), theirs.only(kept)
        if (mine.keys, yours.keys) in tried:
            continue
        tried.append((mine.keys, yours.keys))
        if _explained(mine, yours, _front(one)) or _explained(yours, mine, _front(other)):
            return True
    return False


def joins_nationality(one: Reading, other: Reading) -> bool:
    """Whether one has "a French activist" where the other has "an activist and French"."""
    ours, theirs = _parts(one), _parts(other)
    return _some_middle(ours, theirs, (_nationality,)) or _some_middle(theirs, ours, (_nationality,))


@once
def _parts(reading: Reading) -> Parts:
    return Parts.of(
        [
            WordPart(content_of(word) if is_distinctive(word) else word.lower, word, before)
            for before, word in zip(("", *reading.lowers), reading.words, strict=False)
            if is_distinctive(word) or word.lower in PREPOSITIONS or word.lower in _JOINS
        ]
    )


def _front(reading: Reading) -> int:
    """How many words may stand in front as the topic: a first sentence, or what a preposition begins."""
    words = reading.words
    second = next((word.place for word in words[1:] if word.opens), 0)
    if second:
        return second
    return _LONGEST_FRONTED if words and words[0].lower in _MOVES else 0


def _explained(ours: Parts, theirs: Parts, front: int) -> bool:
    if front and _fronted(ours, theirs, front):
        return True
    # How many parts there are tells which rules can explain them, and is soon counted.
    more = len(theirs.keys) - len(ours.keys)
    return more in _RULES and _some_middle(ours, theirs, _RULES[more])


def _some_middle(ours: Parts, theirs: Parts, rules: tuple[Rule, ...]) -> bool:
    """Whether a rule explains what is left between a common beginning and a common end.

    A word of the beginning may be part of what moved: New York and New Jersey. So a few are given back.
    """
    mine, yours = ours.keys, theirs.keys
    head = _common(mine, yours)
    tail = min(_common(mine[::-1], yours[::-1]), min(len(mine), len(yours)) - head)
    for back in range(min(head, _STEPS_BACK) + 1):
        for forth in range(min(tail, _STEPS_BACK) + 1):
            start, end = head - back, tail - forth
            left, right = ours.between(start, end), theirs.between(start, end)
            if any(rule(left, right) for rule in rules):
                return True
    return False


def _common(mine: Keys, yours: Keys) -> int:
    count = 0
    for left, right in zip(mine, yours, strict=False):
        if left != right:
            break
        count += 1
    return count


def _swapped(ours: Parts, theirs: Parts) -> bool:
    """a and b, b and a; a married to b, b married to a."""
    mine, yours = ours.keys, theirs.keys
    pivots = [at for at, key in enumerate(mine) if key in _TURNS][:_TRIES]
    for at in pivots:
        start, end = (at, at + 1) if mine[at] in _JOINS else _mutual_run(mine, at)
        if start == 0 or end == len(mine) or yours[0] != mine[end]:
            continue
        if yours == mine[end:] + mine[start:end] + mine[:start]:
            return mine[at] in _MUTUAL or not _is_a_verb(ours.parts[0])
    return False


def _mutual_run(mine: Keys, at: int) -> tuple[int, int]:
    end = at + 1
    while end < len(mine) and mine[end] in PREPOSITIONS:
        end += 1
    return at, end


def _is_a_verb(part: WordPart) -> bool:
    """Whether what is joined may be deeds, whose order counts: "wash and dry". A guess, on the safe side."""
    return part.word.opens or (part.before in _VERB_FOLLOWS and not part.word.surface[0].isupper())


def _moved(ours: Parts, theirs: Parts) -> bool:
    """from a to b, to b from a."""
    mine, yours = ours.keys, theirs.keys
    if not mine or mine[0] not in _MOVES or yours[0] not in _MOVES:
        return False
    cuts = [at for at, key in enumerate(mine) if at and key == yours[0]][:_TRIES]
    return any(yours == mine[at:] + mine[:at] for at in cuts)


def _fronted(ours: Parts, theirs: Parts, front: int) -> bool:
    """in Python, how do I sort a list; how do I sort a list in Python. I have eggs. How do I boil them?"""
    mine, yours = ours.keys, theirs.keys
    if len(mine) != len(yours) or not mine:
        return False
    shortest = 2 if mine[0] in PREPOSITIONS else 1
    longest = sum(part.word.place < front for part in ours.parts)
    for at in [place for place, key in enumerate(yours) if key == mine[0]][:_TRIES]:
        for length in range(shortest, min(longest, _LONGEST_FRONTED) + 1):
            end = at + length
            if yours[at:end] == mine[:length] and yours[:at] + yours[end:] == mine[length:]:
                return True
    return False


def _dative(ours: Parts, theirs: Parts) -> bool:
    """owes Ann 5 dollars, owes 5 dollars to Ann."""
    mine, yours = ours.keys, theirs.keys
    if "to" not in yours:
        return False
    at = yours.index("to")
    return 0 < at < len(mine) and mine == yours[at + 1 :] + yours[:at]


def _genitive(ours: Parts, theirs: Parts) -> bool:
    """the capital of France, France's capital; the password for my router, my router password."""
    mine, yours = ours.keys, theirs.keys
    at = next((place for place, key in enumerate(mine) if key in _OWNS), 0)
    owner = len(mine) - at - 1
    if not at or not 0 < owner < len(yours) or yours != mine[at + 1 :] + mine[:at]:
        return False
    last, first = theirs.parts[owner - 1].word, theirs.parts[owner].word
    return last.owns or last.place + 1 == first.place


def _nationality(ours: Parts, theirs: Parts) -> bool:
    """a French activist, an activist and French. Not a fake one: only where a capital tells."""
    mine, yours = ours.keys, theirs.keys
    return len(mine) > 1 and ours.parts[0].word.surface[0].isupper() and yours == [*mine[1:], "and", mine[0]]


_RULES: dict[int, tuple[Rule, ...]] = {-1: (_genitive,), 0: (_swapped, _moved), 1: (_dative, _nationality)}
"""By how many parts more the other question has."""


def order_differs(one: Reading, other: Reading) -> str | None:
    """The words of both questions as they stand in each, if who does what to whom may not be the same."""
    agree = voices_agree(one, other)
    if agree is not None:
        return None if agree else _reported(one.contents, other.contents)
    ours, theirs = _shared(one, other), _shared(other, one)
    if ours != theirs:
        return None if is_rearranged(one, other) else _reported(ours, theirs)
    if _joints(one) != _joints(other) and not joins_nationality(one, other):
        return "and | -"
    return parts_swapped(one, other)


def _reported(ours: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    return f"{' '.join(ours)} | {' '.join(theirs)}"


def _shared(reading: Reading, other: Reading) -> tuple[str, ...]:
    """The content that both have, in the order of one."""
    left = Counter(reading.contents) & Counter(other.contents)
    shared: list[str] = []
    for content in reading.contents:
        if left[content]:
            left[content] -= 1
            shared.append(content)
    return tuple(shared)


@once
def _joints(reading: Reading) -> int:
    return sum(word.lower in ("and", "but") and not word.opens for word in reading.words)
