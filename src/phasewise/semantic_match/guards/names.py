"""Names, and whatever is meant to the letter: quotations, code, addresses, files, identifiers."""

from __future__ import annotations

import re
from itertools import groupby

from phasewise.semantic_match.guards.questions import asks_how_to, skips_request
from phasewise.semantic_match.guards.reading import (
    SMALL_WORDS_AS_NAMES,
    Reading,
    either_alone,
    is_distinctive,
    once,
    usual_name,
)
from phasewise.semantic_match.words import Word, stem_of, vocabulary

_TO_THE_LETTER = re.compile(
    r"`[^`\n]{1,400}`"
    r'|"[^"\n]{1,400}"|“[^”\n]{1,400}”|«[^»\n]{1,400}»'
    r"|(?<!\w)'[^'\n]{1,400}'(?!\w)|(?<!\w)‘[^’\n]{1,400}’(?!\w)"
    r"|\b(?:https?|ftp|file|ssh)://[^\s<>\"]{1,400}"
    r"|(?<![\w.])(?<![+-]{2})[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){0,8}"
    r"|(?<!\w)[@#][A-Za-z_]\w{0,63}"
    r"|(?<!\w)(?<!--)(?:[~.]{0,2}/)?[\w-]{1,64}(?:/[\w.-]{1,64}){1,16}"
    r"|(?<!\w)--?[A-Za-z][\w-]{0,63}"
    r"|\b[\w-]{1,64}\.[A-Za-z]\w{0,9}\b"
    r"|\b[A-Za-z]\w{0,63}_\w{1,63}\b"
)
"""Nothing begins within a row of dashes: to try each of them would take long."""
_MARKS = re.compile("[`\"“«'‘@#/._-]")
"""One of them stands in whatever is meant to the letter; most questions have none."""
_ALSO_SMALL_WORDS = SMALL_WORDS_AS_NAMES - {"I", "A"}
_MOST_LOOKED_FOR = 32
"""In a text with more of them, each must stand as it does in the other."""
_TRAILING = ".,;:!?…"
_QUOTES = "`\"“”«»'‘’"


def letters_differ(one: Reading, other: Reading) -> str | None:
    """What is quoted, or is an address, a file or an identifier, in only one of two questions."""
    ours, theirs = _verbatim(one), _verbatim(other)
    return either_alone(_missing(ours - theirs, other.text), _missing(theirs - ours, one.text))


def names_differ(one: Reading, other: Reading) -> str | None:
    """The names that stand in one question and nowhere, however written, in the other."""
    ours = _names(one) - _known(other)
    theirs = _names(other) - _known(one)
    return either_alone(ours, theirs)


def _missing(alone: frozenset[str], other: str) -> frozenset[str]:
    """What stands nowhere in the other text, quoted or not."""
    if len(alone) > _MOST_LOOKED_FOR:
        return alone
    return frozenset(found for found in alone if not _stands_in(other, found))


def _stands_in(text: str, found: str) -> bool:
    """Whether something stands in a text, and not as a part of a longer word."""
    at = text.find(found)
    while at >= 0:
        around = text[max(0, at - 1) : at] + text[at + len(found) : at + len(found) + 1]
        if not any(letter.isalnum() or letter == "_" for letter in around):
            return True
        at = text.find(found, at + len(found))
    return False


@once
def _verbatim(reading: Reading) -> frozenset[str]:
    if not _MARKS.search(reading.text):
        return frozenset()
    return frozenset(
        found.rstrip(_TRAILING).strip(_QUOTES).strip() for found in _TO_THE_LETTER.findall(reading.text)
    ) - {""}


@once
def _known(reading: Reading) -> frozenset[str]:
    return reading.content_set | {name for word in reading.words for name in (word.stem, word.surface)}


@once
def _names(reading: Reading) -> frozenset[str]:
    """The words that are names by their letters; as written if they are also small words: IT."""
    return frozenset(
        word.surface if word.surface in _ALSO_SMALL_WORDS else word.stem
        for word in reading.words
        if _is_single_letter(word) or (reading.capitals_are_distinctive and _is_name(word))
    )


def _is_single_letter(word: Word) -> bool:
    """vitamin c, plan b."""
    return len(word.lower) == 1 and word.lower.isalpha() and is_distinctive(word)


def _is_name(word: Word) -> bool:
    """A capital letter, but at the beginning of a sentence only if another follows: NASA, iPhone, getName."""
    if word.surface.islower():
        return False
    if word.surface in _ALSO_SMALL_WORDS:
        return True
    inner = any(letter.isupper() for letter in word.surface[1:])
    return is_distinctive(word) and (inner or (word.surface[0].isupper() and not word.opens))


# --- Who does it to whom, where pronouns tell: he and she, I and you.

