"""A fleet of virtual engines behind the gateway's own flow and policies, in virtual time.

It performs the flow's steps as the gateway does over HTTP, but a gateway and a network take no time here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, pairwise
from math import inf
from statistics import median

from phasewise.core.decision import Decision
from phasewise.core.kv_transfer import EngineAccount, KvTicket, SplitRule
from phasewise.core.limits import Lease
from phasewise.core.request import Endpoint, GenerationRequest
from phasewise.core.steps import FinishedRequest
from phasewise.core.worker import Role, Worker
from phasewise.costs.fit.step import StepSeconds
from phasewise.scheduling import (
    CacheMiss,
    Generate,
    LookUpCache,
    Prefill,
    Prefilled,
    Succeeded,
    World,
    request_flow,
)
from phasewise.scheduling.breakers import Breakers, RetryBudget
from phasewise.scheduling.disaggregation import SplitPolicy
from phasewise.scheduling.engine_speed import EngineSpeeds
from phasewise.scheduling.policies import least_outstanding
from phasewise.scheduling.prefix_index import PrefixIndex
from phasewise.scheduling.queue import WaitingQueue
from phasewise.scheduling.world import ClusterView, LoadLedger
from phasewise.simulator.engine import EmittedToken, EngineShape, VirtualEngine, VirtualRequest
from phasewise.simulator.kv import Connector, KvLink, RemoteKv, SideChannels

MODEL = "virtual"
BYTES_PER_TOKEN = 4.6
"""Bytes per token of a client's prompts; the gateway has to learn it."""
TEMPLATE_TOKENS = 12


@dataclass(frozen=True, slots=True)
class VirtualArrival:
    """One request of a load."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class ServedRequest:
    """One request and its outcome."""

    ask: VirtualArrival
    decisions: list[Decision] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token; infinite without one."""
        return self.token_times_s[0] - self.ask.at_s if self.token_times_s else inf

    @property
    def tpot_s(self) -> float | None:
        """The mean gap."""
        gaps = len(self.token_times_s) - 1
        return (self.token_times_s[-1] - self.token_times_s[0]) / gaps if gaps > 0 else None


class NoLimits:
    """Quotas without limits."""

    def settle(self, lease: Lease, used_tokens: int | None) -> None:
        """Nothing to give back."""


class _Host:
    """One engine, its clock, and the calls that wait for its tokens."""

    def __init__(self, worker: Worker, engine: VirtualEngine, link: KvLink) -> None:
        self.worker = worker
        self.engine = engine
        self.link = link
        self.busy = False
        self.wakes_s = inf
        self.listeners: dict[str, Callable[[EmittedToken, float], None]] = {}


class VirtualFleet:
    """One routing rule in front of its own engines."""

    def __init__(
        self, rule: SplitRule, prefill: int, decode: int, cost: StepSeconds, threshold_tokens: int = 512
    ) -> None:
        roles = [(Role.PREFILL, index) for index in range(prefill)]
        roles += [(Role.DECODE, index) for index in range(decode)]
        workers = [
            Worker(f"{role}-{index}", "http://127.0.0.1", MODEL, "1", role=role, pool=role)
            for role, index in roles
        ]
        channels = SideChannels()
        self._hosts = {worker.name: _host(worker, cost, channels) for worker in workers}
        self.world = _world(rule, threshold_tokens, workers)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()

    def serve(self, load: Iterable[VirtualArrival]) -> list[ServedRequest]:
        """Serve all arrivals to the end."""
        served = [ServedRequest(ask) for ask in load]
        for number, it in enumerate(served):
            self._at(it.ask.at_s, _VirtualCall(self, number, it).start)
        while self._events:
            when_s, _, act = heappop(self._events)
            act(when_s)
        return served

    def submit(
        self, worker: Worker, request: VirtualRequest, listener: Callable[[EmittedToken, float], None]
    ) -> None:
        """Send a request to an engine."""
        host = self._hosts[worker.name]
        host.listeners[request.request_id] = listener
        host.engine.add(request, request.arrived_s)
        self._step(host, request.arrived_s)

    def link(self, worker: Worker) -> KvLink:
        """How the engine transfers KV."""
        return self._hosts[worker.name].link

    def _at(self, when_s: float, act: Callable[[float], None]) -> None:
        heappush(self._events, (when_s, next(self._order), act))

    def _step(self, host: _Host, now_s: float) -> None:
        if host.busy:
            return
        host.engine.settle(now_s)
        report = host.engine.step(now_s)
        if report is None:
            self._wake_later(host)
            return
        host.busy = True

        def ended(ended_s: float) -> None:
            host.busy = False
            for token in report.emitted:
                listener = host.listeners[token.request_id]
                if token.finished is not None:
                    del host.listeners[token.request_id]
                listener(token, ended_s)
            self._step(host, ended_s)

        self._at(report.step.ended_unix_s, ended)

    def _wake_later(self, host: _Host) -> None:
        wakes_s = host.engine.next_event_s
        if wakes_s < inf and wakes_s != host.wakes_s:
            host.wakes_s = wakes_s
            self._at(wakes_s, lambda now_s: self._step(host, now_s))


