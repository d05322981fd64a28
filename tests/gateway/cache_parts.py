"""Stand-ins for the parts of the answer cache, and the lessons by which a change of words becomes proven."""

from __future__ import annotations

import asyncio
import contextlib
import math

import numpy as np
import orjson

from phasewise.clients.memory_answers import ProcessAnswers
from phasewise.core.caching import Neighbour, StoredAnswer
from phasewise.core.errors import StoreRejected
from phasewise.fleet.config import SemanticConfig
from phasewise.gateway.answer_cache.semantic import evidence_basis
from phasewise.semantic_match.evidence import Budget, EvidenceBook
from phasewise.semantic_match.lessons import Lesson, LessonKind, write_lesson
from phasewise.semantic_match.matching import MatchRules, MatchVerdict, consider, lesson_of
from tests.gateway.harness import listening

QUESTION = "How do I reset my password?"
REWORDED = "How can I reset my password?"
ANOTHER_WORDING = "How would I reset my password?"
NEGATED = "How do I not reset my password?"
ELSEWHERE = "Which rivers flow through Vienna?"
DEGREES = {QUESTION: 0.0, REWORDED: 5.0, ANOTHER_WORDING: 8.0, NEGATED: 3.0, ELSEWHERE: 90.0}
SIMILARITY = math.cos(math.radians(DEGREES[REWORDED]))


class AngleEmbedder:
    """Puts known questions at chosen angles on a circle, unknown ones far away; fails or hangs on demand."""

    space = "circle"

    def __init__(self):
        self.dimensions = 0
        self.embedded = []
        self.error = None
        self.hangs = False

    async def start(self):
        await self.embed("start")
        self.dimensions = 2

    async def embed(self, text):
        self.embedded.append(text)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        angle = math.radians(DEGREES.get(text, 180.0))
        return np.array([math.cos(angle), math.sin(angle)], "<f4").tobytes()

    async def close(self):
        pass


class FlakyStore(ProcessAnswers):
    """A store that fails or hangs on demand, and says what it was asked."""

    def __init__(self):
        super().__init__(2**24)
        self.asked = []
        self.error = None
        self.hangs = False
        self.hanging = ()
        self.rejecting = ()

    async def _asked(self, what):
        self.asked.append(what)
        if self.hangs or what in self.hanging:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        if what in self.rejecting:
            raise StoreRejected("full")

    async def exact(self, key, scope):
        await self._asked("exact")
        return await super().exact(key, scope)

    async def nearest(self, scope, vector, count):
        await self._asked("nearest")
        return await super().nearest(scope, vector, count)

    async def put(self, answer):
        await self._asked("put")
        await super().put(answer)

    async def teach(self, lesson):
        await self._asked("teach")
        await super().teach(lesson)

    async def lessons(self, after):
        await self._asked("lessons")
        return await super().lessons(after)

    async def size(self):
        await self._asked("size")
        return await super().size()


class SetJudge:
    """Says of real questions what it was set to, and remembers what it was asked.

    Of planted ones it says what is true, unless it is `gullible`.
    """

    def __init__(self, verdict=True, *, gullible=False):
        self.verdict = verdict
        self.gullible = gullible
        self.asked = []
        self.planted = []
        self.calls = self.prompt_tokens = 0
        self.busy_s = 0.0

    async def approves(self, pair):
        self.calls += 1
        self.prompt_tokens += 300
        self.busy_s += 0.01
        if pair.asked in DEGREES:
            self.asked.append(pair)
            return self.verdict
        self.planted.append(pair)
        return self.gullible or pair.asked.rstrip("?.") == pair.stored.rstrip("?.")


def make_answer(question=QUESTION, **fields):
    defaults = {
        "key": "k", "scope": "s", "tenant": "default", "namespace": "default", "model": "fake-model",
        "text": "Open the settings.", "made_unix_s": 1.0, "expires_unix_s": 4e9,
    }  # fmt: skip
    return StoredAnswer(question=question, **{**defaults, **fields})


async def teach_all(store, lessons):
    """What a former life of this gateway would have learned."""
    for lesson in lessons:
        await store.teach(write_lesson(lesson))


def planted_lesson(right, basis=""):
    """The judge was asked about a planted pair that differs."""
    return Lesson("", 0, "", right, 1.0, basis, kind=LessonKind.PLANTED_DIFFERENT)


def basis_of(judging_model=None):
    """What lessons of a semantic cache name that is configured as it comes, with this model as its judge."""
    return evidence_basis(SemanticConfig(judge={"model": judging_model}))


def trusting_lessons(judging_model=None):
    """Planted pairs that the judge was right about, until it is trusted."""
    book, lessons = EvidenceBook(Budget(0.01, 0.95)), []
    while not book.judge.is_trusted:
        lessons.append(planted_lesson(True, basis_of(judging_model)))
        book.learn(lessons[-1])
    return lessons


def proving_lessons(question, stored, similarity, domain, judging_model=None):
    """What makes the judge trusted, and right outcomes, in the order of learning, until a match is served.

    They are those of a cache that is configured as it comes. One pair counts once, so each is
    of another request.
    """
    book, lessons = EvidenceBook(Budget(0.01, 0.95)), trusting_lessons(judging_model)
    for lesson in lessons:
        book.learn(lesson)
    near = [Neighbour(make_answer(stored), similarity)]
    while len(lessons) < 5_000:
        match = consider(question, near, book, MatchRules(0.85, 0.05), domain, 0.99)
        if match.verdict is MatchVerdict.SERVE:
            return lessons
        asked, at_unix_s = f"asked {len(lessons)}", float(len(lessons))
        lessons.append(lesson_of(match.chosen, asked, domain, True, at_unix_s, basis_of(judging_model)))
        book.learn(lessons[-1])
    raise AssertionError("this is never proven")


class TaggingEngine:
    """A worker whose every answer names whom it was made for and that it is another: `SALT N`.

    The salt is the tenant's, put in by the gateway. While the gate is shut, nobody is answered.
    """

    def __init__(self):
        self.answers = 0
        self.gate = asyncio.Event()
        self.gate.set()

    @contextlib.asynccontextmanager
    async def running(self):
        async with listening(self._answer) as worker:
            yield worker

    async def _answer(self, head, body, writer):
        asked = orjson.loads(body)
        self.answers += 1
        text = f"{asked.get('cache_salt')} {self.answers}"
        await self.gate.wait()
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        message = {"role": "assistant", "content": text}
        reply = {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "fake-model",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage,
        }  # fmt: skip
        data = orjson.dumps(reply)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data)
        with contextlib.suppress(ConnectionError):
            writer.write(head + data)


def text_of(reply):
    """What a plain answer says."""
    assert reply.status == 200, reply.body
    return orjson.loads(reply.body)["choices"][0]["message"]["content"]


def status_of(reply):
    """What a reply says of the cache: hit_exact, miss, and so on, as its header puts it."""
    return dict(reply.headers)[b"cache-status"].decode().removeprefix("phasewise; ")
