"""A question as words: contractions written out, fillers dropped, each with the stem it shares with its kin.

What a difference in words means is the guards' and the bound's to say. English; words of other languages are
told apart by their letters alone.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

from phasewise.core.value import value

# --- How lists of words are written down in this package; the lists stand with those who read them.


def vocabulary(lines: str) -> frozenset[str]:
    """The words of a text that names them, one space between each."""
    return frozenset(lines.split())


def families(lines: str) -> dict[str, str]:
    """Every word to the first of its family. Families stand apart by | or a new line, words by a space."""
    found: dict[str, str] = {}
    for family in lines.replace("\n", "|").split("|"):
        names = family.split()
        for name in names:
            found.setdefault(name, names[0])
    return found


# --- The stem that an English word's inflections share: steal for steals, stealing, stole and stolen.
#
# Only inflection is taken off. Other forms (happy, unhappy, happiness) mean something else, and stay apart.

_VOWELS = frozenset("aeiou")
_ENGLISH = re.compile(r"[a-z]+")
_KEEPS_S = ("ss", "us", "is", "ous")


@lru_cache(maxsize=8_192)
def stem_of(lower: str) -> str:
    """The stem of a word in lower case. A word that is not spelled with a to z is its own."""
    if (base := _IRREGULAR.get(lower)) is not None:
        return _without_silent_e(base)
    if len(lower) <= 3 or not _ENGLISH.fullmatch(lower):
        return lower
    return _without_silent_e(_without_ending(lower))


def is_past_form(lower: str) -> bool:
    """Whether a word is a verb's past or its participle: won, stolen, asked."""
    if lower in _PAST_FORMS:
        return True
    return lower.endswith("ed") and stem_of(lower) != lower and len(lower) > 4


def _without_ending(word: str) -> str:
    if word.endswith("s"):
        return _singular(word)
    if word.endswith("ied") and len(word) > 4:
        return word[:-3] + "y"
    for ending in ("ed", "ing"):
        base = word[: -len(ending)]
        if word.endswith(ending) and len(base) > 1 and _has_vowel(base) and not base.endswith("e"):
            return _whole_again(base)
    if word.endswith("eed") or word in _NOT_INFLECTED:
        return word
    return word[:-2] + "y" if word.endswith("ie") and len(word) > 4 else word


def _singular(word: str) -> str:
    if word.endswith(_KEEPS_S) or word in _NOT_INFLECTED:
        return word
    if word.endswith("ies"):
        return word[:-3] + "y" if len(word) > 4 else word[:-1]
    return word[:-1]


def _whole_again(base: str) -> str:
    """What was cut off for the ending: hop(p), lov(e), creat(e)."""
    if base.endswith(("at", "bl", "iz", "dl", "gl", "tl", "pl", "kl", "fl")) and len(base) > 3:
        return base + "e"
    if len(base) > 2 and base[-1] == base[-2] and base[-1] not in "aeioulsz":
        return base[:-1]
    return base + "e" if _short_and_closed(base) else base


def _without_silent_e(word: str) -> str:
    """Without the e that inflections drop, unless it tells two short words apart: plan and plane."""
    if len(word) > 3 and word.endswith("e") and word not in _KEEPS_E:
        base = word[:-1]
        if not _short_and_closed(base):
            word = base
    if len(word) > 3 and word[-1] == word[-2] and word[-1] in "lsz":
        word = word[:-1]
    return word


def _short_and_closed(base: str) -> bool:
    """One syllable that ends in consonant, vowel, consonant: lov, hop, stor."""
    if len(base) < 2 or base[-1] in "wxy" or _is_vowel(base, -1) or not _is_vowel(base, -2):
        return False
    return not any(_is_vowel(base, place) for place in range(len(base) - 2))


def _is_vowel(word: str, place: int) -> bool:
    return word[place] in _VOWELS or (word[place] == "y" and place not in (0, -len(word)))


def _has_vowel(word: str) -> bool:
    return any(letter in "aeiouy" for letter in word)


