"""How one question is worded otherwise than another, in parts that recur in other questions.

No list of words is needed: whether a change keeps the meaning is learned from verified outcomes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from hashlib import blake2b

from phasewise.core.value import value

MOST_PARTS = 8
"""A change with more parts counts as one: it is another sentence, and its parts say nothing alone."""
PART_MARK = " "
EXCHANGE_MARK = "x"
"""Before a part that puts words for others. Whether they mean the same may change with the world."""

Words = Sequence[str]


@value
class _Difference:
    """Where the questions differ: the words of each, one side possibly empty."""

    here: tuple[str, ...]
    there: tuple[str, ...]


def rewrite(asked: Words, stored: Words, domain: str) -> tuple[str, ...]:
    """The parts of the change between two questions, the same in both directions; none if no word differs.

    Parts are hashes in which the domain is mixed, so that two domains' changes cannot be compared.
    """
    # What stands alike is found from one side: always the same one, whoever is asked first.
    asked, stored = sorted((tuple(asked), tuple(stored)))
    gaps, start, end = _gaps(asked, stored)
    moved = _bag(gap.here for gap in gaps) & _bag(gap.there for gap in gaps)
    if not moved and len(gaps) <= MOST_PARTS:
        parts = {_either_way(gap.here, gap.there): bool(gap.here and gap.there) for gap in gaps}
    else:
        # What is said before and after the question is a part of its own; the rest is one change.
        before, behind = gaps[0], gaps[-1]
        parts = {}
        if start and _is_courtesy(before, moved):
            parts[_either_way(before.here, before.there)] = False
            asked, stored = asked[len(before.here) :], stored[len(before.there) :]
        if end and _is_courtesy(behind, moved):
            parts[_either_way(behind.here, behind.there)] = False
            asked, stored = asked[: len(asked) - len(behind.here)], stored[: len(stored) - len(behind.there)]
        parts[_reordered(asked, stored)] = True
    seed = blake2b(domain.encode(), digest_size=32).digest()
    hashes = {part: blake2b(part.encode(), key=seed, digest_size=8).hexdigest() for part in parts}
    return tuple(sorted(EXCHANGE_MARK * exchanges + hashes[part] for part, exchanges in parts.items()))


def _gaps(here: Words, there: Words) -> tuple[list[_Difference], bool, bool]:
    """The gaps in order, and whether the first is at the start of both and the last at the end of both."""
    codes = SequenceMatcher(None, here, there, autojunk=False).get_opcodes()
    gaps = [_Difference(tuple(here[a:b]), tuple(there[c:d])) for kind, a, b, c, d in codes if kind != "equal"]
    return gaps, bool(codes) and codes[0][0] != "equal", bool(codes) and codes[-1][0] != "equal"


def _is_courtesy(gap: _Difference, moved: Counter[str]) -> bool:
    """Whether only one question has these words, and the other has none of them elsewhere."""
    return not (gap.here and gap.there) and not any(word in moved for word in gap.here + gap.there)


def _either_way(here: Words, there: Words) -> str:
    return "|".join(sorted((" ".join(here), " ".join(there))))


def _reordered(here: Words, there: Words) -> str:
    """The words that only one has, and how the stretches that both have are put in order.

    The stretches are numbered, not named, so that the same change of other subjects is the same.
    """
    only_here, only_there = Counter(here) - Counter(there), Counter(there) - Counter(here)
    sides = " ".join(sorted(only_here.elements())), " ".join(sorted(only_there.elements()))
    return min(f"{sides[0]}>{sides[1]}>{_order(here, there)}", f"{sides[1]}>{sides[0]}>{_order(there, here)}")


def _order(here: Words, there: Words) -> str:
    places = {word: place for place, word in enumerate(_numbered(here))}
    order = [places[word] for word in _numbered(there) if word in places]
    begins = [
        place
        for before, place in zip([None, *order], order, strict=False)
        if before is None or place != before + 1
    ]
    ranks = {place: rank for rank, place in enumerate(sorted(begins))}
    return ",".join(str(ranks[place]) for place in begins)


def _numbered(words: Words) -> list[tuple[str, int]]:
    """Each word with how often it came before."""
    seen: Counter[str] = Counter()
    numbered = []
    for word in words:
        numbered.append((word, seen[word]))
        seen[word] += 1
    return numbered


def _bag(stretches: object) -> Counter[str]:
    return Counter(word for stretch in stretches for word in stretch)  # type: ignore[attr-defined]
