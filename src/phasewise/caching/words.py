"""A question as words: contractions written out, fillers dropped, each with the stem it shares with its kin.

What a difference in words means is the guards' and the bound's to say. English; words of other languages are
told apart by their letters alone.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from phasewise.caching.stems import stem_of
from phasewise.caching.vocabulary import vocabulary
from phasewise.model.noun import noun

_TOKEN = re.compile(r"\w*\d(?:[.,:/]?\w)*[+#%]*|\w+(?:['’]\w+)*(?:\+\+|#)?|[.!?…:;](?=\s)|\n")
_SENTENCE_ENDS = frozenset(".!?…:;\n")


@noun
class Word:
    """One word of a question: as written, in lower case, its stem, and its place among the words.

    `opens` tells whether it begins a sentence, where a capital letter says nothing; `owns` whether it had an
    apostrophe and s: Ava's.
    """

    surface: str
    lower: str
    stem: str
    place: int
    opens: bool = False
    owns: bool = False


class _Token(NamedTuple):
    surface: str
    lower: str
    opens: bool
    owns: bool


def words(text: str) -> tuple[Word, ...]:
    """The words of a text in their order, without those that carry no meaning."""
    kept: list[Word] = []
    opens = True
    for token in _without_fillers(_spelled_out(text)):
        opens = opens or token.opens
        kept.append(Word(token.surface, token.lower, stem_of(token.lower), len(kept), opens, token.owns))
        opens = False
    return tuple(kept)


def is_function_word(lower: str) -> bool:
    """Whether a word, in lower case, only holds a sentence together: an article, an auxiliary."""
    return lower in FUNCTION_WORDS


def _spelled_out(text: str) -> list[_Token]:
    """Every word, contractions as the words they stand for."""
    tokens: list[_Token] = []
    begins = True
    for surface in _TOKEN.findall(unicodedata.normalize("NFKC", text)):
        if surface in _SENTENCE_ENDS:
            begins = True
            continue
        lower = surface.casefold()
        if surface.isalnum() and lower not in _WHOLE_CONTRACTIONS:
            tokens.append(_Token(surface, lower, begins, False))
        else:
            tokens.extend(_expanded(surface, begins))
        begins = False
    return tokens


def _expanded(surface: str, begins: bool) -> list[_Token]:
    """The words that one with a mark stands for, of which the first may begin a sentence."""
    parts = _parts(surface)
    owns = len(parts) == 1 and surface[-2:].casefold() in ("'s", "’s")
    return [_Token(part, part.casefold(), begins and not place, owns) for place, part in enumerate(parts)]


def _parts(surface: str) -> tuple[str, ...]:
    lower = surface.casefold().replace("’", "'")
    if (whole := _WHOLE_CONTRACTIONS.get(lower)) is not None:
        return whole
    head, mark, tail = lower.rpartition("'")
    if not mark:
        return (surface,)
    if tail == "t" and head.endswith("n"):
        return (surface[: len(head) - 1], "not")
    if tail == "s":
        return (surface[: len(head)], "is") if head in _TAKES_IS else (surface[: len(head)],)
    if tail in _TAILS:
        return (surface[: len(head)], _TAILS[tail])
    return tuple(re.split("['’]", surface))


def _without_fillers(tokens: list[_Token]) -> list[_Token]:
    lowers = [token.lower for token in tokens]
    if _MAY_BE_FILLERS.isdisjoint(lowers) or not _ABOUT_WORDS.isdisjoint(lowers):
        return tokens
    kept: list[_Token] = []
    at = 0
    begins = False
    while at < len(tokens):
        length = _filler_length(tokens, at) if lowers[at] in _MAY_BE_FILLERS else 0
        if length:
            begins = begins or any(token.opens for token in tokens[at : at + length])
            at += length
            continue
        token = tokens[at]
        kept.append(token._replace(opens=True) if begins else token)
        begins = False
        at += 1
    return kept or tokens


def _filler_length(tokens: list[_Token], at: int) -> int:
    """How many words from here on say nothing: none, a word, or a phrase."""
    lower = tokens[at].lower
    for phrase in _PHRASES_BY_FIRST.get(lower, ()):
        end = at + len(phrase)
        if tuple(token.lower for token in tokens[at:end]) != phrase:
            continue
        after = tokens[end].lower if end < len(tokens) else ""
        if phrase not in _BEFORE_A_QUESTION:
            return len(phrase)
        if after in _QUESTION_OPENERS:
            return len(phrase) + (after in ("if", "whether"))
    if lower == "please" and _ends_with_help(tokens, at):
        return 2
    return 1 if lower in FILLERS else 0


def _ends_with_help(tokens: list[_Token], at: int) -> bool:
    """ "Please help." asks nothing; "please help me cancel" does."""
    helps = at + 1 < len(tokens) and tokens[at + 1].lower == "help"
    return helps and (at + 2 == len(tokens) or tokens[at + 2].opens)


_WHOLE_CONTRACTIONS = {
    "can't": ("can", "not"), "cannot": ("can", "not"), "won't": ("will", "not"), "shan't": ("shall", "not"),
    "ain't": ("is", "not"), "let's": ("let", "us"), "gonna": ("going", "to"), "wanna": ("want", "to"),
    "gotta": ("got", "to"), "dont": ("do", "not"), "cant": ("can", "not"), "wont": ("will", "not"),
    "isnt": ("is", "not"), "arent": ("are", "not"), "wasnt": ("was", "not"), "werent": ("were", "not"),
    "doesnt": ("does", "not"), "didnt": ("did", "not"), "hasnt": ("has", "not"), "havent": ("have", "not"),
    "hadnt": ("had", "not"), "shouldnt": ("should", "not"), "wouldnt": ("would", "not"),
    "couldnt": ("could", "not"), "mustnt": ("must", "not"), "whats": ("what", "is"), "im": ("i", "am"),
    "ive": ("i", "have"), "youre": ("you", "are"), "theyre": ("they", "are"), "u": ("you",), "ur": ("your",),
}  # fmt: skip
_TAKES_IS = vocabulary(
    "what who where when why how that this it there here he she everything something nothing everyone"
)
_TAILS = {"m": "am", "re": "are", "ve": "have", "ll": "will", "d": "would"}

FILLERS = vocabulary(
    "please kindly actually really just basically literally simply somehow indeed honestly truly genuinely "
    "anyway anyways hi hello hey thanks thank cheers pls plz essentially obviously "
    "frankly"
)
"""Words that change how a question sounds and not what it asks."""

_ABOUT_WORDS = vocabulary(
    "say says said saying word words mean means meaning meant translate translates translation spell spelled "
    "spelling pronounce pronounced pronunciation phrase phrases term rhyme rhymes synonym antonym grammar"
)
"""Where a question is about words, none of them is a filler: how is "please" said in French?"""

_FILLER_PHRASES = (
    "in fact", "by the way", "as a matter of fact", "of course", "thank you", "thanks in advance",
    "to be honest", "at all", "good morning", "good afternoon", "good evening", "excuse me",
    "quick question", "i have a question", "is it true that",
    "thanks a lot", "many thanks", "thank you so much", "thank you very much",
)  # fmt: skip
"""Runs of words that do the same."""
_PHRASES_BEFORE_A_QUESTION = (
    "could you tell me", "can you tell me", "would you tell me", "will you tell me", "tell me",
    "could you please tell me", "can you please tell me", "would you mind telling me", "please tell me",
    "could you let me know", "can you let me know", "let me know", "i was wondering", "i am wondering",
    "i wonder", "do you know", "do you happen to know", "i want to know", "i would like to know",
    "i need to know", "please explain", "explain", "can you explain", "could you explain",
    "help me understand", "can you help me understand", "could you help me understand",
)  # fmt: skip
"""Runs of words that do the same where a question follows: "do you know who", but not "do you know Ann"."""
_QUESTION_OPENERS = vocabulary("who whom whose what which when where why how if whether")


def _by_first_word(phrases: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], ...]]:
    grouped: dict[str, list[tuple[str, ...]]] = {}
    for phrase in phrases:
        parts = tuple(phrase.split())
        grouped.setdefault(parts[0], []).append(parts)
    return {first: tuple(sorted(runs, key=len, reverse=True)) for first, runs in grouped.items()}


_PHRASES_BY_FIRST = _by_first_word(_FILLER_PHRASES + _PHRASES_BEFORE_A_QUESTION)
_MAY_BE_FILLERS = FILLERS | _PHRASES_BY_FIRST.keys()
_BEFORE_A_QUESTION = frozenset(tuple(phrase.split()) for phrase in _PHRASES_BEFORE_A_QUESTION)

FUNCTION_WORDS = vocabulary(
    "a an the this that these those some any no not each every all both either neither such "
    "am is are was were be been being do does did done doing have has had having will would shall should can "
    "could may might must ought "
    "i you he she it we they me him her us them my your his its our their mine yours hers ours theirs myself "
    "yourself himself herself itself ourselves yourselves themselves oneself one "
    "who whom whose what which when where why how whether "
    "of in on at by for with about against between into through during before after above below to from up "
    "down out off over under further then once here there as than within without upon onto toward "
    "towards via per among across along around behind beside besides beyond near since until till despite "
    "and or but nor so yet if because while although though unless "
    "also let us"
)
"""Words that hold a sentence together. Some of them carry meaning all the same: the guards know which."""
