"""Negation: not, never, without, un-, -less; how often something is denied, and what."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from phasewise.semantic_match.guards.reading import Reading, content_of, either_alone, is_distinctive, once
from phasewise.semantic_match.words import stem_of, vocabulary

_NEGATORS = vocabulary(
    "not no never none nobody nothing nowhere neither nor without non hardly barely scarcely unable except "
    "excluding unless instead lack lacks lacking fail fails failed avoid avoids avoiding prevent prevents "
    "preventing refuse refuses refused free forbid forbids forbidden exclude anti stop stops stopping nope"
)
_PREFIXES = ("un", "in", "im", "il", "ir", "dis", "non", "mis", "anti", "de", "a", "counter", "mal")
_SHORTEST_ROOT = 3


def negations_differ(one: Reading, other: Reading) -> str | None:
    """What only one of two questions denies."""
    ours, theirs = _denied(one), _denied(other)
    if ours != theirs:
        return f"{_listed(ours - theirs)} | {_listed(theirs - ours)}"
    return _by_form(one, other)


def _listed(denied: Counter[tuple[str, str]]) -> str:
    return ", ".join(sorted(" ".join(pair).strip() for pair in denied)) or "-"


@once
def _denied(reading: Reading) -> Counter[tuple[str, str]]:
    """Each word that denies, with the next word of content: what it denies."""
    denied: Counter[tuple[str, str]] = Counter()
    target = ""
    for word in reversed(reading.words):
        if word.lower in _NEGATORS:
            denied[word.lower, target] += 1
        elif is_distinctive(word):
            target = content_of(word)
    return denied


def _by_form(one: Reading, other: Reading) -> str | None:
    """happy and unhappy, hopeful and hopeless: the same root, in one question with a part that denies."""
    ours, theirs = one.stem_set - other.stem_set, other.stem_set - one.stem_set
    for alone, against in ((ours, theirs), (theirs, ours)):
        for stem in alone:
            if any(prefixed in against for prefixed in _denials(stem)):
                return f"{stem} | {', '.join(sorted(against))}"
    return None


def _denials(stem: str) -> list[str]:
    """How a stem's opposites are formed."""
    if len(stem) < _SHORTEST_ROOT:
        return []
    root = stem.removesuffix("ful")
    return [prefix + stem for prefix in _PREFIXES] + [root + "les", root + "less"]


# --- Words that are each other's opposites, by topic.
#
# A line may name several on each side: all of the left are opposed to all of the right.

