"""How one question is worded otherwise than another, without saying what stayed: the change and its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from hashlib import blake2b

from phasewise.core.value import value
from phasewise.semantic_match.words import Word, is_function_word, is_past_form, vocabulary

LONGEST_APART = 80
"""In words. Longer stretches that differ are told by what words they have, not place by place."""
MOST_PARTS = 6
"""A change of more parts is known as a whole only: who rewords that much repeats none of it."""
PART_MARK = "."
"""Stands between the parts of a signature."""
SWAP_MARK = "x"
"""Stands before the hash of a part that has other words of content in place of some."""
_ARTICLES = {"an": "a"}
_PARTICLES = vocabulary("up down out off over away back together apart aside forward ahead")
"""Make another verb of the one before them: give up, call off."""
_PREPOSITIONS = vocabulary(
    "of at in on by for with about against between into during before after above below from as than within "
    "without upon onto toward towards via per among beside besides beyond near since until till despite "
    "under through along around across behind"
)
"""Say what part the word behind them plays. Not "to", which is "how to" far more often."""
_ATTACHED = _PARTICLES | _PREPOSITIONS
_OF_VOICE = vocabulary("by of")
"""Come and go where a sentence is turned round: Kyle stole it, it was stolen by Kyle; Ann's car, of Ann."""
_THE_END = ""
"""What a preposition stands before that nothing follows."""
_DETERMINERS = vocabulary("a the my your his her its our their this that these those")
_BE = vocabulary("am is are was were")
_DO = vocabulary("do does did")

Key = tuple[str, ...]
"""Words as they are compared."""


@value
class Gap:
    """What stands in either question where the other has something else, and where that begins and ends."""

    here: Key
    there: Key
    here_at: tuple[int, int]
    there_at: tuple[int, int]


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


@value
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
    lost, gained = _bag(gap.here for gap in gaps), _bag(gap.there for gap in gaps)
    moved = lost & gained
    only_here, only_there = lost - moved, gained - moved
    if moved or len(gaps) > MOST_PARTS:
        whole = _whole(here, there, only_here, only_there) + _reattached(here, there, lost | gained)
        parts = {whole: _swaps(only_here, only_there)}
    else:
        parts = {_part(gap, here, there): _swaps(gap.here, gap.there) for gap in gaps}
    parts |= dict.fromkeys(_inflections(question, stored, here, there, turned=bool(moved)), False)
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


def _gaps(here: Key, there: Key) -> list[Gap]:
    """What stands in either where the other has something else, in order."""
    start = _common(here, there)
    end = _common(here[start:][::-1], there[start:][::-1])
    inner_here, inner_there = here[start : len(here) - end], there[start : len(there) - end]
    if not inner_here and not inner_there:
        return []
    if max(len(inner_here), len(inner_there)) > LONGEST_APART:
        return [_gap(here, there, start, len(here) - end, start, len(there) - end)]
    blocks = SequenceMatcher(None, inner_here, inner_there, autojunk=False).get_opcodes()
    return [
        _gap(here, there, a + start, b + start, c + start, d + start)
        for kind, a, b, c, d in blocks
        if kind != "equal"
    ]


def _gap(here: Key, there: Key, a: int, b: int, c: int, d: int) -> Gap:
    return Gap(here[a:b], there[c:d], (a, b), (c, d))


def _is_bearer(word: str) -> bool:
    """Whether particles and prepositions may belong to a word."""
    return not is_function_word(word) and word not in _PARTICLES


def _part(gap: Gap, here: Key, there: Key) -> str:
    """What was put for what; with the words around it if those decide what the change means.

    "up" says nothing of "clean up" that would hold of "give up".
    """
    if not _hangs_on_others(gap):
        return _either_way(" ".join(gap.here), " ".join(gap.there))
    return _either_way(_with_bearers(here, *gap.here_at), _with_bearers(there, *gap.there_at))


def _with_bearers(words: Key, start: int, end: int) -> str:
    """A stretch of words with the nearest words of content before and behind it."""
    before = next(filter(_is_bearer, reversed(words[:start])), "")
    behind = next(filter(_is_bearer, words[end:]), "")
    return f"{before} ({' '.join(words[start:end])}) {behind}"


def _hangs_on_others(gap: Gap) -> bool:
    """Whether a particle or a preposition was put, or "is" for "does", apart from the word it belongs to."""
    here, there = frozenset(gap.here), frozenset(gap.there)
    be_for_do = (here & _BE and there & _DO) or (here & _DO and there & _BE)
    if be_for_do or (here | there) - _DETERMINERS == {"to"}:
        return not any(map(_is_bearer, here | there))
    return _leaves_loose(gap.here, there) or _leaves_loose(gap.there, here)


def _leaves_loose(put: Key, other: frozenset[str]) -> bool:
    """Whether, of what was put, a particle has no word before it, or a preposition no word at all."""
    first = next((place for place, word in enumerate(put) if _is_bearer(word)), None)
    return any(
        word in _ATTACHED and word not in other and (first is None or (word in _PARTICLES and place < first))
        for place, word in enumerate(put)
    )


def _reattached(here: Key, there: Key, changed: Mapping[str, int]) -> str:
    """The particles and prepositions that stand by other words than before, where words changed places."""
    both = frozenset(here) & frozenset(there)
    attached = frozenset(
        word for word in changed if word in _ATTACHED and (word in both or word not in _OF_VOICE)
    )
    if not attached:
        return ""
    ours, theirs = _attachments(here, attached), _attachments(there, attached)
    return "|" + _either_way(" ".join(sorted(ours - theirs)), " ".join(sorted(theirs - ours)))


def _attachments(words: Key, attached: frozenset[str]) -> set[str]:
    """Each particle with the word of content before it, each preposition with the one behind it."""
    found: set[str] = set()
    waiting: set[str] = set()
    before = ""
    for word in (*words, _THE_END):
        if _is_bearer(word):
            found |= {f"{preposition}+{word}" for preposition in waiting}
            waiting.clear()
            before = word
        elif word in attached:
            if word in _PARTICLES:
                found.add(f"{before}+{word}")
            else:
                waiting.add(word)
    return found


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
    seen: dict[str, int] = {}
    numbered = []
    for word in words:
        before = seen.get(word, 0)
        numbered.append((word, before))
        seen[word] = before + 1
    return numbered


def _inflections(
    question: Sequence[Word], stored: Sequence[Word], here: Key, there: Key, turned: bool
) -> set[str]:
    """The forms of words that both have, by their stems: what an ending does hangs on the word it ends.

    "keys" are more of "key"; "customs" are not more of "custom". Where a sentence is turned round, verbs
    change with it: steal, stolen by.
    """
    forms = dict(zip(_numbered(there), stored, strict=True))
    endings = set()
    for key, word in zip(_numbered(here), question, strict=True):
        other = forms.get(key)
        if other is None or _form(other) == _form(word):
            continue
        if not (turned and (is_past_form(word.lower) or is_past_form(other.lower))):
            endings.add("~" + _either_way(_form(word), _form(other)))
    return endings


def _form(word: Word) -> str:
    lower = _ARTICLES.get(word.lower, word.lower)
    return f"{lower}'s" if word.owns else lower


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
