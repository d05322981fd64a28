"""The cache's background work: store answers, have matches judged, and read what all gateways have learned.

No request waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from phasewise.core.caching import Purge, StoredAnswer, Vector
from phasewise.core.errors import EmbedderBusy, EmbedderUnreachable, StoreRejected, StoreUnreachable
from phasewise.core.ports import AnswerStore
from phasewise.core.value import value
from phasewise.gateway.answer_cache.deadline import Breaker
from phasewise.gateway.answer_cache.judges import Judge, QuestionPair
from phasewise.gateway.answer_cache.report import CacheReport
from phasewise.gateway.answer_cache.semantic import SemanticMatch
from phasewise.gateway.guard import ErrorGuard
from phasewise.semantic_match.identity import Identity
from phasewise.semantic_match.lessons import Lesson, LessonKind, read_lesson, write_lesson
from phasewise.semantic_match.matching import Considered, lesson_of
from phasewise.semantic_match.planted import is_worth_judging, plant, planted_wanted

MOST_WAITING = 1_000
"""Queued items of each kind of work. More are dropped: an answer that is not stored costs one more miss."""
WITHIN_S = 5.0
"""The deadline of a store or an embedder in the background."""
EMBED_AGAIN_AFTER_S = 1.0
READ_EVERY_S = 1.0
COUNT_EVERY_S = 1.0
COUNT_ONE_BY_ONE_EVERY_S = 60.0
"""For a shared store without an index, which scans all its keys to count its answers."""
MOST_PAGES = 1_000
PURGES_REMEMBERED = 256
STOP_WITHIN_S = 2.0

_SAYS_NOTHING_OF_LOOK_UPS = (TimeoutError, StoreRejected)
"""Errors of large store operations, which do not mean that look-ups fail."""

_Work = TypeVar("_Work")


@value
class Kept:
    """An answer to store; with `semantic` for other wordings too. Its request arrived at `entered_s`.

    `again`: it is stored already, but without a vector because the embedder was busy.
    """

    answer: StoredAnswer
    semantic: bool
    entered_s: float
    again: bool = False


@value
class JudgedMatch:
    """A match to judge, and the model's own answer to the question, from which planted pairs are made.

    `asked_unix_s` is the time of the question. `servable`: the match was good enough to be served.
    """

    identity: Identity
    chosen: Considered
    made: str
    asked_unix_s: float
    servable: bool


class CacheLearning:
    """Works through two queues, because one waits for a judge, and reads what all gateways have learned.

    All lessons, this gateway's own included, reach the book through the store's log, so that all books agree.
    `semantic` and `judge` are None without semantic matches.
    """

    def __init__(
        self,
        store: AnswerStore,
        store_breaker: Breaker,
        judge: Judge | None,
        report: CacheReport,
        semantic: SemanticMatch | None,
        counts_one_by_one: bool,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._store_breaker = store_breaker
        self._judge = judge
        self._report = report
        self._semantic_match = semantic
        self._draw = draw
        self._count_every_s = COUNT_ONE_BY_ONE_EVERY_S if counts_one_by_one else COUNT_EVERY_S
        self._to_keep: asyncio.Queue[Kept] = asyncio.Queue(MOST_WAITING)
        self._to_judge: asyncio.Queue[JudgedMatch] = asyncio.Queue(MOST_WAITING)
        self._purges: deque[tuple[float, Purge]] = deque(maxlen=PURGES_REMEMBERED)
        self._place = ""
        self._learning_guard = ErrorGuard("learning from one outcome")
        self._tasks: list[asyncio.Task[None]] = []
        self.caught_up = False
        """Whether the whole log has been read: its rest may refute what its first half proves."""
        self.entries: int | None = None

    async def start(self) -> None:
        """Start. Earlier lessons are read first, if the store answers quickly."""
        work = [self._work_off(self._to_keep, self._keep, "keeping answers"), self._count_now_and_then()]
        if self._semantic_match is not None:
            # The rest of a long log is read in the background.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WITHIN_S):
                    await self._catch_up(self._semantic_match)
            work.append(self._read_lessons(self._semantic_match))
            work.append(self._work_off(self._to_judge, self._judge_match, "judging matches"))
        self._tasks = [asyncio.create_task(it) for it in work]

    async def stop(self) -> None:
        """Store what waits, if that is soon done, and stop. What waits for the judge is not learned."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WITHIN_S):
                await self._to_keep.join()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def keep(self, kept: Kept) -> None:
        """Queue an answer to store."""
        self._put(self._to_keep, kept)

    def judge(self, match: JudgedMatch) -> None:
        """Queue a match to judge and learn from."""
        self._put(self._to_judge, match)

    def _put(self, queue: asyncio.Queue[_Work], work: _Work) -> None:
        try:
            queue.put_nowait(work)
        except asyncio.QueueFull:
            self._report.dropped += 1

    async def _work_off(
        self, queue: asyncio.Queue[_Work], perform: Callable[[_Work], Awaitable[None]], what: str
    ) -> None:
        guard = ErrorGuard(what)
        while True:
            work = await queue.get()
            with guard, contextlib.suppress(StoreUnreachable, TimeoutError):
                await perform(work)
            queue.task_done()

    # --- storing answers ----------------------------------------------------------------------------------

    def forbid(self, what: Purge) -> None:
        """Store no more answers that the purge names and whose requests arrived before now."""
        self._purges.append((time.monotonic(), what))

    async def _keep(self, kept: Kept) -> None:
        answer = kept.answer
        if self._store_breaker.is_open:
            return  # saves the embedding
        if kept.semantic and answer.vector is None and self._semantic_match is not None:
            answer = replace(answer, vector=await self._vector(kept, self._semantic_match))
        if kept.again and answer.vector is None:
            return
        if any(kept.entered_s <= at_s and what.names(answer) for at_s, what in self._purges):
            return
        await self._store_breaker.ask(lambda: self._store.put(answer), WITHIN_S, (StoreRejected,))

    async def _vector(self, kept: Kept, semantic: SemanticMatch) -> Vector | None:
        """The vector, None if unavailable: without it the answer is still found by exact match."""
        try:
            return await semantic.embed(kept.answer.question, WITHIN_S)
        except EmbedderBusy:
            # Otherwise the answers of a busy hour would have no semantic match until they expire.
            if not kept.again:
                later = replace(kept, again=True)
                asyncio.get_running_loop().call_later(EMBED_AGAIN_AFTER_S, self.keep, later)
        except (EmbedderUnreachable, TimeoutError):
            pass
        return None

    # --- judging ------------------------------------------------------------------------------------------

    async def _judge_match(self, match: JudgedMatch) -> None:
        semantic, judge = self._semantic_match, self._judge
        if semantic is None or judge is None:
            return
        if is_worth_judging(semantic.book.judge):
            asked, stored = match.identity.question, match.chosen.neighbour.answer
            approved = await judge.approves(QuestionPair(asked, stored.question, stored.text))
            self._report.count_judged(approved, match.servable)
            if approved is None:
                return
            identity, at_unix_s = match.identity, match.asked_unix_s
            await self._teach(
                lesson_of(match.chosen, identity.key, identity.domain, approved, at_unix_s, semantic.basis)
            )
        for kind in planted_wanted(semantic.book.judge, self._draw) if match.made else ():
            await self._judge_planted(match, kind, judge, semantic.basis)

    async def _judge_planted(self, match: JudgedMatch, kind: LessonKind, judge: Judge, basis: str) -> None:
        question = match.identity.question
        edited = plant(question, kind, self._draw)
        if edited is None:
            return
        approved = await judge.approves(QuestionPair(edited, question, match.made))
        if approved is not None:
            right = approved is (kind is LessonKind.PLANTED_EQUAL)
            await self._teach(Lesson("", 0, "", right, match.asked_unix_s, basis, kind=kind))

    async def _teach(self, lesson: Lesson) -> None:
        written = write_lesson(lesson)
        await self._store_breaker.ask(lambda: self._store.teach(written), WITHIN_S, (StoreRejected,))

    async def _read_lessons(self, semantic: SemanticMatch) -> None:
        guard = ErrorGuard("reading what was learned")
        while True:
            await asyncio.sleep(READ_EVERY_S)
            with guard:
                await self._catch_up(semantic)

    async def _catch_up(self, semantic: SemanticMatch) -> None:
        with contextlib.suppress(StoreUnreachable, TimeoutError):
            for _ in range(MOST_PAGES):
                place = self._place
                self._place, lessons = await self._store_breaker.ask(
                    lambda: self._store.lessons(place),  # noqa: B023 - awaited before the next turn
                    WITHIN_S,
                    _SAYS_NOTHING_OF_LOOK_UPS,
                )
                for written in lessons:
                    with self._learning_guard:
                        lesson = read_lesson(written)
                        if lesson is not None and lesson.basis == semantic.basis:
                            semantic.book.learn(lesson)
                if place == self._place:
                    self.caught_up = True
                    return

    async def _count_now_and_then(self) -> None:
        guard = ErrorGuard("counting kept answers")
        while True:
            with guard:
                try:
                    self.entries = await self._store_breaker.ask(
                        self._store.size, WITHIN_S, _SAYS_NOTHING_OF_LOOK_UPS
                    )
                except (StoreUnreachable, TimeoutError):
                    self.entries = None
            await asyncio.sleep(self._count_every_s)
