"""A gateway in virtual time: it performs the steps of the request flow as the real one does over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from statistics import median

from phasewise.core.decision import Decision, RejectReason
from phasewise.core.errors import FailureKind
from phasewise.core.kv_transfer import KvTicket
from phasewise.core.ports import Lease
from phasewise.core.request import GenerationRequest
from phasewise.core.timeline import EngineAccount
from phasewise.scheduling import (
    CacheMiss,
    CountAndLookUp,
    Failed,
    Generate,
    Granted,
    LookUpCache,
    Outcome,
    Prefill,
    Prefilled,
    QuotaAnswered,
    Reject,
    Step,
    Succeeded,
    TimedOut,
    Wait,
    World,
    request_flow,
)
from phasewise.scheduling.quota_book import QuotaBook
from phasewise.scheduling.world import let_waiting_in
from phasewise.simulator.hosts import EngineHost, VirtualClock
from phasewise.simulator.requests import CountedRequest

KV_KEPT_S = 15.0
"""How long a decode engine may fetch the KV of a prompt."""


class VirtualQuotas:
    """Keys' limits by the virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.book = QuotaBook()

    def settle(self, lease: Lease, used_tokens: int | None) -> None:
        """The request has ended."""
        self.book.settle(lease, used_tokens, self._clock.now_s)


@dataclass(slots=True)
class SimulatedAttempt:
    """One try of a request at one engine: when it began and ended, and what the engine knows about it."""

    worker: str
    began_s: float
    request: CountedRequest
    is_prefill: bool = False
    resumes: bool = False
    fetches: bool = False
    ended_s: float = inf
    failed: bool = False


