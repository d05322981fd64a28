"""Plans of a few requests for one question: one after another, the same again, at once, or joined late."""

from __future__ import annotations

from dataclasses import replace
from random import Random, SystemRandom

from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop
from phasewise.benchmark.workload.drafts import PlannedRequest
from phasewise.benchmark.workload.plan import CONTEXT_MARGIN_TOKENS, Plan, PlanSpec, make_plan
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.benchmark.workload.prompts import Message, opened, write_opening


def one_by_one(prompt_tokens: int, output_tokens: int, requests: int, rng: Random) -> Plan:
    """Requests one after another, each with first words that are new in every run."""
    shape = Shape("probe", Lengths.fixed(prompt_tokens), Lengths.fixed(output_tokens))
    context = prompt_tokens + output_tokens + CONTEXT_MARGIN_TOKENS
    plan = make_plan(PlanSpec(shape, ClosedLoop(1), requests=requests, context_tokens=context), rng)
    return replace(plan, threads=tuple((_with_nonce(planned),) for planned in plan.requests))


def _with_nonce(planned: PlannedRequest) -> PlannedRequest:
    """The request with new first words: no earlier run has put its prefix into a cache.

    Every prompt gets words of its own. Prompts that share them could share their first block of KV.
    """
    first, *others = planned.messages
    text = opened(first.content, write_opening(SystemRandom()))
    return replace(planned, messages=(Message(first.role, text), *others))


def twice(plan: Plan) -> Plan:
    """The only request of a plan, and the same again."""
    (planned,) = plan.requests
    return replace(plan, threads=((planned,), (replace(planned, index=1),)))


def at_once(plan: Plan) -> Plan:
    """The same requests, all sent at the same time."""
    return Plan.of_singles(
        tuple(replace(planned, at_s=0.0) for planned in plan.requests), OpenLoop(rate_per_s=1.0)
    )


def joined(streams: Plan, late: Plan, at_s: float) -> Plan:
    """Requests that are sent at once, and the only one of another plan that comes later."""
    (prompt,) = late.requests
    together = at_once(streams).requests
    newcomer = replace(prompt, index=len(together), at_s=at_s)
    return Plan.of_singles((*together, newcomer), OpenLoop(rate_per_s=1.0))
