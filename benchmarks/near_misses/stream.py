"""Traffic with known answers: what comes again, what comes in other words, what only looks alike, and drift.

Every third of a stream asks more in some domains than in others. Some kinds of near miss come in the last
third only, and then often. In the last third, too, a few rewordings that were right turn wrong; what is asked
of them then was not asked before, so that no stored answer has become old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from .grammar import Frame, Kind, Question, draw_question, near_miss, reworded_turn
from .library import Library, Wording, first_wording, reworded
from .pairs import PARAPHRASE, QuestionPair
from .requests import FRESH, REPEAT, Request
from .strewing import strew

MIXES = (
    {REPEAT: 0.15, PARAPHRASE: 0.42, "near miss": 0.15, FRESH: 0.28},
    {REPEAT: 0.20, PARAPHRASE: 0.45, "near miss": 0.18, FRESH: 0.17},
    {REPEAT: 0.15, PARAPHRASE: 0.35, "near miss": 0.35, FRESH: 0.15},
)
COMES_AGAIN = {REPEAT: 0.6, PARAPHRASE: 0.2, "near miss": 0.1, FRESH: 0.1}
"""The day after, when most questions were asked before, in these words or others."""
RECENT = 600
"""Half of what comes again was asked among the last so many questions; the rest is what is always asked."""
LATE_WEIGHT = 4
TURNING_WEIGHT = 3
REWORDED_NEAR_MISSES = 0.3
"""The rest differ from a question that was asked in nothing but the value that matters."""
MOST_TRIES = 40


@dataclass
class _Asked:
    """Something that was asked, in all the words that were used for it."""

    frame: Frame
    said: list[tuple[Question, Wording]]


@dataclass
class _Past:
    """What was asked so far."""

    asked: list[_Asked] = field(default_factory=list)
    by_class: dict[str, _Asked] = field(default_factory=dict)
    by_kind: dict[Kind, list[_Asked]] = field(default_factory=lambda: defaultdict(list))
    texts: set[str] = field(default_factory=set)

    def add(self, answer_class: str, asked: _Asked) -> None:
        """Something that was not asked before."""
        self.asked.append(asked)
        self.by_class[answer_class] = asked
        for kind in asked.frame.kinds():
            self.by_kind[kind].append(asked)


class Stream:
    """Draws a stream from a library, with pairs from elsewhere strewn in."""

    def __init__(self, library: Library, seed: int, length: int) -> None:
        self._library = library
        self._rng = Random(f"stream {library.name} {seed}")
        self._length = length
        self._past = _Past()
        self._third = 0

    def requests(self, pairs: Sequence[QuestionPair] = ()) -> Iterator[Request]:
        """All requests in order, the pairs' questions among them, the second of each after its first."""
        strewn = strew(pairs, self._library.late, self._length, self._rng)
        for place in range(self._length):
            if place * 3 // self._length > self._third:
                self._third += 1
                self._turn()
            yield strewn[place] if place in strewn else self._next(MIXES[self._third])

    def again(self, length: int) -> Iterator[Request]:
        """The day after, to be drawn after all requests."""
        for _ in range(length):
            yield self._next(COMES_AGAIN)

    def _turn(self) -> None:
        if self._third == 2:
            for asked in (self._past.asked, *self._past.by_kind.values()):
                asked[:] = [each for each in asked if not _turns(each.frame)]

    def _next(self, mix: Mapping[str, float]) -> Request:
        what = self._rng.choices(list(mix), weights=list(mix.values()))[0]
        if not self._past.asked:
            return self._fresh()
        if what == REPEAT:
            return self._said(*self._rng.choice(_some(self._past.asked, self._rng).said), REPEAT)
        if what == PARAPHRASE:
            return self._paraphrase() or self._fresh()
        return (self._near_miss() if what == "near miss" else None) or self._fresh()

    def _fresh(self) -> Request:
        frames = self._library.frames
        weights = [self._weight(frame) for frame in frames]
        for _ in range(MOST_TRIES):
            question = self._draw(self._rng.choices(frames, weights)[0])
            if self._class_of(question) not in self._past.by_class:
                break
        return self._said(question, first_wording(self._library, question.frame, self._rng), FRESH)

    def _paraphrase(self) -> Request | None:
        for _ in range(MOST_TRIES):
            asked, wording = self._rng.choice(_some(self._past.asked, self._rng).said)
            other = reworded(self._library, asked, wording, self._rng)
            if other is None:
                continue
            question = asked if self._third == 2 else reworded_turn(asked, self._rng)
            if other[0].of(question) in self._past.texts:
                continue
            return self._said(question, other[0], f"{PARAPHRASE}_{other[1]}")
        return None

    def _near_miss(self) -> Request | None:
        kinds = [kind for kind in Kind if self._past.by_kind[kind] and self._may_come(kind)]
        if not kinds:
            return None
        late = self._library.late | {Kind.TURNED}
        kind = self._rng.choices(kinds, [LATE_WEIGHT if kind in late else 1 for kind in kinds])[0]
        for _ in range(MOST_TRIES):
            asked, wording = self._rng.choice(_some(self._past.by_kind[kind], self._rng).said)
            question = near_miss(asked, kind, self._rng)
            if self._class_of(question) in self._past.by_class or not self._in_its_time(question):
                continue
            if self._rng.random() < REWORDED_NEAR_MISSES:
                wording, _ = reworded(self._library, question, wording, self._rng) or (wording, "")
            return self._said(question, wording, kind.value)
        return None

    def _may_come(self, kind: Kind) -> bool:
        return self._third == 2 or kind not in self._library.late | {Kind.TURNED}

    def _weight(self, frame: Frame) -> float:
        domains = sorted({frame.domain for frame in self._library.frames})
        place = domains.index(frame.domain)
        if self._third == 0 and place >= len(domains) - 2:
            return 0.0
        weight = 4.0 if (place + self._third) % 3 == 0 else 1.0
        return TURNING_WEIGHT * weight if _turns(frame) else weight

    def _draw(self, frame: Frame) -> Question:
        while True:
            question = draw_question(frame, self._rng)
            if self._in_its_time(question):
                return question

    def _in_its_time(self, question: Question) -> bool:
        """Of frames that turn, half of the numbers are asked about before that, the other half afterwards."""
        frame = question.frame
        numbers = [
            next(group.index(value) for group in frame.slots[name].groups if value in group)
            for name, value in question.values
            if frame.slots[name].kind is Kind.NUMBER
        ]
        return not _turns(frame) or numbers[0] % 2 == (self._third == 2)

    def _class_of(self, question: Question) -> str:
        return question.answer_class(turned=self._third == 2)

    def _said(self, question: Question, wording: Wording, kind: str) -> Request:
        text, answer_class = wording.of(question), self._class_of(question)
        past = self._past
        if answer_class in past.by_class:
            past.by_class[answer_class].said.append((question, wording))
        else:
            past.add(answer_class, _Asked(question.frame, [(question, wording)]))
        kind = REPEAT if text in past.texts else kind
        past.texts.add(text)
        return Request(text, answer_class, kind, self._third)


def _some(asked: list[_Asked], rng: Random) -> _Asked:
    """The earliest are the most popular; the latest come up again as well."""
    if rng.random() < 0.5:
        return asked[int(len(asked) * rng.random() ** 3)]
    return rng.choice(asked[-RECENT:])


def _turns(frame: Frame) -> bool:
    return Kind.TURNED in frame.kinds()
