"""Tries scaling rules on a workload: what users would see, what engines cost, how steady their number is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from math import inf
from typing import Any

from phasewise.core.errors import ConfigError, UsageError
from phasewise.core.slo import Slo
from phasewise.core.worker import Role
from phasewise.costs.fit.step import StepCost, chunk_pairs
from phasewise.experiments.simulate.figures import FleetFigures, figures_of
from phasewise.scheduling.engines_needed import UTILIZATION
from phasewise.simulator.fleet import FleetPlan, SimulatedFleet
from phasewise.simulator.scaling import (
    Autoscaler,
    Rule,
    open_requests_per_engine,
    published_need,
    queueing_model,
    reversals,
)
from phasewise.simulator.traffic import Traffic, tokens_of

HINDSIGHT = "hindsight"
SHARES = frozenset({HINDSIGHT, "phasewise"})
"""Rules whose setting is a share: at most 1."""
KNOBS = {"fixed": None, "concurrency": 64.0, "slo": 1.0, "phasewise": UTILIZATION, HINDSIGHT: 0.95}
"""Every rule with the setting that it has unless another is given; `fixed` has that of the fleet."""


@dataclass(frozen=True, slots=True)
class ScalingTrial:
    """A rule, its setting, how long engines take to start, and the bounds of their number in each pool."""

    rule: str
    setting: float | None
    start_up_s: float
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class ScalingFigures:
    """What came of a trial; a lower bound has no `figures`. `history` is the number of engines by pool, from
    when on.
    """

    rule: str
    setting: float | None
    attained: float
    engine_hours: float
    reversals: int
    history: dict[str, list[tuple[float, int]]]
    figures: FleetFigures | None

    @property
    def label(self) -> str:
        """The rule as it may be given."""
        return self.rule if self.setting is None else f"{self.rule}={self.setting:g}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)


def parse_rule(text: str) -> tuple[str, float | None]:
    """`concurrency=32`, or a rule with its usual setting."""
    rule, given, setting = text.partition("=")
    if rule not in KNOBS:
        raise UsageError(f"no scaling rule is named {rule!r}", hint=f"accepted: {', '.join(KNOBS)}")
    most = 1.0 if rule in SHARES else inf
    try:
        if (chosen := float(setting) if given else KNOBS[rule]) is None or 0 < chosen <= most:
            return rule, chosen
    except ValueError:
        pass
    accepted = "a number above zero" + (" and at most 1" if rule in SHARES else "")
    example = KNOBS[rule] or 4
    raise UsageError(f"--scale {text} does not have {accepted}", hint=f"write it as {rule}={example:g}")


def try_rule(
    trial: ScalingTrial,
    plan: FleetPlan,
    traffic: Traffic,
    slo: Slo,
    front_end_s: float,
    new_fleet: Callable[[FleetPlan], SimulatedFleet] = SimulatedFleet,
) -> ScalingFigures:
    """Run the fleet once, with its engines' number as the rule wants it."""
    if trial.rule == HINDSIGHT:
        return _hindsight(trial, plan, traffic)
    if trial.rule == "slo" and any(it.role is not Role.MIXED for it in plan.pools):
        raise UsageError("the rule slo does not know prefill and decode apart", hint="use mixed pools")
    fleet = new_fleet(replace(plan, times_engines=trial.rule == "phasewise"))
    scaler = Autoscaler(fleet, _rule(trial, slo), trial.start_up_s, trial.least, trial.most)
    fleet.run(traffic)
    scaler.end()
    figures = figures_of(fleet, slo, front_end_s)
    return ScalingFigures(
        trial.rule,
        trial.setting,
        figures.attained,
        sum(it.engine_s for it in scaler.pools) / 3600,
        sum(reversals(it.history) for it in scaler.pools),
        {it.pool.name: it.history for it in scaler.pools},
        figures,
    )


def _rule(trial: ScalingTrial, slo: Slo) -> Rule:
    setting = trial.setting
    if setting is None or trial.rule == "fixed":
        return lambda _fleet, pool: setting or pool.engines
    if trial.rule == "concurrency":
        return open_requests_per_engine(setting)
    return queueing_model(slo, setting) if trial.rule == "slo" else published_need(slo, setting)


# --- The lower bound.

_MINUTE_S = 60.0


def _hindsight(trial: ScalingTrial, plan: FleetPlan, traffic: Traffic) -> ScalingFigures:
    """Engine hours that no rule can do without: the work of the cheapest requests, minute by minute.

    Every prefix that was ever computed is cached, no request waits, all steps have the size at which a token
    takes least, engines start at once and come in fractions. Requests that need not be served are the
    costliest ones.
    """
    cost, shape = plan.pools[0].cost, plan.pools[0].shape
    if not isinstance(cost, StepCost):
        raise ConfigError("the lower bound needs step times by parts", hint="leave out hindsight")
    share = trial.setting or 1.0
    seen: set[int] = set()
    works: list[tuple[float, int]] = []
    for session in traffic.sessions:
        for turn in session.turns:
            keys = SimulatedFleet.keys_of(turn, shape.block_size)
            held = sum(1 for _ in takewhile(seen.__contains__, keys)) * shape.block_size
            seen.update(keys)
            prompt_tokens = tokens_of(turn.prompt)
            cached = min(held, prompt_tokens - 1) if shape.prefix_cache else 0
            work_s = _least_s(cost, prompt_tokens, cached, turn.output_tokens)
            works.append((work_s, int(session.at_s // _MINUTE_S)))
    minutes = [0.0] * (max(minute for _, minute in works) + 1)
    for work_s, minute in sorted(works)[: round(share * len(works))]:
        minutes[minute] += work_s
    least = trial.least * len(plan.pools)
    last_s = traffic.sessions[-1].at_s - _MINUTE_S * (len(minutes) - 1)
    engine_s = sum(max(least * _MINUTE_S, it) for it in minutes[:-1]) + max(least * last_s, minutes[-1])
    return ScalingFigures(trial.rule, trial.setting, share, engine_s / 3600, 0, {}, None)


def _least_s(cost: StepCost, prompt_tokens: int, cached: int, output_tokens: int) -> float:
    """The least time that a request can take of an engine."""
    new = prompt_tokens - cached
    per_token_s = cost.per_token_s + min(cost.beyond_knee_s_per_token, cost.floor_s / cost.knee_tokens)
    context = output_tokens * prompt_tokens + output_tokens * (output_tokens - 1) // 2
    return (
        per_token_s * (new + output_tokens - 1)
        + cost.attention_s_per_token_pair * chunk_pairs(new, cached)
        + cost.kv_read_s_per_token * (context - prompt_tokens)
        + cost.per_request_s * output_tokens
    )
