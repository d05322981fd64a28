"""Learns how fast each engine is from the times of its requests. Only request_flow writes it.

Engines of one model differ in speed, but hardly in how cost grows with length. So the shape of the cost is
learned from all workers of a model together, and each worker's factor from its own readings: a decode worker
that only got short prompts is still known to be slow with long ones. A worker without readings has its pool's
factor, and a pool without readings that of the other pools. When engines or their network change, the factors
follow within some twenty readings; the shape hardly moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import exp, log
from typing import Any, NamedTuple, TypeVar

from phasewise.core.value import value
from phasewise.core.worker import Worker, WorkerRef
from phasewise.scheduling.length_estimator import LengthEstimator
from phasewise.scheduling.online_fit import TwoPartFit

# --- How fast one engine is in each phase, learned from its own answers.


@value
class EnginePace:
    """The times of an engine for prefill, decode steps and fetching KV.

    Prefill takes `read_s_per_token` per token and `read_s_per_pair` per token before it, and at least
    `read_floor_s`: a step costs at least the reading of the weights. A decode step of n streams takes
    `step_s` + n x `step_s_per_stream`. A fetch takes `fetch_floor_s` and `fetch_s_per_token`,
    nothing if none was timed yet.
    """

    read_floor_s: float
    read_s_per_token: float
    read_s_per_pair: float
    step_s: float
    step_s_per_stream: float
    fetch_floor_s: float = 0.0
    fetch_s_per_token: float = 0.0

    def read_s(self, tokens: float, cached_tokens: float = 0) -> float:
        """Seconds to compute a prompt of so many tokens, of which some are cached."""
        # Every placement calls this for every worker, so token_pairs is inlined.
        new = max(1.0, tokens - cached_tokens)
        per_token_s = self.read_s_per_token + self.read_s_per_pair * (cached_tokens + (new + 1.0) / 2.0)
        return max(self.read_floor_s, new * per_token_s)

    def token_s(self, streams: float) -> float:
        """Seconds per token with so many streams in the batch."""
        return self.step_s + self.step_s_per_stream * streams

    def fetch_s(self, tokens: float) -> float:
        """Seconds to fetch the KV of so many tokens, the wait for a step included."""
        return self.fetch_floor_s + self.fetch_s_per_token * tokens


def token_pairs(new_tokens: float, cached_tokens: float) -> float:
    """How many tokens the new ones attend to: all cached ones, and those up to themselves."""
    return new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2


# --- How much prefill each worker recently got. Only request_flow writes it.
#
# A stream stalls while its worker runs a prefill, so decode is slower on a worker with much prefill, and a
# new prompt has to wait.

_MEMORY_S = 120.0
"""Two minutes hold enough long prompts to average over chance."""


class PrefillSpeed(NamedTuple):
    """What a worker got per second: seconds of prefill, above 1 if it cannot keep up, and prompts."""

    share: float
    prompts_per_s: float


class ReadingShares:
    """Decaying sums of prefill seconds. By name, because a restarted engine keeps its traffic."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float, float]] = {}

    def placed(self, worker: WorkerRef, read_s: float, now_s: float) -> None:
        """A worker got a prompt whose prefill should take so long."""
        share, prompts_per_s = self.lately(worker, now_s)
        self._sums[worker.name] = (share + read_s / _MEMORY_S, prompts_per_s + 1.0 / _MEMORY_S, now_s)

    def lately(self, worker: WorkerRef, now_s: float) -> PrefillSpeed:
        """What a worker got over about the last two minutes."""
        sums = self._sums.get(worker.name)
        if sums is None:
            return _NO_SHARES
        share, prompts_per_s, then_s = sums
        kept = exp(min(0.0, then_s - now_s) / _MEMORY_S)
        return PrefillSpeed(share * kept, prompts_per_s * kept)


_NO_SHARES = PrefillSpeed(0.0, 0.0)

_RISES_S, _FALLS_S = 120.0, 1800.0
"""A pool's work is averaged over minutes; its peaks are forgotten over half an hour, as bursts come again."""


_AS_ONE_S = 1.0
"""What arrives within this time is added without decay, as every request would have to pay for it."""


