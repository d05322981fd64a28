"""Plays a setting in virtual time: what became of every request, and what its engines recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import ceil
from random import Random

from phasewise.core.steps import FinishedRequest
from phasewise.costs.fit.step import StepSeconds, StepWork
from phasewise.simulator.engine import EngineShape, StepReport, VirtualEngine, VirtualRequest
from phasewise.simulator.stage import EPOCH_S, SlowMachine

from .factors import Setting
from .traffic import Planned, ids_of, plan

BUFFERED = 8
"""Chunks that fit between the gateway and a client that does not read."""


@dataclass(slots=True)
class Exchange:
    """One request and what became of it, on the gateway's clock.

    `sent_s` is when the gateway had it; `came_s` are the times at which tokens were read there. `left_s` is
    when its client disconnected. `engine_times_s` are the ends of the steps that made its tokens.
    """

    planned: Planned
    engine: int
    sent_s: float
    engine_times_s: list[float] = field(default_factory=list)
    finished: FinishedRequest | None = None
    left_s: float | None = None
    rejected: bool = False
    came_s: list[float] = field(default_factory=list)
    blocked_s: float = 0.0

    @property
    def request_id(self) -> str:
        """The engine's id for it."""
        return f"chatcmpl-t{self.planned.number}"


@dataclass(slots=True)
class Played:
    """A run until the window's end."""

    setting: Setting
    exchanges: list[Exchange]
    reports: list[list[StepReport]]
    shape: EngineShape

    @property
    def begins_s(self) -> float:
        """When the window opens."""
        return self.setting.settle_s

    @property
    def ends_s(self) -> float:
        """When it closes."""
        return self.setting.ends_s


class _Changed:
    """Costs that grow with the number of steps since the engine's start, by locks at admission, by masks of
    allowed tokens, and while another job has a part of the machine.
    """

    def __init__(self, cost: StepSeconds, setting: Setting) -> None:
        self._cost = cost
        self._per_step = setting.creep_per_step
        self._admission_s = setting.admission_s
        self._shared, self._shared_times = setting.shared, setting.shared_times
        self._mask_s = setting.mask_s
        self._steps = 0
        self.masked: set[str] = set()
        self.admitted = 0
        self.begins_s = 0.0

    def __call__(self, work: StepWork) -> float:
        self._steps += 1
        extra_s = self._admission_s * self.admitted + self._mask_s * bool(self.masked)
        self.admitted = 0
        times = 1.0 + self._per_step * self._steps
        if any(begin_s <= self.begins_s < end_s for begin_s, end_s in self._shared):
            times *= self._shared_times
        return self._cost(work) * times + extra_s


class _Host:
    """One engine, its requests on the way in, and its reports."""

    def __init__(self, setting: Setting, shape: EngineShape, rng: Random) -> None:
        self.changed = _Changed(setting.world.noisy_cost(rng), setting)
        self.machine = SlowMachine(
            self.changed, setting.share, setting.cold_steps, setting.cold_s, setting.pauses
        )
        self.engine = VirtualEngine(shape, self.machine)
        self.busy = False
        self.open_tokens = 0
        self.reports: list[StepReport] = []
        self.arrived: list[tuple[VirtualRequest, float]] = []
        self.held: list[tuple[VirtualRequest, float]] = []

    def begin(self, now_s: float) -> StepReport | None:
        """Begin a step, if there is something to do."""
        self.machine.begins_s = self.changed.begins_s = now_s
        return self.engine.step(EPOCH_S + now_s)


