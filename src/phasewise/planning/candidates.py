"""Fleets that might do: engines together or apart, tokens in a step, requests in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from statistics import fmean, stdev

from phasewise.core.kv_transfer import SplitRule
from phasewise.core.slo import Slo
from phasewise.core.worker import Role
from phasewise.costs.fit.step import StepCost, StepWork, prefilling
from phasewise.fleet.config import FleetConfig
from phasewise.fleet.config.fleet import Levers, Pool
from phasewise.fleet.config.gateway import GatewayConfig, KvTransferConfig
from phasewise.planning.fleet_plan import EngineFigures
from phasewise.simulator.traffic import SimulatedTraffic, tokens_of

MOST_ENGINES = 64
"""A pool of a fleet file has at most this many engines."""
CHUNK_FACTOR = 4
USUAL_LOAD = 0.7
"""The share of engines' time at which the search for their number begins; it ends elsewhere."""
STRETCHES = 10
"""Parts of the traffic whose work is compared, to see how far other traffic would be from it."""


@dataclass(frozen=True, slots=True)
class FleetCandidate:
    """A fleet; `prefill` of its engines only compute prompts, none in a mixed fleet."""

    engines: int
    prefill: int
    max_num_batched_tokens: int
    max_num_seqs: int

    @property
    def label(self) -> str:
        if self.prefill:
            return f"{self.prefill} prefill + {self.engines - self.prefill} decode"
        return f"{self.engines} mixed"

    def resized(self, engines: int) -> FleetCandidate:
        """The same kind of fleet with more or fewer engines."""
        prefill = min(max(round(self.prefill * engines / self.engines), 1), engines - 1)
        return replace(self, engines=engines, prefill=prefill if self.prefill else 0)

    def fleet(self, model: str, gpus: int | None = None) -> FleetConfig:
        """Its fleet file. A disaggregated fleet splits every request, because that is what was simulated."""
        levers = Levers(max_num_batched_tokens=self.max_num_batched_tokens, max_num_seqs=self.max_num_seqs)
        if not self.prefill:
            return FleetConfig(model=model, pools=(Pool(replicas=self.engines, levers=levers, gpus=gpus),))
        roles = ((Role.PREFILL, self.prefill), (Role.DECODE, self.engines - self.prefill))
        return FleetConfig(
            model=model,
            pools=tuple(
                Pool(name=role.value, role=role, replicas=engines, levers=levers, gpus=gpus)
                for role, engines in roles
            ),
            gateway=GatewayConfig(kv_transfer=KvTransferConfig(when=SplitRule.ALWAYS)),
        )


