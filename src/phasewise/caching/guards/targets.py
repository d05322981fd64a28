"""What a question is about by a well-known name, however it is spelled: languages, countries, systems.

Names that are told by their capital letters are names.py's.
"""

from __future__ import annotations

from phasewise.caching.guards.reading import Reading, either_alone
from phasewise.caching.guards.synonyms import usual_name
from phasewise.caching.stems import stem_of
from phasewise.caching.vocabulary import vocabulary

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
