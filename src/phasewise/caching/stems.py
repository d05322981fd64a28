"""The stem that an English word's inflections share: steal for steals, stealing, stole and stolen.

Only inflection is taken off. Other forms (happy, unhappy, happiness) mean something else, and stay apart.
"""

from __future__ import annotations

import re
from functools import lru_cache

from phasewise.caching.vocabulary import families, vocabulary

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