@dataclass(frozen=True)
class Space:
    """The candidates for some engines, traffic and objectives."""

    engine: EngineFigures
    traffic: SimulatedTraffic
    slo: Slo

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """Tokens in a step, fewest first. Steps below the cost's knee would take as long for less."""
        chunks = [self.engine.batch_tokens]
        while (smaller := chunks[0] // CHUNK_FACTOR) >= max(16, self.engine.cost.knee_tokens):
            chunks.insert(0, smaller)
        return tuple(chunks)

    @cached_property
    def caps(self) -> tuple[int, ...]:
        """Requests in a step: the engine's own limit, and the most that keep a decode step within TPOT."""
        return tuple(dict.fromkeys((self.engine.max_num_seqs, self._most_within_tpot)))

    def candidates(self, engines: int, cap: int, *, disaggregated: bool) -> list[FleetCandidate]:
        """Candidates of so many engines, in the order of the speed of prefill at the cost of decode."""
        if disaggregated:
            chunk = self.engine.batch_tokens
            return [FleetCandidate(engines, prefill, chunk, min(cap, chunk)) for prefill in range(1, engines)]
        return [FleetCandidate(engines, 0, chunk, min(cap, chunk)) for chunk in self.chunks]

    def begin_at(self, row: list[FleetCandidate], like: FleetCandidate | None) -> int:
        """The index in a row where a search begins: near what did best so far, else where work balances."""
        if row[0].prefill:
            share = self.prefill_share if like is None else like.prefill / like.engines
            return min(max(round(share * row[0].engines) - 1, 0), len(row) - 1)
        return self.chunks.index(like.max_num_batched_tokens) if like else len(row) // 2

    def hopeless(self, attainment: float) -> str:
        """Why no number of engines meets the objectives for this share of requests; empty if they may."""
        cost = self.engine.cost
        if cost(StepWork(0, 1, 1, 0, round(self._context_tokens))) > self.slo.tpot_s:
            return "a stream alone on an engine is slower than the TPOT objective"
        # Of what may be cached, nothing is certain to be computed.
        own = [
            session.turns[0].prompt[-1].tokens
            for session in self.traffic.sessions
            if not session.turns[0].keys
        ]
        late = sum(_prefill_s(cost, tokens, self.engine.batch_tokens) > self.slo.ttft_s for tokens in own)
        if late > (1 - attainment) * self.traffic.requests:
            return f"{late:,} prompts alone on an engine take longer than the TTFT objective"
        return ""

    @property
    def usual_engines(self) -> int:
        """Where the search begins: by the work of the traffic."""
        seconds = self.traffic.sessions[-1].at_s - self.traffic.sessions[0].at_s
        return min(max(round(sum(self.work_s) / max(seconds, 1e-9) / USUAL_LOAD), 2), MOST_ENGINES)

    @property
    def prefill_share(self) -> float:
        """The share of prefill in the work, if nothing is cached."""
        return self.work_s[0] / sum(self.work_s)

    @property
    def work_s(self) -> tuple[float, float]:
        """Engine seconds of prefill and of decode, at the batch that TPOT allows."""
        prefill_s, decode_s = self._works_s
        return sum(prefill_s), sum(decode_s)

    @cached_property
    def _works_s(self) -> tuple[list[float], list[float]]:
        """Engine seconds of prefill and of decode, session by session."""
        cost, chunk = self.engine.cost, self.engine.batch_tokens
        streams = min(self._most_within_tpot, 64)
        token_s = cost(StepWork(0, streams, streams, 0, round(streams * self._context_tokens))) / streams
        sessions = [session.turns for session in self.traffic.sessions]
        return (
            [sum(_prefill_s(cost, tokens_of(turn.prompt), chunk) for turn in turns) for turns in sessions],
            [token_s * sum(turn.output_tokens for turn in turns) for turns in sessions],
        )

    def load_error(self, *, disaggregated: bool) -> float:
        """How far the load may be from that of other traffic of this kind at the same rate, as a share.

        One standard error; for disaggregated engines that of the phase that varies more.
        """
        prefill_s, decode_s = self._works_s
        if disaggregated:
            return max(_relative_error(prefill_s), _relative_error(decode_s))
        return _relative_error([sum(phases_s) for phases_s in zip(prefill_s, decode_s, strict=True)])

    @cached_property
    def _context_tokens(self) -> float:
        return fmean(tokens_of(turn.prompt) + turn.output_tokens / 2 for turn in self.traffic.turns)

    @cached_property
    def _most_within_tpot(self) -> int:
        low, high = 1, self.engine.max_num_seqs
        while low < high:
            streams = (low + high + 1) // 2
            work = StepWork(0, streams, streams, 0, round(streams * self._context_tokens))
            fits = self.engine.cost(work) <= self.slo.tpot_s
            low, high = (streams, high) if fits else (low, streams - 1)
        return low


def _relative_error(works_s: Sequence[float]) -> float:
    """Of a mean, from means over stretches: sessions that come together may be alike."""
    size = len(works_s) // STRETCHES
    if not size:
        return 0.0
    means = [fmean(works_s[at * size : (at + 1) * size]) for at in range(STRETCHES)]
    return stdev(means) / sqrt(STRETCHES) / max(fmean(means), 1e-12)


def _prefill_s(cost: StepCost, tokens: int, chunk: int) -> float:
    starts = range(0, tokens, chunk)
    return sum(cost(prefilling(min(chunk, tokens - start), start)) for start in starts)