class _Run:
    """Events in order of time."""

    def __init__(self, setting: Setting, seed: str, noise: str) -> None:
        self.setting = setting
        self.planned = plan(setting.traffic, seed, setting.ends_s)
        self.shape = _shape(setting, self.planned)
        self.hosts = [
            _Host(setting, self.shape, Random(f"{seed}/{noise}/{index}")) for index in range(setting.engines)
        ]
        self.exchanges: list[Exchange] = []
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._open: dict[str, Exchange] = {}
        self._next_turn = {it.after: it for it in self.planned if it.after is not None}
        self._placing = Random(f"{seed}/placing")

    def play(self) -> Played:
        until_s = self.setting.ends_s
        if self.setting.one_at_a_time:
            self._queue = iter(self.planned)
            self._at(0.0, self._send_next)
        else:
            for planned in self.planned:
                if planned.at_s is not None:
                    self._at(planned.at_s, partial(self._send, planned))
        while self._events and self._events[0][0] <= until_s:
            when_s, _, act = heappop(self._events)
            act(when_s)
        for exchange in self.exchanges:
            exchange.came_s, exchange.blocked_s = _read_at(exchange, self.setting)
        return Played(self.setting, self.exchanges, [host.reports for host in self.hosts], self.shape)

    def _at(self, when_s: float, act: Callable[[float], None]) -> None:
        heappush(self._events, (when_s, next(self._order), act))

    def _send_next(self, now_s: float) -> None:
        planned = next(self._queue, None)
        if planned is not None:
            self._send(planned, now_s)

    def _send(self, planned: Planned, now_s: float) -> None:
        number = self._place()
        exchange = Exchange(planned, number, now_s)
        self.exchanges.append(exchange)
        if planned.too_long:
            exchange.rejected, exchange.left_s = True, now_s + self.setting.there_s + self.setting.back_s
            self._ended(exchange, exchange.left_s)
            return
        host = self.hosts[number]
        ids = tuple([token for piece in planned.pieces for token in ids_of(piece)])
        host.open_tokens += len(ids) + planned.output_tokens
        self._open[exchange.request_id] = exchange
        at_s = now_s + self.setting.there_s
        request = VirtualRequest(
            exchange.request_id, ids, planned.output_tokens, EPOCH_S + at_s, ignore_eos=True
        )
        self._at(at_s, lambda when_s: self._arrive(host, request, when_s))
        if planned.leaves_s is not None:
            self._at(now_s + planned.leaves_s, lambda when_s: self._leave(exchange, when_s))

    def _place(self) -> int:
        if len(self.hosts) > 1 and self._placing.random() < self.setting.skew:
            return 0
        return min(range(len(self.hosts)), key=lambda index: self.hosts[index].open_tokens)

    def _arrive(self, host: _Host, request: VirtualRequest, now_s: float) -> None:
        if request.request_id not in self._open:
            return
        if self.setting.world.asynchronous and host.busy:
            # The next step is scheduled already.
            host.arrived.append((request, now_s))
        else:
            self._add(host, request, now_s)
        self._step(host, now_s)

    def _add(self, host: _Host, request: VirtualRequest, arrived_s: float) -> None:
        if self.setting.drains_first or self.setting.admits_every:
            host.held.append((request, arrived_s))
        else:
            self._queue_up(host, request, arrived_s)

    def _queue_up(self, host: _Host, request: VirtualRequest, arrived_s: float) -> None:
        host.engine.add(request, EPOCH_S + arrived_s)
        host.changed.admitted += 1

    def _release(self, host: _Host) -> None:
        """Let in what was held until all that ran had finished, or until the engine looks at its queue."""
        looks = self.setting.admits_every and len(host.reports) % self.setting.admits_every == 0
        if host.engine.has_work and not looks:
            return
        for request, arrived_s in self._still_held(host):
            self._queue_up(host, request, arrived_s)
        host.held = []

    def _still_held(self, host: _Host) -> list[tuple[VirtualRequest, float]]:
        """Those held whose clients have not left."""
        return [it for it in host.held if it[0].request_id in self._open]

    def _step(self, host: _Host, now_s: float) -> None:
        if host.busy:
            return
        waiting, host.arrived = host.arrived, []
        if not host.engine.has_work:
            self._add_all(host, waiting)
            waiting = []
        self._release(host)
        report = host.begin(now_s)
        # What arrived while this step was being scheduled is in the one after it.
        self._add_all(host, waiting)
        if report is None:
            return
        host.busy = True
        self._at(report.step.ended_unix_s - EPOCH_S, lambda ended_s: self._stepped(host, report, ended_s))

    def _add_all(self, host: _Host, arrived: Sequence[tuple[VirtualRequest, float]]) -> None:
        for request, arrived_s in arrived:
            if request.request_id in self._open:
                self._add(host, request, arrived_s)

    def _stepped(self, host: _Host, report: StepReport, ended_s: float) -> None:
        host.busy = False
        if host.held:
            # An engine counts them among those that wait.
            waiting = report.step.waiting + len(self._still_held(host))
            report = replace(report, step=replace(report.step, waiting=waiting))
        host.reports.append(report)
        ended: list[Exchange] = []
        for token in report.emitted:
            exchange = self._open.get(token.request_id)
            if exchange is None:
                continue
            exchange.engine_times_s.append(ended_s)
            if token.finished is not None:
                exchange.finished = token.finished
                self._close(exchange)
                ended.append(exchange)
            elif self._is_masked(exchange):
                host.changed.masked.add(token.request_id)
        self._step(host, ended_s)
        for exchange in ended:
            self._ended(exchange, ended_s + self.setting.back_s)

    def _is_masked(self, exchange: Exchange) -> bool:
        every = self.setting.masked_every
        return every > 0 and exchange.planned.number % every == 0

    def _leave(self, exchange: Exchange, now_s: float) -> None:
        if self._open.get(exchange.request_id) is not exchange:
            return
        exchange.left_s = now_s
        # vLLM has no statistics of requests that clients abort: neither records nor counters show them.
        self.hosts[exchange.engine].engine.abort(exchange.request_id)
        self._close(exchange)
        self._ended(exchange, now_s)

    def _close(self, exchange: Exchange) -> None:
        del self._open[exchange.request_id]
        host, planned = self.hosts[exchange.engine], exchange.planned
        host.changed.masked.discard(exchange.request_id)
        host.open_tokens -= planned.prompt_tokens + planned.output_tokens

    def _ended(self, exchange: Exchange, now_s: float) -> None:
        if self.setting.one_at_a_time:
            self._at(now_s, self._send_next)
            return
        following = self._next_turn.get(exchange.planned.number)
        if following is not None:
            self._at(now_s + following.think_s, lambda when_s: self._send(following, when_s))