_GENDERED = {
    "he": "he", "him": "him", "his": "his", "himself": "himself", "she": "she", "her": "her", "hers": "her",
    "herself": "herself", "themselves": "themselves", "itself": "itself",
}  # fmt: skip
_CASES = (("i", "me"), ("they", "them"), ("we", "us"))
_SPEAKER = vocabulary("i me my mine myself we us our ours ourselves")
_SPOKEN_TO = vocabulary("you your yours yourself yourselves")


def persons_differ(one: Reading, other: Reading) -> str | None:
    """Who is spoken of, in their order, if that is not the same in both questions."""
    ours, theirs = _gendered(one), _gendered(other)
    if ours != theirs:
        return f"{' '.join(ours) or '-'} | {' '.join(theirs) or '-'}"
    ours, theirs = _speakers(one), _speakers(other)
    if ours and theirs and ours != theirs:
        return f"{' '.join(ours)} | {' '.join(theirs)}"
    for subject, object_ in _CASES:
        if _only(subject, object_, one, other) or _only(subject, object_, other, one):
            return f"{subject} | {object_}"
    return None


def _only(subject: str, object_: str, one: Reading, other: Reading) -> bool:
    """Whether somebody acts in one question and suffers in the other: who did I call, who called me."""
    return (
        subject in one.lower_set
        and object_ in other.lower_set
        and object_ not in one.lower_set
        and subject not in other.lower_set
        and not asks_how_to(one.lowers)
    )


@once
def _gendered(reading: Reading) -> list[str]:
    return [_GENDERED[lower] for lower in reading.lowers if lower in _GENDERED]


@once
def _speakers(reading: Reading) -> list[str]:
    """I and you in their order, each run of one of them once.

    In "how do I" and "how do you" both are anybody, and so is the you of "could you explain".
    """
    lowers = skips_request(reading.lowers)
    if asks_how_to(lowers):
        lowers = tuple(lower for lower in lowers if lower not in ("i", "you", "we", "your", "my", "our"))
    named = ["i" if lower in _SPEAKER else "you" for lower in lowers if lower in _SPEAKER | _SPOKEN_TO]
    return [name for name, _ in groupby(named)]


# --- What a question is about by a well-known name, however it is spelled: languages, countries, systems.

_NAMES = vocabulary(
    # countries, and the languages and people called after them
    "france french germany german spain spanish italy italian portugal portuguese england english britain "
    "british scotland scottish wales welsh ireland irish netherlands dutch belgium belgian switzerland "
    "swiss austria austrian sweden swedish norway norwegian denmark danish finland finnish iceland "
    "icelandic poland polish russia russian ukraine ukrainian czechia czech slovakia hungary hungarian "
    "romania romanian bulgaria bulgarian serbia serbian croatia croatian greece greek turkey turkish "
    "israel hebrew iran iranian persian farsi iraq iraqi egypt egyptian arabic morocco tunisia algeria "
    "nigeria kenya ethiopia ghana uganda tanzania china chinese mandarin cantonese japan japanese korea "
    "korean india indian hindi bengali tamil urdu pakistan bangladesh nepal thailand thai vietnam "
    "vietnamese indonesia indonesian malaysia malay philippines tagalog singapore taiwan australia "
    "australian america american usa canada canadian mexico mexican brazil brazilian argentina chile peru "
    "colombia venezuela cuba latin europe european asia asian africa african "
    # cities
    "london paris berlin madrid rome vienna moscow tokyo beijing shanghai delhi mumbai sydney melbourne "
    "toronto chicago boston seattle dublin lisbon athens cairo istanbul dubai amsterdam brussels prague "
    "warsaw budapest "
    # programming languages and systems
    "python java javascript typescript golang rust ruby php perl kotlin scala haskell erlang elixir "
    "clojure fortran cobol matlab julia lua bash powershell c++ c# sql html css xml json yaml csv toml "
    "markdown windows linux macos mac android ios iphone ubuntu debian fedora centos chrome firefox "
    "safari edge mysql postgresql postgres sqlite mongodb redis oracle cassandra aws azure gcp docker "
    "kubernetes podman react angular vue svelte django flask fastapi rails spring node npm yarn pip conda "
    "git svn mercurial github gitlab bitbucket tensorflow pytorch keras numpy pandas excel word "
    "powerpoint sheets gmail outlook facebook instagram twitter linkedin whatsapp telegram youtube "
    "netflix spotify amazon google apple microsoft tesla nvidia intel amd samsung "
    # faiths, planets, elements
    "christian christianity muslim islam islamic jewish judaism hindu hinduism buddhist buddhism catholic "
    "protestant mercury venus mars jupiter saturn uranus neptune pluto gold silver copper iron hydrogen "
    "helium oxygen nitrogen carbon "
)
_STEMS = frozenset(usual_name(stem_of(name)) for name in _NAMES)


def targets_differ(one: Reading, other: Reading) -> str | None:
    """The well-known names that only one of two questions has."""
    return either_alone(one.content_set & _STEMS, other.content_set & _STEMS)
