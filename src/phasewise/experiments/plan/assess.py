"""What a plan is worth: what binds it, what it costs, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from phasewise.core.statistics import Interval, quantile
from phasewise.costs.fit.solve import FittedCost
from phasewise.costs.fit.step import StepSeconds, StepWork
from phasewise.experiments.plan.candidates import MOST_ENGINES, Candidate
from phasewise.experiments.plan.trials import Trials, waited_for_prefill
from phasewise.experiments.simulate.figures import is_within
from phasewise.experiments.simulate.run import CONFIDENCE
from phasewise.simulator.gateway import SimulatedAttempt

NEARLY = 0.95
"""Of a limit: what is left may not be enough for the next request."""


class Binds(StrEnum):
    """What a fleet runs out of first."""

    PREFILL = "TTFT: prefill compute"
    DECODE = "TPOT: decode steps"
    KV_MEMORY = "KV cache memory"
    QUEUE = "the queue: max_num_seqs or the gateway's slots"


def binds(trials: Trials, candidate: Candidate) -> Binds | None:
    """What made most requests miss their objectives; None if none did."""
    slo, front_end_s = trials.goal.slo, trials.engine.front_end_s
    fleet = trials.run(trials.plan(candidate))
    missed = [it for it in fleet.requests if not is_within(it, slo, front_end_s)]
    attempts = [it for served in missed for it in served.attempts[-1:]]
    running: dict[str, list[SimulatedAttempt]] = {name: [] for name in fleet.hosts}
    for attempt in (it for served in fleet.requests for it in served.attempts):
        running[attempt.worker].append(attempt)

    def mostly_over(size: Callable[[SimulatedAttempt], float], limit: float) -> bool:
        """Whether most of those that missed came to an engine that was full."""
        full = 0
        for own in attempts:
            beside = (it for it in running[own.worker] if _runs(it, own.began_s))
            full += sum(map(size, beside)) >= NEARLY * limit
        return full > len(missed) / 2

    if not missed:
        return None
    shape = fleet.plan.pools[-1].shape
    kv_tokens = shape.total_blocks * shape.block_size
    if mostly_over(lambda it: it.request.prompt_tokens + it.request.outputs / 2, kv_tokens):
        return Binds.KV_MEMORY
    if mostly_over(lambda _: 1.0, min(shape.max_num_seqs, fleet.plan.pools[-1].slots)):
        return Binds.QUEUE
    waited = sum(waited_for_prefill(it, slo.ttft_s) for it in missed)
    return Binds.PREFILL if waited > len(missed) / 2 else Binds.DECODE


def _runs(attempt: SimulatedAttempt, at_s: float) -> bool:
    scheduled_s = attempt.request.scheduled_s
    return scheduled_s is not None and scheduled_s < at_s < attempt.ended_s


class PhaseMeter:
    """Step times that are added up. A step of both phases counts to each by what it would take alone."""

    def __init__(self, cost: StepSeconds) -> None:
        self.prefill_s = 0.0
        self._cost = cost

    def __call__(self, work: StepWork) -> float:
        """Seconds of a step."""
        seconds = self._cost(work)
        if work.prompt_tokens:
            decode_s = self._cost(work.without_prompts()) if work.decode_tokens else 0.0
            prefill_s = self._cost(replace(work, decode_tokens=0, kv_read_tokens=0))
            self.prefill_s += seconds * prefill_s / (prefill_s + decode_s)
        return seconds


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """What a million tokens cost by phase. `per_hour` is the price of the whole fleet."""

    per_hour: float
    prefill_share: float
    per_million_input: float
    per_million_output: float


def token_prices(trials: Trials, candidate: Candidate, engine_per_hour: float) -> TokenPrices:
    """Mixed engines are charged to both phases by busy time, others to the phase that they are for."""
    plan, meter = trials.plan(candidate), PhaseMeter(trials.engine.cost)
    fleet = trials.run(replace(plan, pools=tuple(replace(it, cost=meter) for it in plan.pools)))
    answered = [it for it in fleet.requests if it.answered]
    share = meter.prefill_s / max(sum(it.busy_s for it in fleet.hosts.values()), 1e-9)
    if candidate.prefill:
        share = candidate.prefill / candidate.engines
    per_hour = engine_per_hour * candidate.engines
    arrivals_s = trials.traffic.sessions[-1].at_s - trials.traffic.sessions[0].at_s
    paid = per_hour * arrivals_s / 3600 * 1e6
    return TokenPrices(
        per_hour,
        share,
        paid * share / max(1, sum(it.prompt_tokens for it in answered)),
        paid * (1 - share) / max(1, sum(it.output_tokens for it in answered)),
    )


def engines_interval(trials: Trials, candidate: Candidate, draws: tuple[FittedCost, ...]) -> Interval | None:
    """How many engines of this kind it takes if step times are others that fit the measurement as well."""
    least = 2 if candidate.prefill else 1
    needed = [float(candidate.engines)]
    for drawn in draws:
        engine = replace(trials.engine, cost=drawn.step, front_end_s=drawn.front_end_s)
        attempt, engines = replace(trials, engine=engine, done={}), candidate.engines
        while engines < MOST_ENGINES and not attempt(candidate.resized(engines)).met:
            engines += 1
        while engines > least and attempt(candidate.resized(engines - 1)).met:
            engines -= 1
        needed.append(float(engines))
    outside = (1 - CONFIDENCE) / 2
    return Interval(quantile(needed, outside), quantile(needed, 1 - outside), CONFIDENCE) if draws else None