def play(setting: Setting, seed: str, noise: str = "noise") -> Played:
    """Play until the window closes. One seed is one traffic; `noise` draws other step times for it."""
    return _Run(setting, seed, noise).play()


def _shape(setting: Setting, planned: Sequence[Planned]) -> EngineShape:
    """The engine's sizes; it must hold the longest request that is not too long."""
    settings = setting.settings
    longest = max((it.prompt_tokens + it.output_tokens for it in planned), default=64) + 1
    blocks = max(ceil(settings.kv_tokens / settings.block), ceil(longest / settings.block) + 1)
    cap = min(settings.cap, settings.chunk)
    return EngineShape(
        max_model_len=longest,
        max_num_seqs=cap,
        max_num_batched_tokens=settings.chunk,
        block_size=settings.block,
        total_blocks=blocks,
        prefix_cache=settings.prefix_cache,
    )


def _read_at(exchange: Exchange, setting: Setting) -> tuple[list[float], float]:
    """When the gateway read each token, and how long it could not because its client did not read.

    The gateway reads on only while what its client has not taken fits the buffers.
    """
    back_s = setting.back_s + setting.world.output_lag_s
    until_s = setting.ends_s if exchange.left_s is None else min(exchange.left_s, setting.ends_s)
    if not setting.taken_s:
        return [came_s for at_s in exchange.engine_times_s if (came_s := at_s + back_s) <= until_s], 0.0
    came: list[float] = []
    taken: list[float] = []
    blocked_s = 0.0
    for number, at_s in enumerate(exchange.engine_times_s):
        arrives_s = at_s + back_s
        free_s = taken[number - BUFFERED] if number >= BUFFERED else arrives_s
        read_s = max(arrives_s, free_s)
        if read_s > until_s:
            break
        blocked_s += max(0.0, read_s - max(arrives_s, came[-1] if came else arrives_s))
        came.append(read_s)
        taken.append(max(read_s, taken[-1] if taken else read_s) + setting.taken_s)
    return came, blocked_s