class ArrivingWork:
    """What each pool of a model was given per second: decaying sums, and their peaks, which decay slower.

    Only request_flow writes it.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[float, float, float, float, float]] = {}

    def placed(self, pool: tuple[str, str], prefill_s: float, output_tokens: float, now_s: float) -> None:
        """An engine of a pool got a prompt, the decoding of an answer, or both."""
        sums = self._sums.get(pool)
        if sums is None or now_s - sums[4] > _AS_ONE_S:
            sums = self._now(pool, now_s)
        recent_s, recent_tokens, peak_s, peak_tokens, since_s = sums
        recent_s, recent_tokens = recent_s + prefill_s / _RISES_S, recent_tokens + output_tokens / _RISES_S
        peaks = max(peak_s, recent_s), max(peak_tokens, recent_tokens)
        self._sums[pool] = (recent_s, recent_tokens, *peaks, since_s)

    def lately(self, pool: tuple[str, str], now_s: float) -> tuple[float, float]:
        """Seconds of prefill and output tokens, per second."""
        _, _, peak_s, peak_tokens, _ = self._now(pool, now_s)
        return peak_s, peak_tokens

    def _now(self, pool: tuple[str, str], now_s: float) -> tuple[float, float, float, float, float]:
        recent_s, recent_tokens, peak_s, peak_tokens, then_s = self._sums.get(
            pool, (0.0, 0.0, 0.0, 0.0, now_s)
        )
        gone_s = min(0.0, then_s - now_s)
        fast, slow = exp(gone_s / _RISES_S), exp(gone_s / _FALLS_S)
        return recent_s * fast, recent_tokens * fast, peak_s * slow, peak_tokens * slow, max(then_s, now_s)


_CLEAR_OF_FLOOR = 2.0
"""A prompt that took this many times the shortest shows what a token costs; below, the floor hides it."""
_FLOOR_RISE = 1.002
"""The growth of the remembered shortest time per reading, so that it follows an engine that becomes
slower."""
_BORROWED_READINGS = 2.0
"""The weight of the pool's factor in a worker's own."""
_FACTOR_MEMORY = 50.0
_SETTLED_READINGS, _WORKED_OUT_EVERY = 200, 16
_SAMPLED_ONE_IN = 8
"""Once settled, one answer in so many is learned from where no placement uses the speed of engines."""
_FAR_OFF = log(2.0)
"""A reading further off than this factor counts as this far off, as long as such readings are few."""
_ASTRAY_MEMORY = 8.0
"""Readings over which the share of those far off is averaged."""
_NO_OUTLIERS = 0.75
"""If a larger share is far off, the engine has changed: each such reading halves the weight of those before
it. A half would be too low: a worker with long prompts is at times slow to fetch, and then fast again."""


@dataclass(slots=True)
class _Factor:
    """A worker's time relative to the shape; kept as a logarithm, so that twice and half weigh alike.

    `astray` is the share of recent readings that were far off: positive for long ones, negative for short.
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
    """The factors of a worker or a pool for prefill, decode steps and fetches."""

    incarnation: str = ""
    read: _Factor = field(default_factory=_Factor)
    step: _Factor = field(default_factory=_Factor)
    fetch: _Factor = field(default_factory=_Factor)


@dataclass(slots=True)
class _Form:
    """The shape of the cost that all workers of a model share."""

    shortest_read_s: float = 0.0
    longest_read_tokens: float = 0.0
    read: TwoPartFit = field(default_factory=TwoPartFit)
    step: TwoPartFit = field(default_factory=TwoPartFit)
    fetch: TwoPartFit = field(default_factory=TwoPartFit)

    @property
    def read_s_per_token(self) -> float:
        """Seconds per token. Before two sizes were seen, the shortest reading is divided by its tokens."""
        if self.read.weight:
            return self.read.first_rate
        return self.shortest_read_s / self.longest_read_tokens if self.longest_read_tokens else 0.0


