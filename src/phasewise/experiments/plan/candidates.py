"""Fleets that might do: engines together or apart, how many tokens a step takes, how many requests it has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import mean

from phasewise.core.kv_transfer import SplitRule
from phasewise.core.slo import Slo
from phasewise.core.worker import Role
from phasewise.costs.fit.step import StepCost, StepWork, prefilling
from phasewise.experiments.simulate.fleet_plan import EngineFigures
from phasewise.fleet.config import FleetConfig
from phasewise.fleet.config.fleet import Levers, Pool
from phasewise.fleet.config.gateway import GatewayConfig, KvTransferConfig
from phasewise.simulator.traffic import Traffic, Turn, tokens_of

MOST_ENGINES = 64
"""In one pool of a fleet file."""
CHUNK_FACTOR = 4
USUAL_LOAD = 0.7
"""Where the search for the number of engines begins, as a share of their time; it ends elsewhere."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fleet; `prefill` of its engines only compute prompts, none in a mixed fleet."""

    engines: int
    prefill: int
    max_num_batched_tokens: int
    max_num_seqs: int

    @property
    def label(self) -> str:
        """As people say it."""
        if self.prefill:
            return f"{self.prefill} prefill + {self.engines - self.prefill} decode"
        return f"{self.engines} mixed"

    def fleet(self, model: str, gpus: int | None = None) -> FleetConfig:
        """Its fleet file. A disaggregated fleet splits every request, which is what was simulated."""
        levers = Levers(max_num_batched_tokens=self.max_num_batched_tokens, max_num_seqs=self.max_num_seqs)
        if not self.prefill:
            return FleetConfig(model=model, pools=(Pool(replicas=self.engines, levers=levers, gpus=gpus),))
        roles = ((Role.PREFILL, self.prefill), (Role.DECODE, self.engines - self.prefill))
        return FleetConfig(
            model=model,
            pools=tuple(
                Pool(name=role.value, role=role, replicas=count, levers=levers, gpus=gpus)
                for role, count in roles
            ),
            gateway=GatewayConfig(kv_transfer=KvTransferConfig(when=SplitRule.ALWAYS)),
        )


@dataclass(frozen=True)
class Space:
    """The candidates for some engines, traffic and objectives."""

    engine: EngineFigures
    traffic: Traffic
    slo: Slo

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """Tokens in a step, fewest first. Steps below the cost's knee would cost as much for less."""
        chunks = [self.engine.batch_tokens]
        while (smaller := chunks[0] // CHUNK_FACTOR) >= max(16, self.engine.cost.knee_tokens):
            chunks.insert(0, smaller)
        return tuple(chunks)

    @cached_property
    def caps(self) -> tuple[int, ...]:
        """Requests in a step: the engine's own limit, and the most that keep a decode step within TPOT."""
        most = self.engine.max_num_seqs
        fitting = self._most_within_tpot()
        return (most, fitting) if fitting < most else (most,)

    def line(self, engines: int, cap: int, *, disaggregated: bool) -> list[Candidate]:
        """Candidates of so many engines, in the order of the speed of prefill at the cost of decode."""
        if disaggregated:
            chunk = self.engine.batch_tokens
            return [
                Candidate(engines, prefill, chunk, min(cap, chunk)) for prefill in range(1, engines)
            ]
        return [Candidate(engines, 0, chunk, min(cap, chunk)) for chunk in self.chunks]

    def begin_at(self, line: list[Candidate], like: Candidate | None) -> int:
        """The place on a line where a search begins: near what did best so far, else where work balances."""
        if not line[0].prefill:
            wanted = self.chunks[len(self.chunks) // 2] if like is None else like.max_num_batched_tokens
            return min(range(len(line)), key=lambda at: abs(line[at].max_num_batched_tokens - wanted))
        share = self.prefill_share if like is None or not like.prefill else like.prefill / like.engines
        return min(max(round(share * line[0].engines) - 1, 0), len(line) - 1)

    @property
    def usual_engines(self) -> int:
        """Where the search begins: by the work of the traffic."""
        seconds = self.traffic.sessions[-1].at_s - self.traffic.sessions[0].at_s
        wanted = sum(self.work_s) / max(seconds, 1e-9) / USUAL_LOAD
        return min(max(round(wanted), 2), MOST_ENGINES)

    @property
    def prefill_share(self) -> float:
        """The share of prefill in the work, if nothing is cached."""
        prefill_s, decode_s = self.work_s
        return prefill_s / (prefill_s + decode_s)

    @cached_property
    def _turns(self) -> list[Turn]:
        return [turn for it in self.traffic.sessions for turn in it.turns]

    @cached_property
    def work_s(self) -> tuple[float, float]:
        """Engine seconds of prefill and of decode, at the batch that TPOT allows."""
        cost, chunk = self.engine.cost, self.engine.batch_tokens
        prefill_s = sum(_prefill_s(cost, tokens_of(it.prompt), chunk) for it in self._turns)
        streams = min(self._most_within_tpot(), 64)
        step_s = cost(StepWork(0, streams, streams, 0, round(streams * self._context_tokens)))
        return prefill_s, step_s / streams * sum(it.output_tokens for it in self._turns)

    @cached_property
    def _context_tokens(self) -> float:
        return mean(tokens_of(it.prompt) + it.output_tokens / 2 for it in self._turns)

    def _most_within_tpot(self) -> int:
        cost, low, high = self.engine.cost, 1, self.engine.max_num_seqs
        while low < high:
            streams = (low + high + 1) // 2
            work = StepWork(0, streams, streams, 0, round(streams * self._context_tokens))
            low, high = (streams, high) if cost(work) <= self.slo.tpot_s else (low, streams - 1)
        return low


def _prefill_s(cost: StepCost, tokens: int, chunk: int) -> float:
    whole, rest = divmod(tokens, chunk)
    seconds = sum(cost(prefilling(chunk, number * chunk)) for number in range(whole))
    return seconds + (cost(prefilling(rest, whole * chunk)) if rest else 0.0)
