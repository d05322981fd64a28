"""Drives a virtual engine through a load in virtual time and records when every token arrived."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise
from math import inf

from phasewise.simulator.engine import StepReport, VirtualEngine, VirtualRequest


@dataclass(frozen=True, slots=True)
class VirtualOutcome:
    """One request as a client without any delay would have seen it; one time per token."""

    request_id: str
    arrived_s: float
    token_times_s: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token."""
        return self.token_times_s[0] - self.arrived_s

    @property
    def e2e_s(self) -> float:
        """From arrival to the last token."""
        return self.token_times_s[-1] - self.arrived_s

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """From each token to the next."""
        return tuple(after - before for before, after in pairwise(self.token_times_s))

    @property
    def tpot_s(self) -> float | None:
        """The mean gap; None for a single token."""
        gaps = len(self.token_times_s) - 1
        return (self.token_times_s[-1] - self.token_times_s[0]) / gaps if gaps else None


def run_virtually(engine: VirtualEngine, arrivals: Iterable[VirtualRequest]) -> tuple[VirtualOutcome, ...]:
    """Open loop: each request arrives at its `arrived_s`. Outcomes are in the order of the requests.

    The engine must be idle; cached prefixes stay cached, so a warm-up can run first.
    """
    run = _Run(engine)
    for request in arrivals:
        run.expect(request)
    run.to_the_end()
    return run.outcomes()


def run_closed(
    engine: VirtualEngine, requests: Sequence[VirtualRequest], concurrency: int, *, turnaround_s: float = 0.0
) -> tuple[VirtualOutcome, ...]:
    """Closed loop: so many requests arrive at second 0, and whenever one ends the next one arrives.

    `turnaround_s` is what a client takes from a last token to its next request. Even if it is 0, an engine
    with other work has started its next step by then. The requests' own `arrived_s` are ignored.
    """
    if concurrency < 1:
        raise ValueError("a closed loop needs at least one client")
    run = _Run(engine)
    for request in requests[:concurrency]:
        run.expect(replace(request, arrived_s=0.0))
    queue = iter(requests[concurrency:])

    def send_next(ended_s: float) -> None:
        request = next(queue, None)
        if request is not None:
            run.expect(replace(request, arrived_s=ended_s + turnaround_s))

    run.to_the_end(send_next)
    return run.outcomes()


class _Run:
    """One load on one engine: the requests still to come, and the times of all tokens."""

    def __init__(self, engine: VirtualEngine) -> None:
        if engine.has_work:
            raise ValueError("the engine must be idle when a run starts")
        self._engine = engine
        self._coming: list[tuple[float, int, VirtualRequest]] = []
        self._arrived_s: dict[str, float] = {}
        self._token_times_s: dict[str, list[float]] = {}

    def expect(self, request: VirtualRequest) -> None:
        """Schedule a request for its `arrived_s`; requests of the same time arrive in the order of calls."""
        if request.request_id in self._arrived_s:
            raise ValueError(f"request {request.request_id} is expected already")
        heappush(self._coming, (request.arrived_s, len(self._arrived_s), request))
        self._arrived_s[request.request_id] = request.arrived_s
        self._token_times_s[request.request_id] = []

    def to_the_end(self, on_end: Callable[[float], None] = lambda ended_s: None) -> None:
        """Step until all requests have ended; `on_end` gets the time of each request's end."""
        now_s = -inf
        while self._engine.has_work or self._coming:
            now_s = self._take_in(now_s)
            report = self._engine.step(now_s)
            if report is not None:
                now_s = report.step.ended_unix_s
                self._note(report)
                for _ in report.step.finished:
                    on_end(now_s)

    def outcomes(self) -> tuple[VirtualOutcome, ...]:
        """The outcome of every request, in the order of `expect`."""
        return tuple(
            VirtualOutcome(request_id, arrived_s, tuple(self._token_times_s[request_id]))
            for request_id, arrived_s in self._arrived_s.items()
        )

    def _take_in(self, now_s: float) -> float:
        """Queue what arrived during the last step, or wait for the next arrival; returns the step's start."""
        idle = not self._engine.has_work
        if idle:
            now_s = max(now_s, self._coming[0][0])
        # A request that arrives exactly at a step's end misses the next step: there is no pause between two.
        while self._coming and (self._coming[0][0] < now_s or (idle and self._coming[0][0] == now_s)):
            arrived_s, _, request = heappop(self._coming)
            self._engine.add(request, arrived_s)
        return now_s

    def _note(self, report: StepReport) -> None:
        for token in report.emitted:
            self._token_times_s[token.request_id].append(report.step.ended_unix_s)