class _VirtualCall:
    """One request's flow and its requests to engines."""

    def __init__(self, fleet: VirtualFleet, number: int, served: ServedRequest) -> None:
        self._fleet = fleet
        self._served = served
        self._id = f"r{number}"
        ask = served.ask
        self._ids = tuple(range(number * 10_000, number * 10_000 + ask.prompt_tokens))
        self._request = GenerationRequest(
            self._id,
            Endpoint.CHAT,
            MODEL,
            ask.at_s,
            prompt_bytes=int(max(1, ask.prompt_tokens - TEMPLATE_TOKENS) * BYTES_PER_TOKEN),
            max_output_tokens=ask.output_tokens,
            stream=True,
            splittable=True,
        )
        self._flow = request_flow(self._request, fleet.world)

    def start(self, now_s: float) -> None:
        """The request has arrived."""
        step = next(self._flow)
        if not isinstance(step, LookUpCache):
            raise TypeError("a flow must begin with its cache lookup")
        self._perform(self._flow.send(CacheMiss(now_s)), now_s)

    def _perform(self, step: object, now_s: float) -> None:
        if isinstance(step, Prefill):
            self._served.decisions.append(step.decision)
            request = self._asked(f"{self._id}-p", 1, now_s, keep_kv=True)
            self._fleet.submit(step.worker, request, lambda token, at_s: self._prefilled(step, token, at_s))
        elif isinstance(step, Generate):
            if step.kv is None:
                self._served.decisions.append(step.decision)
            request = self._asked(
                self._id, self._served.ask.output_tokens, now_s, remote_kv=self._remote(step)
            )
            self._fleet.submit(step.worker, request, lambda token, at_s: self._token(step, token, at_s))
        else:
            raise TypeError(f"a virtual fleet cannot perform {type(step).__name__}")

    def _asked(
        self,
        request_id: str,
        max_tokens: int,
        now_s: float,
        *,
        keep_kv: bool = False,
        remote_kv: RemoteKv | None = None,
    ) -> VirtualRequest:
        return VirtualRequest(
            request_id,
            self._ids,
            max_tokens,
            now_s,
            ignore_eos=True,
            keep_kv=keep_kv,
            remote_kv=remote_kv,
        )

    def _remote(self, step: Generate) -> RemoteKv | None:
        if step.kv is None or step.decision.prefill is None:
            return None
        link = self._fleet.link(step.decision.prefill)
        blocks = tuple(map(int, step.kv.params.split(b",")))
        return RemoteKv(link.address, link.engine_id, f"{self._id}-p", blocks)

    def _prefilled(self, step: Prefill, token: EmittedToken, now_s: float) -> None:
        if token.finished is None or token.kept_blocks is None:
            raise TypeError("a prefill must have one token and keep its KV")
        params = b",".join(b"%d" % block for block in token.kept_blocks)
        ticket = KvTicket(step.worker.ref, params, len(self._ids), now_s + 15.0)
        self._perform(self._flow.send(Prefilled(now_s, ticket, _account(token.finished, []))), now_s)

    def _token(self, step: Generate, token: EmittedToken, now_s: float) -> None:
        times_s = self._served.token_times_s
        times_s.append(now_s)
        if len(times_s) == 1 and step.on_first_content is not None:
            step.on_first_content()
        if token.finished is not None:
            outcome = Succeeded(now_s, account=_account(token.finished, times_s))
            try:
                self._flow.send(outcome)
            except StopIteration:
                return
            raise TypeError("a flow must end with its answer")


def _account(finished: FinishedRequest, times_s: list[float]) -> EngineAccount:
    gaps = [after - before for before, after in pairwise(times_s)]
    return EngineAccount(
        finished.prompt_tokens,
        finished.cached_tokens,
        finished.output_tokens,
        finished.queue_s,
        finished.prefill_s,
        median(gaps) if gaps else None,
    )


def _host(worker: Worker, cost: StepSeconds, channels: SideChannels) -> _Host:
    link = KvLink(worker.name, ("127.0.0.1", channels.free_port()), channels, Connector())
    shape = EngineShape(total_blocks=2_000, max_num_batched_tokens=2_048)
    return _Host(worker, VirtualEngine(shape, cost, link), link)


def _world(rule: SplitRule, threshold_tokens: int, workers: list[Worker]) -> World:
    paces, prefixes = EngineSpeeds(workers), PrefixIndex()
    cluster = ClusterView(workers)
    for worker in workers:
        cluster.mark_up(worker.name, worker.incarnation)
    policy = SplitPolicy(rule, threshold_tokens, least_outstanding, paces, prefixes, tries_untimed=True)
    return World(
        cluster,
        LoadLedger(),
        RetryBudget(),
        policy,
        Breakers(),
        WaitingQueue(),
        NoLimits(),
        paces=paces,
        prefixes=prefixes,
    )
