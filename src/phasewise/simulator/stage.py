"""Virtual engines in virtual time, with many kinds of clients: minutes of traffic in a moment.

It records what a gateway and the engines' step recorders would have recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count

from phasewise.core.steps import EngineStep, FinishedRequest
from phasewise.costs.fit.step import StepSeconds, StepWork
from phasewise.simulator.engine import EngineShape, StepReport, VirtualEngine, VirtualRequest
from phasewise.simulator.tokens import encode

EPOCH_S = 1_800_000_000.0
MODEL = "virtual"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to send: its prompt, and the length of its answer."""

    text: str
    output_tokens: int


Turn = tuple[Ask, ...]
"""What a client sends at once; its next turn follows when all of it is answered."""


@dataclass(slots=True)
class SimulatedRequest:
    """One request and its outcome. `due_s` is when it was to be sent and `sent_s` when it was."""

    number: int
    ask: Ask
    engine: int
    due_s: float
    sent_s: float
    token_times_s: list[float] = field(default_factory=list)
    finished: FinishedRequest | None = None

    @property
    def request_id(self) -> str:
        """The engine's id for it."""
        return f"chatcmpl-v{self.number}"


class SlowMachine:
    """A step cost as a machine changes it: less CPU, slow first steps, and pauses.

    `share` is the share of its core that the engine gets. The first steps, as many as `cold_steps`, take
    `cold_s` more. During `pauses` nothing runs.
    """

    def __init__(
        self,
        cost: StepSeconds,
        share: float = 1.0,
        cold_steps: int = 0,
        cold_s: float = 0.0,
        pauses: Sequence[tuple[float, float]] = (),
    ) -> None:
        self.begins_s = 0.0
        self._cost = cost
        self._share = share
        self._cold_left = cold_steps
        self._cold_s = cold_s
        self._pauses = pauses

    def __call__(self, work: StepWork) -> float:
        """Seconds of the step that starts at `begins_s`."""
        duration_s = self._cost(work) / self._share
        if self._cold_left:
            self._cold_left -= 1
            duration_s += self._cold_s
        for begin_s, end_s in self._pauses:
            if self.begins_s < end_s and begin_s < self.begins_s + duration_s:
                duration_s += end_s - max(begin_s, self.begins_s)
        return duration_s


class VirtualHost:
    """One engine and its step recorder, which counts drafted tokens in a step as vLLM does."""

    def __init__(self, shape: EngineShape, machine: SlowMachine, guesses: int = 0) -> None:
        self.engine = VirtualEngine(shape, machine)
        self.shape = shape
        self.machine = machine
        self.guesses = guesses
        self.steps: list[EngineStep] = []
        self.reports: list[StepReport] = []
        self.busy = False
        self.open_tokens = 0

    def record(self, report: StepReport) -> None:
        """Record a step that has ended."""
        guessed = self.guesses * (report.step.decode_requests or 0)
        self.steps.append(replace(report.step, decode_tokens=(report.step.decode_tokens or 0) + guessed))
        self.reports.append(report)


class Stage:
    """The engines, the clients and the clock."""

    def __init__(self, hosts: Sequence[VirtualHost]) -> None:
        self.hosts = tuple(hosts)
        self.exchanges: list[SimulatedRequest] = []
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._open: dict[str, tuple[SimulatedRequest, Callable[[float], None]]] = {}

    def at(self, when_s: float, act: Callable[[float], None]) -> None:
        """Schedule an event."""
        heappush(self._events, (when_s, next(self._order), act))

    def play(self, until_s: float) -> None:
        """Run all events before a time."""
        while self._events and self._events[0][0] <= until_s:
            when_s, _, act = heappop(self._events)
            act(when_s)

    def closed_loop(self, turns: Iterator[Turn], begins_s: float, pause_s: float) -> None:
        """A client that sends a turn, waits for all its answers, and sends the next."""
        waiting = 0

        def send(now_s: float) -> None:
            nonlocal waiting
            turn = next(turns)
            waiting = len(turn)
            for ask in turn:
                self.send(ask, now_s, now_s, answered)

        def answered(now_s: float) -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                self.at(now_s + pause_s, send)

        self.at(begins_s, send)

    def send(
        self, ask: Ask, due_s: float, now_s: float, answered: Callable[[float], None] = lambda _: None
    ) -> None:
        """Place a request on the engine with the fewest tokens in progress, as the gateway does."""
        number = min(range(len(self.hosts)), key=lambda index: self.hosts[index].open_tokens)
        exchange = SimulatedRequest(len(self.exchanges), ask, number, due_s, now_s)
        self.exchanges.append(exchange)
        host = self.hosts[number]
        ids = tuple(encode(ask.text))
        host.open_tokens += len(ids) + ask.output_tokens
        self._open[exchange.request_id] = (exchange, answered)
        request = VirtualRequest(
            exchange.request_id, ids, ask.output_tokens, EPOCH_S + now_s, ask.output_tokens, ignore_eos=True
        )
        host.engine.add(request, EPOCH_S + now_s)
        self._step(host, now_s)

    def _step(self, host: VirtualHost, now_s: float) -> None:
        if host.busy or not host.engine.has_work:
            return
        host.machine.begins_s = now_s
        report = host.engine.step(EPOCH_S + now_s)
        if report is None:
            return
        host.busy = True
        self.at(report.step.ended_unix_s - EPOCH_S, lambda ended_s: self._stepped(host, report, ended_s))

    def _stepped(self, host: VirtualHost, report: StepReport, ended_s: float) -> None:
        host.busy = False
        host.record(report)
        ended: list[Callable[[float], None]] = []
        for token in report.emitted:
            exchange, answered = self._open[token.request_id]
            exchange.token_times_s.append(ended_s)
            if token.finished is not None:
                exchange.finished = token.finished
                host.open_tokens -= token.finished.prompt_tokens + token.finished.output_tokens
                del self._open[token.request_id]
                ended.append(answered)
        self._step(host, ended_s)
        for answered in ended:
            answered(ended_s)
