"""Learns how fast each engine is from what its requests took. Pure; written by request_flow only.

Engines of one model differ in how fast they are, hardly in what a longer prompt costs more than a short one.
So the form is learned from all of a model's workers together and each worker's factor from its own readings:
a decode worker that was only ever given short prompts is still known to be slow with long ones. A worker
without readings has its pool's factor, and a pool without any is taken to be like the others. When engines or
their network change for good, the factors follow within some twenty readings; the form hardly moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp, log

from phasewise.costs.online_fit import TwoPartFit
from phasewise.costs.pace import EnginePace, token_pairs
from phasewise.costs.reading_shares import ReadingShares
from phasewise.costs.size_book import SizeBook
from phasewise.model.worker import Worker, WorkerRef

_CLEAR_OF_FLOOR = 2.0
"""A prompt that took this many times the shortest tells what a token costs; below, the floor hides it."""
_FLOOR_RISE = 1.002
"""How much the shortest is forgotten with each reading, so that an engine may become slower."""
_BORROWED_READINGS = 2.0
"""What the pool's factor weighs in a worker's own."""
_FACTOR_MEMORY = 50.0
_SETTLED_READINGS, _WORKED_OUT_EVERY = 200, 16
_FAR_OFF = log(2.0)
"""A reading that is this many times as long or short as usual pulls no harder than that, as long as such
readings are few."""
_ASTRAY_MEMORY = 8.0
"""Readings that go into the share of those far off on one side."""
_NO_OUTLIERS = 0.75
"""Where more are far off than this, the engine has changed: each of them halves what those before it weigh.
Not at a half: a worker that is given long prompts to read is at times slow to fetch, and fast again after."""


@dataclass(slots=True)
class _Factor:
    """How many times as long as the form says; kept as a logarithm, so that twice and half weigh alike.

    `astray` is the share of late readings that were far off, above zero for long ones, below for short.
    """

    weight: float = 0.0
    total: float = 0.0
    astray: float = 0.0

    def learn(self, reading_s: float, expected_s: float) -> None:
        if reading_s <= 0 or expected_s <= 0:
            return
        usual = self.logarithm(0.0, _BORROWED_READINGS)
        off = log(reading_s / expected_s) - usual
        side = 0.0 if -_FAR_OFF <= off <= _FAR_OFF else 1.0 if off > 0.0 else -1.0
        self.astray += (side - self.astray) / _ASTRAY_MEMORY
        keep = 1.0 - 1.0 / _FACTOR_MEMORY
        if side * self.astray > _NO_OUTLIERS:
            keep = 0.5
        elif side:
            off = side * _FAR_OFF
        self.weight = self.weight * keep + 1.0
        self.total = self.total * keep + usual + off

    def logarithm(self, borrowed: float, borrowed_weight: float) -> float:
        weight = self.weight + borrowed_weight
        return (self.total + borrowed * borrowed_weight) / weight if weight else 0.0


@dataclass(slots=True)
class _Factors:
    """A worker's, or a pool's, in each of the three things that engines do."""

    incarnation: str = ""
    read: _Factor = field(default_factory=_Factor)
    step: _Factor = field(default_factory=_Factor)
    fetch: _Factor = field(default_factory=_Factor)


@dataclass(slots=True)
class _Form:
    """What all workers of a model have in common."""

    shortest_read_s: float = 0.0
    longest_read_tokens: float = 0.0
    read: TwoPartFit = field(default_factory=TwoPartFit)
    step: TwoPartFit = field(default_factory=TwoPartFit)
    fetch: TwoPartFit = field(default_factory=TwoPartFit)

    @property
    def read_s_per_token(self) -> float:
        """Before two sizes were seen, as if all of the shortest reading went into tokens."""
        if self.read.weight:
            return self.read.first_rate
        return self.shortest_read_s / self.longest_read_tokens if self.longest_read_tokens else 0.0


class PaceBook:
    """What is known of the pace of every worker.

    `sizes` tells of the lengths of prompts and answers, `reading` how much of their time workers read.

    A worker that was not introduced is taken to be of a pool and a model of its own kind: that of all such.
    """

    def __init__(self, workers: Iterable[Worker] = ()) -> None:
        self.sizes = SizeBook()
        self.reading = ReadingShares()
        self._kin = {worker.name: (worker.model, worker.pool) for worker in workers}
        self._forms: dict[str, _Form] = {}
        self._pools: dict[tuple[str, str], _Factors] = {}
        self._workers: dict[str, _Factors] = {}
        self._paces: dict[WorkerRef, EnginePace] = {}
        self._readings = 0

    def learn_read(self, worker: WorkerRef, prompt_tokens: int, cached_tokens: int, seconds: float) -> None:
        """A prompt was computed in so long, with nothing else to compute beside it."""
        if seconds <= 0:
            return
        form, own, pool = self._of(worker)
        new = float(max(1, prompt_tokens - cached_tokens))
        pairs = token_pairs(new, cached_tokens)
        shortest_s = form.shortest_read_s * _FLOOR_RISE or seconds
        form.shortest_read_s = min(shortest_s, seconds)
        form.longest_read_tokens = max(form.longest_read_tokens, new)
        if seconds >= _CLEAR_OF_FLOOR * form.shortest_read_s:
            form.read.learn(new, pairs, seconds)
            # On an engine that became slow short prompts seem clear of the floor, too.
            expected_s = max(form.shortest_read_s, form.read.expected(new, pairs))
            for factors in (own, pool):
                factors.read.learn(seconds, expected_s)

    def learn_step(self, worker: WorkerRef, streams: int, seconds: float) -> None:
        """A stream got its tokens so far apart, beside so many streams with itself."""
        form, own, pool = self._of(worker)
        form.step.learn(1.0, float(streams), seconds)
        for factors in (own, pool):
            factors.step.learn(seconds, form.step.expected(1.0, streams))

    def learn_fetch(self, worker: WorkerRef, tokens: int, seconds: float) -> None:
        """KV of so many tokens was fetched in so long, the wait for a step included."""
        form, own, pool = self._of(worker)
        form.fetch.learn(1.0, float(tokens), seconds)
        for factors in (own, pool):
            factors.fetch.learn(seconds, form.fetch.expected(1.0, tokens))

    def pace(self, worker: WorkerRef) -> EnginePace | None:
        """The worker's pace; None while nobody of its model has read a prompt and written an answer."""
        pace = self._paces.get(worker)
        if pace is None and (pace := self._pace(worker)) is not None:
            self._paces[worker] = pace
        return pace

    def _pace(self, worker: WorkerRef) -> EnginePace | None:
        kin = self._kin.get(worker.name, ("", ""))
        form = self._forms.get(kin[0])
        if form is None or not form.shortest_read_s or not form.step.weight:
            return None
        pool = self._pools.get(kin, _NOTHING)
        own = self._workers.get(worker.name, _NOTHING)
        if own.incarnation != worker.incarnation:
            own = _NOTHING
        read, step, fetch = (
            exp(mine.logarithm(theirs.logarithm(0.0, 0.0), _BORROWED_READINGS))
            for mine, theirs in ((own.read, pool.read), (own.step, pool.step), (own.fetch, pool.fetch))
        )
        return EnginePace(
            read_floor_s=form.shortest_read_s * read,
            read_s_per_token=form.read_s_per_token * read,
            read_s_per_pair=form.read.second_rate * read,
            step_s=form.step.first_rate * step,
            step_s_per_stream=form.step.second_rate * step,
            fetch_floor_s=form.fetch.first_rate * fetch,
            fetch_s_per_token=form.fetch.second_rate * fetch,
            fetch_known=form.fetch.weight > 0.0,
        )

    def _of(self, worker: WorkerRef) -> tuple[_Form, _Factors, _Factors]:
        """What a reading of this worker changes; what was worked out from it before is out of date.

        One reading of another worker among many hardly changes a pace: those are worked out anew at times.
        """
        self._readings += 1
        if self._readings < _SETTLED_READINGS or not self._readings % _WORKED_OUT_EVERY:
            self._paces.clear()
        else:
            self._paces.pop(worker, None)
        kin = self._kin.get(worker.name, ("", ""))
        own = self._workers.get(worker.name)
        if own is None or own.incarnation != worker.incarnation:
            own = self._workers[worker.name] = _Factors(worker.incarnation)
        return self._forms.setdefault(kin[0], _Form()), own, self._pools.setdefault(kin, _Factors())


_NOTHING = _Factors()
"""Of whom there are no readings; never written to."""