class EngineSpeeds:
    """The learned speed of every worker.

    `sizes` estimates the lengths of prompts and answers; `reading` is the share of time that workers spend on
    prefill; `arriving` is what pools get. Workers that were not passed share one pool and model. With
    `samples` a share of the answers is learned from, as each costs time.
    """

    def __init__(self, workers: Iterable[Worker] = (), *, samples: bool = False) -> None:
        self.samples = samples
        self.sizes = LengthEstimator()
        self.reading = ReadingShares()
        self.arriving = ArrivingWork()
        self._kin: dict[str, tuple[str, str]] = {}
        self._forms: dict[str, _Form] = {}
        self._pools: dict[tuple[str, str], _Factors] = {}
        self._workers: dict[str, _Factors] = {}
        self._calm: dict[tuple[str, str], TwoPartFit] = {}
        self._paces: dict[WorkerRef, EnginePace] = {}
        self._readings = 0
        self._draw = 0
        self.set_workers(workers)

    def set_workers(self, workers: Iterable[Worker]) -> None:
        """The workers there are; what was learned of their models and pools stays."""
        self._kin = {worker.name: (worker.model, worker.pool) for worker in workers}
        self._workers = {name: factors for name, factors in self._workers.items() if name in self._kin}
        self._paces.clear()

    def export(self) -> dict[str, Any]:
        """What was learned, in plain types, for the process that follows."""
        return {
            "forms": [[model, asdict(form)] for model, form in self._forms.items()],
            "pools": [[*kin, asdict(factors)] for kin, factors in self._pools.items()],
            "workers": [[name, asdict(factors)] for name, factors in self._workers.items()],
        }

    def adopt(self, learned: Mapping[str, Any]) -> None:
        """Begin with what another gateway has learned."""
        self._forms = {model: _from_plain(_Form, form) for model, form in learned["forms"]}
        self._pools = {
            (model, pool): _from_plain(_Factors, factors) for model, pool, factors in learned["pools"]
        }
        self._workers = {name: _from_plain(_Factors, factors) for name, factors in learned["workers"]}
        self._paces.clear()

    def is_due(self) -> bool:
        """Whether the answer that just ended is to be learned from."""
        if not self.samples or self._readings < _SETTLED_READINGS:
            return True
        # Every eighth could be always the same engine's. The same in a replay, so no random number.
        self._draw = (self._draw * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        return not (self._draw >> 16) % _SAMPLED_ONE_IN

    def learn_read(self, worker: WorkerRef, prompt_tokens: int, cached_tokens: int, seconds: float) -> None:
        """A prompt was computed in so many seconds, with no other prefill beside it."""
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
            # On an engine that became slow, short prompts too seem clear of the floor.
            expected_s = max(form.shortest_read_s, form.read.expected(new, pairs))
            for factors in (own, pool):
                factors.read.learn(seconds, expected_s)

    def learn_step(self, worker: WorkerRef, streams: int, seconds: float) -> None:
        """A stream's tokens came so many seconds apart, with so many streams in the batch."""
        form, own, pool = self._of(worker)
        form.step.learn(1.0, float(streams), seconds)
        for factors in (own, pool):
            factors.step.learn(seconds, form.step.expected(1.0, streams))

    def learn_calm_step(self, worker: WorkerRef, streams: int, seconds: float) -> None:
        """The same of a worker without prefill, which under load may be in most steps."""
        self._calm.setdefault(self.kin(worker), TwoPartFit()).learn(1.0, float(streams), seconds)

    def learn_fetch(self, worker: WorkerRef, tokens: int, seconds: float) -> None:
        """KV of so many tokens was fetched in so many seconds, the wait for a step included."""
        form, own, pool = self._of(worker)
        form.fetch.learn(1.0, float(tokens), seconds)
        for factors in (own, pool):
            factors.fetch.learn(seconds, form.fetch.expected(1.0, tokens))

    def pace(self, worker: WorkerRef) -> EnginePace | None:
        """The worker's speed; None until a worker of its model has finished a prefill and an answer."""
        pace = self._paces.get(worker)
        if pace is None and (pace := self._pace(worker)) is not None:
            self._paces[worker] = pace
        return pace

    def kin(self, worker: WorkerRef) -> tuple[str, str]:
        """The worker's model and pool."""
        return self._kin.get(worker.name, ("", ""))

    def pace_of_pool(self, model: str, pool: str) -> EnginePace | None:
        """The speed of a worker of the pool that was not timed itself, its steps without prefill in them."""
        pace, calm = self._pace_as((model, pool), _NOTHING), self._calm.get((model, pool))
        if pace is None or calm is None:
            return pace
        return replace(pace, step_s=calm.first_rate, step_s_per_stream=calm.second_rate)

    def _pace(self, worker: WorkerRef) -> EnginePace | None:
        own = self._workers.get(worker.name, _NOTHING)
        return self._pace_as(self.kin(worker), own if own.incarnation == worker.incarnation else _NOTHING)

    def _pace_as(self, kin: tuple[str, str], own: _Factors) -> EnginePace | None:
        form = self._forms.get(kin[0])
        if form is None or not form.shortest_read_s or not form.step.weight:
            return None
        pool = self._pools.get(kin, _NOTHING)
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
        )

    def _of(self, worker: WorkerRef) -> tuple[_Form, _Factors, _Factors]:
        """What a reading of this worker updates. The worker's cached pace is dropped.

        A single reading hardly changes other workers' paces, so those are recomputed only every few readings.
        """
        self._readings += 1
        if self._readings < _SETTLED_READINGS or not self._readings % _WORKED_OUT_EVERY:
            self._paces.clear()
        else:
            self._paces.pop(worker, None)
        kin = self.kin(worker)
        own = self._workers.get(worker.name)
        if own is None or own.incarnation != worker.incarnation:
            own = self._workers[worker.name] = _Factors(worker.incarnation)
        return self._forms.setdefault(kin[0], _Form()), own, self._pools.setdefault(kin, _Factors())


_T = TypeVar("_T")
_NESTED = {_Form: TwoPartFit, _Factors: _Factor}


def _from_plain(kind: type[_T], plain: Mapping[str, Any]) -> _T:
    inner = _NESTED[kind]
    return kind(
        **{name: inner(**part) if isinstance(part, Mapping) else part for name, part in plain.items()}
    )


_NOTHING = _Factors()
"""The factors of a worker without readings; never written to."""
