"""Stand-ins for the parts of the answer cache, and the lessons by which a change of words becomes proven."""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import replace

import numpy as np
import orjson

from phasewise.clients.memory_answers import ProcessAnswers
from phasewise.core.caching import Neighbour, StoredAnswer
from phasewise.core.errors import StoreRejected
from phasewise.fleet.config import SemanticConfig
from phasewise.gateway.answer_cache.semantic import evidence_basis
from phasewise.semantic_match.evidence import Bound, EvidenceBook
from phasewise.semantic_match.matching import MatchRules, MatchVerdict, consider
from tests.gateway.harness import listening

QUESTION = "How do I reset my password?"
REWORDED = "How can I reset my password?"
NEGATED = "How do I not reset my password?"
ELSEWHERE = "Which rivers flow through Vienna?"
DEGREES = {QUESTION: 0.0, REWORDED: 5.0, NEGATED: 3.0, ELSEWHERE: 90.0}
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
    """Says what it was set to, and remembers what it was asked."""

    def __init__(self, verdict=True):
        self.verdict = verdict
        self.asked = []

    async def right(self, question, stored, made):
        self.asked.append((question, stored, made))
        return self.verdict


def make_answer(question=QUESTION, **fields):
    defaults = {
        "key": "k", "scope": "s", "tenant": "default", "namespace": "default", "model": "fake-model",
        "text": "Open the settings.", "made_unix_s": 1.0, "expires_unix_s": 4e9,
    }  # fmt: skip
    return StoredAnswer(question=question, **{**defaults, **fields})


def proving_lessons(question, stored, similarity, domain, bound=None):
    """Right outcomes, in the order in which they would be learned, until such a match is served.

    They are those of a cache that is configured as it comes.
    """
    book = EvidenceBook(bound or Bound(0.01, 0.95))
    near = [Neighbour(make_answer(stored), similarity)]
    lessons = []
    while len(lessons) < 5_000:
        match = consider(question, near, book, MatchRules(0.85, 0.05), domain, 0.99)
        if match.verdict is MatchVerdict.SERVE:
            return [replace(it, basis=evidence_basis(SemanticConfig())) for it in lessons]
        lessons.append(match.lesson(domain, True, float(len(lessons))))
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