@dataclass(slots=True)
class SimulatedRequest:
    """One request and what became of it. `first_s` and `last_s` are those of its tokens."""

    request: GenerationRequest
    prompt_tokens: int
    output_tokens: int
    gateway: int = 0
    decisions: list[Decision] = field(default_factory=list)
    attempts: list[SimulatedAttempt] = field(default_factory=list)
    first_s: float | None = None
    last_s: float | None = None
    rejected: RejectReason | None = None
    rejected_s: float | None = None
    too_long: bool = False
    """Whether an engine rejected it, because its prompt leaves no token for an answer."""

    @property
    def arrived_s(self) -> float:
        """When it came."""
        return self.request.arrived_s

    @property
    def answered(self) -> bool:
        """Whether its whole answer has come."""
        return self.last_s is not None

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token; infinite without one."""
        return inf if self.first_s is None else self.first_s - self.arrived_s

    @property
    def e2e_s(self) -> float:
        """From arrival to the last token; infinite without one."""
        return inf if self.last_s is None else self.last_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """The mean gap; None for a single token, or without the whole answer."""
        if self.last_s is None or self.first_s is None or self.output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.output_tokens - 1)

    @property
    def cached_tokens(self) -> int:
        """How much of its prompt was cached where it was computed."""
        return self.attempts[0].request.cached_tokens or 0 if self.attempts else 0


class SimulatedGateway:
    """One gateway with knowledge of its own before engines that others may use too."""

    def __init__(
        self, clock: VirtualClock, world: World, hosts: Mapping[str, EngineHost], number: int = 0
    ) -> None:
        self.world = world
        self.number = number
        self.clock = clock
        self.hosts = hosts
        self.quotas = world.quotas if isinstance(world.quotas, VirtualQuotas) else None

    def serve(
        self, served: SimulatedRequest, keys: Sequence[int], ended: Callable[[SimulatedRequest], None]
    ) -> None:
        """Serve a request that arrives now; `ended` is called when it has its answer, or its rejection."""
        served.gateway = self.number
        _Call(self, served, keys, ended).start()

    def sees_up(self, name: str, incarnation: str) -> None:
        """The health watcher finds an engine up."""
        self.world.cluster.mark_up(name, incarnation)
        let_waiting_in(self.world, self.clock.now_s)

    def sees_down(self, name: str) -> None:
        """The health watcher finds an engine down."""
        self.world.cluster.mark_down(name, "does not answer")


class _Call:
    """One request's flow, and the engine that it waits for. It is what an engine reports to."""

    __slots__ = ("_attempt", "_ended", "_flow", "_gateway", "_keys", "_served", "_step", "_written")

    def __init__(
        self,
        gateway: SimulatedGateway,
        served: SimulatedRequest,
        keys: Sequence[int],
        ended: Callable[[SimulatedRequest], None],
    ) -> None:
        self._gateway = gateway
        self._served = served
        self._keys = keys
        self._ended = ended
        self._flow = request_flow(served.request, gateway.world)
        self._step: Step | None = None
        self._attempt: SimulatedAttempt | None = None
        self._written = 0

    def start(self) -> None:
        """The request has arrived."""
        self._perform(next(self._flow))

    def _go_on(self, outcome: Outcome) -> None:
        try:
            step = self._flow.send(outcome)
        except StopIteration:
            self._ended(self._served)
            return
        self._perform(step)

    def _perform(self, step: Step) -> None:
        """Perform steps until one takes time."""
        now_s = self._gateway.clock.now_s
        self._step = step
        if isinstance(step, Generate):
            self._generate(step)
        elif isinstance(step, LookUpCache):
            self._go_on(CacheMiss(now_s))
        elif isinstance(step, Wait):
            self._wait(step)
        elif isinstance(step, Prefill):
            self._prefill(step)
        elif isinstance(step, CountAndLookUp):
            self._count(step)
        elif isinstance(step, Reject):
            self._served.rejected = step.reason
            self._served.rejected_s = now_s
            self._flow.close()
            self._ended(self._served)
        else:
            raise TypeError(f"a simulated gateway cannot perform {type(step).__name__}")

    # --- limits and the queue -----------------------------------------------------------------------------

    def _count(self, step: CountAndLookUp) -> None:
        gateway = self._gateway
        if gateway.quotas is None:
            raise TypeError("a simulated gateway counts limits by the virtual clock")
        now_s = gateway.clock.now_s
        answer = gateway.quotas.book.take(step.key_id, step.limits, step.tokens, now_s)
        self._go_on((QuotaAnswered(now_s, answer), CacheMiss(now_s)))

    def _wait(self, step: Wait) -> None:
        clock, ticket = self._gateway.clock, step.ticket
        if ticket.granted:
            self._go_on(Granted(clock.now_s))
            return
        # A grant comes in the middle of another request's step.
        ticket.on_grant = lambda: clock.at(clock.now_s, self._waited, step)
        clock.at(max(clock.now_s, step.until_s), self._waited, step)

    def _waited(self, step: Wait) -> None:
        if self._step is step:
            now_s = self._gateway.clock.now_s
            self._go_on(Granted(now_s) if step.ticket.granted else TimedOut(now_s))

    # --- engines ------------------------------------------------------------------------------------------

    def _prefill(self, step: Prefill) -> None:
        self._served.decisions.append(step.decision)
        name = f"{self._served.request.request_id}.{step.attempt}"
        request = CountedRequest(name, self._served.prompt_tokens, 1, self._keys, keep_kv=True)
        self._submit(step.worker.name, request, None, is_prefill=True)

    def _generate(self, step: Generate) -> None:
        served, source = self._served, None
        if step.kv is None:
            served.decisions.append(step.decision)
        elif step.decision.prefill is not None:
            source = self._gateway.hosts[step.decision.prefill.name]
        request = CountedRequest(
            f"{served.request.request_id}.{step.attempt}",
            served.prompt_tokens + self._written,
            served.output_tokens - self._written,
            self._keys,
            fetches=source is not None,
        )
        self._submit(step.worker.name, request, source, resumes=step.resumes)

    def _submit(
        self,
        worker: str,
        request: CountedRequest,
        source: EngineHost | None,
        *,
        is_prefill: bool = False,
        resumes: bool = False,
    ) -> None:
        now_s = self._gateway.clock.now_s
        self._attempt = SimulatedAttempt(worker, now_s, request, is_prefill, resumes, source is not None)
        self._served.attempts.append(self._attempt)
        host = self._gateway.hosts[worker]
        if not host.up:
            self._failed(FailureKind.CONNECTION_REFUSED)
            return
        if request.prompt_tokens >= host.engine.shape.max_model_len:
            self._attempt.ended_s = self._served.rejected_s = now_s
            self._served.too_long = self._attempt.failed = True
            self._go_on(Succeeded(now_s, 0))
            return
        if source is not None and not source.up:
            self._failed(FailureKind.KV_TRANSFER)
            return
        host.submit(request, self, source)

    def begun(self, now_s: float) -> None:
        """The first token has come."""
        step, served = self._step, self._served
        if not isinstance(step, Generate):
            return
        if served.first_s is None:
            served.first_s = now_s
        if step.on_first_content is not None:
            step.on_first_content()

    def finished(self, now_s: float) -> None:
        """The last token has come."""
        attempt, served, step = self._attempt, self._served, self._step
        if attempt is None:
            raise TypeError("an engine finished what nobody asked for")
        attempt.ended_s = now_s
        account = _account(attempt.request, timed=self._gateway.world.learns_pace)
        if isinstance(step, Prefill):
            ticket = KvTicket(step.worker.ref, b"", served.prompt_tokens, now_s + KV_KEPT_S)
            self._go_on(Prefilled(now_s, ticket, account))
        else:
            served.last_s = now_s
            # An answer may be cut by the context.
            served.output_tokens = self._written + attempt.request.outputs
            self._go_on(Succeeded(now_s, served.prompt_tokens + served.output_tokens, account))

    def lost(self, now_s: float, kind: FailureKind) -> None:
        """The engine has died. The answer so far is with the client, and another engine may go on with it."""
        del now_s
        self._failed(kind)

    def _failed(self, kind: FailureKind) -> None:
        attempt, now_s = self._attempt, self._gateway.clock.now_s
        if attempt is not None:
            attempt.ended_s, attempt.failed = now_s, True
            if not attempt.is_prefill and kind is FailureKind.CLOSED:
                self._written += attempt.request.outputs
        sent = self._written > 0
        self._go_on(Failed(now_s, kind, sent, resumable=sent))


def _account(request: CountedRequest, *, timed: bool) -> EngineAccount:
    """What an engine and its stream report of a request that has ended; its gaps if they are `timed`."""
    times_s = request.token_times_s
    scheduled_s = request.queued_s if request.scheduled_s is None else request.scheduled_s
    first_s = scheduled_s if request.first_token_s is None else request.first_token_s
    gaps = [after - before for before, after in pairwise(times_s)] if timed else ()
    return EngineAccount(
        request.prompt_tokens,
        request.cached_tokens or 0,
        request.outputs,
        scheduled_s - request.queued_s,
        first_s - scheduled_s,
        gap_s=median(gaps) if gaps else None,
    )