_PAIRS = """
# size, amount and extent
big large huge: small little tiny|long: short brief|tall: short|high: low|wide broad: narrow|deep: shallow
thick: thin|heavy: light|full: empty|many: few|much: little|more: less fewer|most: least fewest
maximum max maximal: minimum min minimal|increase rise grow: decrease fall shrink drop decline reduce
raise: lower|expand: contract shrink|gain: lose|add: subtract remove|multiply: divide|plus: minus
upper: lower|greater: lesser smaller less|longer: shorter|taller: shorter|higher: lower|bigger larger: smaller
above: below under beneath|over: under|majority: minority|total: partial|whole: part|entire: partial
surplus: deficit shortage|excess: shortage|unlimited infinite: limited finite|ceiling: floor|peak: trough
widen: narrow|lengthen: shorten|strengthen: weaken|thicken: thin|inflate: deflate|ascend: descend
ascending: descending|grow: shrink|extend: shorten|overestimate: underestimate|overweight: underweight
# speed, age and time
fast quick rapid: slow|accelerate: decelerate|faster quicker: slower|early: late|earlier: later
young: old elderly|new: old used|modern: ancient|before: after|begin start: end finish stop|first: last
open: close shut|opened: closed|arrive: depart leave|arrival: departure|enter: exit leave|entrance: exit
past: future|next: previous last|temporary: permanent|always: never|often frequently: rarely seldom
sooner: later|day: night|morning: evening|sunrise: sunset|dawn: dusk|summer: winter|spring: autumn
oldest: newest youngest latest|older: younger newer|previous: following next|launch: shutdown|birth: death
born: die|precede: follow|advance: retreat delay|begin: conclude|resume: pause|continue: stop quit
# quality and judgement
good great: bad evil poor|better: worse|best: worst|right correct: wrong incorrect|true: false
positive: negative|easy simple: hard difficult|strong: weak|safe: dangerous unsafe|clean: dirty
beautiful pretty: ugly|cheap: expensive|rich wealthy: poor|success: failure|succeed: fail|win: lose
winner: loser|pro: con|pros: cons|advantage benefit: disadvantage drawback|strength: weakness
useful: useless|perfect: flawed|superior: inferior|fresh: stale|ripe: rotten|smooth: rough|sharp: blunt dull
bright: dark dim|light: dark|loud: quiet|noisy: quiet silent|healthy: sick ill unhealthy|real: fake
genuine authentic: fake counterfeit|natural: artificial synthetic|pure: mixed|normal: abnormal weird
ordinary: extraordinary special|common: rare|popular: obscure|famous: unknown|important: trivial
virtue: vice|hero: villain|friend: enemy foe|ally: enemy|love: hate|like: dislike hate|praise: blame criticize
improve: worsen|heal: harm hurt|help: harm hinder|helpful: harmful|harmless: harmful|careful: careless
agree: disagree|accept: reject refuse decline|approve: disapprove reject
allow permit: forbid ban prohibit deny
legal: illegal|innocent: guilty|moral: immoral|fair: unfair|honest: dishonest|trust: distrust
# character and feeling
happy glad: sad unhappy|optimistic: pessimistic|optimist: pessimist|brave courageous: cowardly fearful
polite: rude|kind: cruel mean|generous: stingy greedy|humble modest: proud arrogant|patient: impatient
calm: anxious nervous|lazy: diligent hardworking|smart intelligent clever: stupid dumb|wise: foolish
active: passive|shy: outgoing|introvert: extrovert|introverted: extroverted|selfish: selfless
mature: immature|serious: funny|strict: lenient|tense: relaxed|hopeful: hopeless|religious: secular
liberal progressive: conservative|confident: insecure|love: hatred|laugh: cry|smile: frown|joy: sorrow
pleasure: pain|tolerant: intolerant|violent: peaceful|aggressive: passive|defensive: offensive
# place and direction
up: down|in: out|on: off|into: out|left: right|north: south|east: west|northern: southern|eastern: western
top: bottom|front: back rear|forward: backward back|inside: outside|indoor: outdoor|indoors: outdoors
internal: external|near close: far distant|here: there|come: go|push: pull|send: receive|to: from
inbound: outbound|incoming: outgoing|upload: download|upstream: downstream|horizontal: vertical
clockwise: counterclockwise anticlockwise|import: export|immigrate: emigrate|immigration: emigration
ahead: behind|beginning: end|input: output|source: destination target|sender: recipient receiver
uphill: downhill|upstairs: downstairs|onshore: offshore|domestic: foreign|local: remote global|rural: urban
# doing and undoing
buy purchase: sell|buyer: seller|borrow: lend|rent: own|give: take|teach: learn|teacher: student
ask: answer|question: answer|build create make: destroy delete|install: uninstall|enable: disable
lock: unlock|connect: disconnect|attach: detach|join: leave|login: logout|encrypt: decrypt|encode: decode
compress: decompress|freeze: thaw melt|heat: cool|hot: cold|warm: cool|wet: dry|hire: fire|save: spend
deposit: withdraw|earn: spend|pay: owe|profit: loss|income revenue: expense cost|debit: credit
asset: liability
attack: defend|show: hide|find: lose|remember: forget|wake: sleep|live: die|alive: dead|life: death
lift: drop|tie: untie|wrap: unwrap|load: unload|merge: split|combine: separate|include: exclude
read: write|speak: listen|reward: punish|release: capture|keep: discard|hold: release|encourage: discourage
follow: lead|obey: disobey|appear: disappear vanish|cause: prevent|pass: fail|start: stop|sit: stand
subscribe: unsubscribe|commit: revert|mount: unmount|activate: deactivate|approve: deny|grant: revoke
block: unblock|mute: unmute|serialize: deserialize|push: pop|append: prepend|allocate: free|create: drop
sleep: wake|inhale: exhale|gain: loss|bull: bear|bullish: bearish|supply: demand|lender: borrower
landlord: tenant|employer: employee|doctor: patient|plaintiff: defendant|predator: prey|host: guest
# people and roles
man: woman|men: women|boy: girl|male: female|husband: wife|brother: sister|son: daughter|father: mother
king: queen|uncle: aunt|nephew: niece|actor: actress|parent: child|adult: child|grandfather: grandmother
mr: mrs ms|boyfriend: girlfriend|groom: bride|dad: mom|him: her|he: she|his: her|public: private
single: married|ancestor: descendant|senior: junior|amateur: professional|major: minor|master: apprentice
# state, logic and technique
with: without|for: against|all every: none no some|everyone everybody: nobody|everything: nothing
anything: nothing|somebody someone: nobody|always: sometimes|must: may|required mandatory: optional
possible: impossible|visible: invisible|known: unknown|hard: soft|solid: liquid|odd: even|sync: async
synchronous: asynchronous|static: dynamic|mutable: immutable|client: server|frontend: backend
primary: secondary
absolute: relative|abstract: concrete|active: inactive|available: unavailable|valid: invalid
complete: incomplete
dependent: independent|direct: indirect|regular: irregular|renewable: nonrenewable|alkaline: acidic|acid: base
conductor: insulator|convex: concave|cathode: anode|proton: electron|analog: digital|theory: practice
cause: effect|offline: online|odd: normal|wholesale: retail|vegetarian: carnivore|raw: cooked|ally: opponent
hardware: software|lossy: lossless|stateful: stateless|horizontal: vertical|parallel: serial sequential
bullish: bearish|vowel: consonant|singular: plural|prefix: suffix|synonym: antonym|subjective: objective
qualitative: quantitative|deductive: inductive|inductive: deductive|explicit: implicit|simple: complex
sweet: sour bitter|tight: loose|straight: crooked curved|awake: asleep|present: absent|presence: absence
guilt: innocence|war: peace|victory: defeat|heaven: hell|angel: devil|yes: no|freedom: slavery
"""