_KEEPS_E = vocabulary("paste morale locale rationale suite route caste envelope secrete humane urbane france")
"""Words that without it would be others: past, moral, suit."""
_NOT_INFLECTED = vocabulary(
    "news species series means always perhaps lens gas mathematics physics economics politics athletics "
    "during nothing something everything anything thing king ring spring string sibling evening ceiling "
    "wedding pudding sterling bed red sled shed hundred sacred naked kindred biped indeed need seed feed "
    "speed breed bleed weed steed deed reed kubernetes windows los angeles texas paris james charles"
)
_VERBS = """
be am is are was were been being|have has had having|do does did done doing|go goes went gone going
say says said|get gets got gotten getting|make makes made making|know knows knew known|think thinks thought
take takes took taken taking|see sees saw seen seeing|come comes came coming|give gives gave given giving
find finds found finding|tell tells told|become becomes became becoming|leave leaves left leaving
feel feels felt|bring brings brought|begin begins began begun|keep keeps kept|hold holds held
write writes wrote written writing|stand stands stood|hear hears heard|mean meant|meet meets met meeting
run runs ran running|pay pays paid|sit sits sat sitting|speak speaks spoke spoken|lie lies lay lain lying
lead leads led|grow grows grew grown|lose loses lost losing|fall falls fell fallen|send sends sent
build builds built|understand understands understood|draw draws drew drawn|break breaks broke broken
spend spends spent|rise rises rose risen rising|drive drives drove driven driving|buy buys bought
wear wears wore worn|choose chooses chose chosen choosing|eat eats ate eaten|teach teaches taught
catch catches caught|fight fights fought|sell sells sold|steal steals stole stolen|throw throws threw thrown
forget forgets forgot forgotten|forgive forgives forgave forgiven|sleep sleeps slept|win wins won winning
fly flies flew flown flying|swim swims swam swum|sing sings sang sung|drink drinks drank drunk
ride rides rode ridden riding|hide hides hid hidden hiding|bite bites bit bitten biting
shake shakes shook shaken
blow blows blew blown|freeze freezes froze frozen freezing|wake wakes woke woken waking|sink sinks sank sunk
seek seeks sought|deal deals dealt|swear swears swore sworn|tear tears tore torn|shoot shoots shot
hang hangs hung|feed feeds fed|lend lends lent|bend bends bent|sweep sweeps swept|stick sticks stuck
strike strikes struck striking|dig digs dug|spin spins spun|light lights lit|shine shines shone shining
use uses used using|die dies died dying|tie ties tied tying|age ages aged aging ageing|owe owes owed owing
see sees|agree agrees agreed agreeing|free frees freed freeing|need needs needed needing
feed feeding|bleed bleeds bled bleeding|breed breeds bred breeding|speed speeds sped speeding
focus focuses focused focusing|travel travelled travelling traveled traveling|cancel cancelled cancelling
add adds added adding|paste pastes pasted pasting|route routes routed routing
"""
_OTHERS = """
bus buses|gas gases|analysis analyses|crisis crises|index indices indexes
man men|woman women|child children|person people|foot feet|tooth teeth|mouse mice|goose geese
wife wives|life lives|knife knives|leaf leaves|wolf wolves|half halves|calf calves|shelf shelves
datum data|criterion criteria|ox oxen|hero heroes|echo echoes|potato potatoes|tomato tomatoes
color colour colors colours|favorite favourite|center centre centers centres|organize organise
organizer organiser|license licence|program programme|email e-mail emails|gray grey|tire tyre
analyze analyse|optimize optimise|behavior behaviour|meter metre|liter litre
"""

# A form that two share (leaves) goes with the first.
_IRREGULAR = families(_VERBS + _OTHERS)
_PAST_FORMS = frozenset(
    form for form, base in families(_VERBS).items() if form != base and not form.endswith(("ing", "s"))
) | {"was"}


_TOKEN = re.compile(r"\w*\d(?:[.,:/]?\w)*[+#%]*|\w+(?:['’]\w+)*(?:\+\+|#)?|[.!?…:;](?=\s)|\n")
_SENTENCE_ENDS = frozenset(".!?…:;\n")


@value
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
