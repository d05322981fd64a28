"""What an answer leaves to be done: it is kept, matches are judged, and what all have learned is read.

What is worth keeping or judging is answer_cache.py's to say; a request never waits for anything here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from phasewise.caching.matching import Match, Reason, Verdict
from phasewise.errors import EmbedderBusy, EmbedderUnreachable, StoreRefused, StoreUnreachable
from phasewise.gateway.cache_guard import Breaker
from phasewise.gateway.cache_meaning import Meaning
from phasewise.gateway.cache_report import CacheReport, Tier
from phasewise.gateway.guard import Guard
from phasewise.gateway.judges import Judge
from phasewise.model.caching import Purge, StoredAnswer, Vector
from phasewise.model.noun import noun
from phasewise.ports import AnswerStore

MOST_WAITING = 1_000
"""Of each sort of work. More is dropped: an answer that is not kept is only asked for again."""
WITHIN_S = 5.0
"""For a store or an embedder that no request waits for."""
EMBED_AGAIN_AFTER_S = 1.0
READ_EVERY_S = 1.0
COUNT_EVERY_S = 1.0
COUNT_ONE_BY_ONE_EVERY_S = 60.0
"""Where a shared store has no index, and looks at every key it has to count its answers."""
MOST_PAGES = 1_000
PURGES_REMEMBERED = 256
STOP_WITHIN_S = 2.0

_SAYS_NOTHING_OF_LOOK_UPS = (TimeoutError, StoreRefused)
"""Of a store that is asked for much at once."""

_Work = TypeVar("_Work")


@noun
class Kept:
    """An answer to be kept, and found by other words too if `by_meaning`; its request came at `entered_s`.

    `again`: it is kept already, without the vector that a busy embedder had no time for.
    """

    answer: StoredAnswer
    by_meaning: bool
    entered_s: float
    again: bool = False


@noun
class Comparison:
    """A stored answer beside what the model said to this question; `match` if they met by meaning.

    `made` is empty where the model said something that is no text, which no stored answer is the same as.
    `asked_unix_s` is when: whatever was stored since then has not been verified by it.
    """

    question: str
    stored: str
    made: str
    domain: str
    asked_unix_s: float
    match: Match | None = None


class CacheLearning:
    """Works off two queues, because one may wait for a judge, and reads what all gateways have learned.

    Lessons reach the book only through the store's log, this gateway's own too, so that all books agree.
    `meaning` is None where nothing is matched by it.
    """

    def __init__(
        self,
        store: AnswerStore,
        store_breaker: Breaker,
        judge: Judge,
        report: CacheReport,
        meaning: Meaning | None,
        counts_one_by_one: bool,
    ) -> None:
        self._store = store
        self._store_breaker = store_breaker
        self._judge = judge
        self._report = report
        self._meaning = meaning
        self._count_every_s = COUNT_ONE_BY_ONE_EVERY_S if counts_one_by_one else COUNT_EVERY_S
        self._to_keep: asyncio.Queue[Kept] = asyncio.Queue(MOST_WAITING)
        self._to_judge: asyncio.Queue[Comparison] = asyncio.Queue(MOST_WAITING)
        self._purges: deque[tuple[float, Purge]] = deque(maxlen=PURGES_REMEMBERED)
        self._place = ""
        self._learning_guard = Guard("learning from one outcome")
        self._tasks: list[asyncio.Task[None]] = []
        self.caught_up = False
        """Whether the whole log has been read: what is proven by half of it may be refuted by the rest."""
        self.entries: int | None = None

    async def start(self) -> None:
        """Begin; what was learned before is read first, if the store is there and quick."""
        meaning = self._meaning
        if meaning is not None:
            # The rest of a log that takes longer is read while requests are answered.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WITHIN_S):
                    await self._catch_up(meaning)
        work = [
            self._work_off(self._to_keep, self._keep, "keeping answers"),
            self._work_off(self._to_judge, self._compare, "judging matches"),
            self._count_now_and_then(),
        ]
        if meaning is not None:
            work.append(self._read_lessons(meaning))
        self._tasks = [asyncio.create_task(it) for it in work]

    async def stop(self) -> None:
        """Finish what can be finished soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WITHIN_S):
                await asyncio.gather(self._to_keep.join(), self._to_judge.join())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def keep(self, kept: Kept) -> None:
        """Keep an answer soon."""
        self._put(self._to_keep, kept)

    def compare(self, comparison: Comparison) -> None:
        """Have a match judged soon, and learn from it."""
        self._put(self._to_judge, comparison)

    def never_known(self, match: Match | None) -> None:
        """What was near was not served, and the model's own answer broke off or never came."""
        self._count(match, None)

    def _count(self, match: Match | None, right: bool | None) -> None:
        tier = Tier.EXACT if match is None else Tier.SEMANTIC
        self._report.count_judged(tier, right, match is None or _could_be_served(match))

    def _put(self, queue: asyncio.Queue[_Work], work: _Work) -> None:
        try:
            queue.put_nowait(work)
        except asyncio.QueueFull:
            self._report.dropped += 1

    async def _work_off(
        self, queue: asyncio.Queue[_Work], perform: Callable[[_Work], Awaitable[None]], what: str
    ) -> None:
        guard = Guard(what)
        while True:
            work = await queue.get()
            with guard, contextlib.suppress(StoreUnreachable, TimeoutError):
                await perform(work)
            queue.task_done()

    def forbid(self, what: Purge) -> None:
        """Keep nothing more of what was asked before now and is being purged."""
        self._purges.append((time.monotonic(), what))

    async def _keep(self, kept: Kept) -> None:
        answer = kept.answer
        if self._store_breaker.is_open:
            return  # before anything is embedded for nothing
        if kept.by_meaning and answer.vector is None and self._meaning is not None:
            answer = replace(answer, vector=await self._vector(kept, self._meaning))
        if kept.again and answer.vector is None:
            return
        if any(kept.entered_s <= at_s and what.names(answer) for at_s, what in self._purges):
            return
        await self._store_breaker.ask(lambda: self._store.put(answer), WITHIN_S, (StoreRefused,))

    async def _vector(self, kept: Kept, meaning: Meaning) -> Vector | None:
        """None if there is none to be had: without it the answer is still found by the same words."""
        try:
            return await meaning.embed(kept.answer.question, WITHIN_S)
        except EmbedderBusy:
            # A busy hour would otherwise leave nothing that is found by meaning until all of it expires.
            if not kept.again:
                later = replace(kept, again=True)
                asyncio.get_running_loop().call_later(EMBED_AGAIN_AFTER_S, self.keep, later)
        except (EmbedderUnreachable, TimeoutError):
            pass
        return None

    async def _compare(self, comparison: Comparison) -> None:
        match, right = comparison.match, await self._right(comparison)
        self._count(match, right)
        if match is not None and right is not None and self._meaning is not None:
            basis = self._meaning.basis
            lesson = match.lesson(comparison.domain, right, comparison.asked_unix_s, basis)
            await self._store_breaker.ask(lambda: self._store.teach(lesson), WITHIN_S, (StoreRefused,))

    async def _right(self, comparison: Comparison) -> bool | None:
        if not comparison.made:
            return False
        return await self._judge.right(comparison.question, comparison.stored, comparison.made)

    async def _read_lessons(self, meaning: Meaning) -> None:
        guard = Guard("reading what was learned")
        while True:
            await asyncio.sleep(READ_EVERY_S)
            with guard:
                await self._catch_up(meaning)

    async def _catch_up(self, meaning: Meaning) -> None:
        with contextlib.suppress(StoreUnreachable, TimeoutError):
            for _ in range(MOST_PAGES):
                place = self._place
                self._place, lessons = await self._store_breaker.ask(
                    lambda: self._store.lessons(place),  # noqa: B023 - awaited before the next turn
                    WITHIN_S,
                    _SAYS_NOTHING_OF_LOOK_UPS,
                )
                for lesson in lessons:
                    with self._learning_guard:
                        if lesson.basis == meaning.basis:
                            meaning.book.learn(lesson)
                if place == self._place:
                    self.caught_up = True
                    return

    async def _count_now_and_then(self) -> None:
        guard = Guard("counting kept answers")
        while True:
            with guard:
                try:
                    self.entries = await self._store_breaker.ask(
                        self._store.size, WITHIN_S, _SAYS_NOTHING_OF_LOOK_UPS
                    )
                except (StoreUnreachable, TimeoutError):
                    self.entries = None
            await asyncio.sleep(self._count_every_s)


def _could_be_served(match: Match) -> bool:
    return match.verdict is Verdict.SERVE or match.reason == Reason.AUDIT