_DERIVED = ("er", "est", "en", "ly", "ness")
"""What makes opposites of opposites: strongest and weakest, tighten and loosen."""


def with_ending(word: str, ending: str) -> tuple[str, ...]:
    """How a word may look with an ending: nicer, happier, and bigger for big."""
    root = word.removesuffix("e") if ending[0] == "e" else word
    if not root:
        return ()
    if root.endswith("y"):
        return (root[:-1] + "i" + ending,)
    return (root + ending, root + root[-1] + ending) if ending[0] == "e" else (root + ending,)


def _opposed(lines: str) -> dict[str, frozenset[str]]:
    """Each stem to its opposites, in both directions."""
    found: dict[str, set[str]] = {}
    for pair in "|".join(line for line in lines.splitlines() if line and not line.startswith("#")).split("|"):
        left, _, right = pair.partition(":")
        for one in left.split():
            for other in right.split():
                for mine, yours in _forms(one, other):
                    found.setdefault(stem_of(mine), set()).add(stem_of(yours))
                    found.setdefault(stem_of(yours), set()).add(stem_of(mine))
    return {stem: frozenset(opposites - {stem}) for stem, opposites in found.items()}


def _forms(one: str, other: str) -> list[tuple[str, str]]:
    return [(one, other)] + [
        (mine, yours)
        for ending in _DERIVED
        for mine in with_ending(one, ending)
        for yours in with_ending(other, ending)
    ]


OPPOSED = _opposed(_PAIRS)
"""The opposites of a stem."""


# --- Opposites: where one question has a word and the other its antonym, they ask for opposite things.

_ARTICLES = frozenset({"a", "an", "the"})
_PARTIES = (("er", "ee"), ("or", "ee"), ("er", "est"))
_OPPOSED_PREFIXES = (
    ("over", "under"), ("hyper", "hypo"), ("super", "sub"), ("pre", "post"), ("up", "down"), ("in", "out"),
    ("micro", "macro"), ("intra", "inter"), ("mono", "poly"), ("uni", "multi"), ("homo", "hetero"),
    ("endo", "exo"), ("en", "de"), ("im", "ex"), ("in", "ex"), ("pro", "anti"), ("maxi", "mini"),
)  # fmt: skip


def opposites_differ(one: Reading, other: Reading) -> str | None:
    """A word of one question whose opposite stands in the other; each is in its own alone."""
    ours, theirs = one.stem_set, other.stem_set
    for stem in sorted(ours - theirs):
        for opposite in OPPOSED.get(stem, ()):
            if opposite in theirs and opposite not in ours:
                return f"{stem} | {opposite}"
    return _degrees_or_parties(ours - theirs - _doers(one), theirs - ours - _doers(other))


@once
def _doers(reading: Reading) -> frozenset[str]:
    """Words like teacher and owner, which end as bigger does: an article before them, and no noun behind."""
    words = reading.words
    return frozenset(
        word.stem
        for place, word in enumerate(words)
        if word.lower.endswith("er")
        and place
        and words[place - 1].lower in _ARTICLES
        and (place + 1 == len(words) or not is_distinctive(words[place + 1]))
    )


def _degrees_or_parties(ours: frozenset[str], theirs: frozenset[str]) -> str | None:
    """big and bigger, employer and employee, overpaid and underpaid: one root, otherwise begun or ended."""
    for alone, against in ((ours, theirs), (theirs, ours)):
        for stem in sorted(alone):
            for form in sorted(_turned(stem) & against):
                return f"{stem} | {form}"
    return None


@lru_cache(maxsize=4_096)
def _turned(stem: str) -> frozenset[str]:
    """The stems of the forms of a word that turn the question."""
    forms = {form for ending in ("er", "est") for form in with_ending(stem, ending)}
    for end, turned in _PARTIES:
        if stem.endswith(end):
            forms.add(stem.removesuffix(end) + turned)
    for one, other in _OPPOSED_PREFIXES:
        rest = stem.removeprefix(one)
        if rest != stem and len(rest) >= _SHORTEST_ROOT:
            forms.add(other + rest)
    return frozenset(map(stem_of, forms))


# --- What joins the parts of a question: "a or b" is not "a and b", and "if" is not "because".

_JOINTS = {
    "or": "or", "if": "if", "unless": "unless", "because": "because", "although": "although",
    "though": "although", "despite": "although", "while": "while", "whilst": "while", "either": "or",
    "than": "than", "rather": "rather", "besides": "besides", "so": "so",
}  # fmt: skip


def connectives_differ(one: Reading, other: Reading) -> str | None:
    """The conjunctions that only one of two questions has."""
    return either_alone(_joints(one), _joints(other))


@once
def _joints(reading: Reading) -> frozenset[str]:
    return frozenset(_JOINTS[lower] for lower in reading.lower_set if lower in _JOINTS)
