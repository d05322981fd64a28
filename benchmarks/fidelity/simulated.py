"""The measured fleets in virtual time: the same requests at the same times, with calibrated step costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from phasewise.benchmark.workload.plan import Plan, Thread
from phasewise.benchmark.workload.prompts import word_count
from phasewise.core.kv_transfer import SplitRule
from phasewise.core.timeline import Timeline
from phasewise.core.worker import Role
from phasewise.costs.fit.solve import FittedCost
from phasewise.costs.fit.step_fit import StepFit
from phasewise.planning.figures import is_saturated
from phasewise.simulator.fleet import EnginePool, FleetScenario, SimulatedFleet
from phasewise.simulator.gateway import SimulatedRequest
from phasewise.simulator.requests import EngineShape
from phasewise.simulator.traffic import Content, Prompt, Session, SimulatedTraffic, conversation

from .figures import Answer

FARTHEST, PRECISION = 64.0, 1.03
COPY = 1_000_000
ENOUGH = 200
"""Requests: fewer do not show that a queue grows."""


@dataclass(frozen=True)
class CalibratedEngine:
    """An engine of an arrangement: its sizes, and its costs as fitted while the others ran too."""

    name: str
    role: Role
    shape: EngineShape
    fit: StepFit


def traffic_of(plan: Plan, timelines: Sequence[Timeline] = ()) -> SimulatedTraffic:
    """What is sent, with the lengths that the engine counted, where it did.

    Each conversation is under a tenant of its own, by which its turns are found again.
    """
    counted = {int(it.request_id.rpartition("-")[2]): it.prompt_tokens for it in timelines}
    systems: dict[str, int] = {}
    return SimulatedTraffic(
        [_session(number, it, counted, systems) for number, it in enumerate(plan.threads)]
    )


def _session(
    number: int, thread: Thread, counted: Mapping[int, int | None], systems: dict[str, int]
) -> Session:
    first = thread[0]
    lengths = [counted.get(it.index) or it.prompt_tokens for it in thread]
    system: Prompt = ()
    if first.messages[0].role == "system":
        text = first.messages[0].content
        words = sum(word_count(it.content) for it in first.messages)
        tokens = round(word_count(text) * lengths[0] / words)
        system = (Content(-1 - systems.setdefault(text, len(systems)), tokens),)
    turns, held = [], sum(it.tokens for it in system)
    for planned, length in zip(thread, lengths, strict=True):
        turns.append((max(1, length - held), planned.max_tokens, planned.think_s))
        held = length + planned.max_tokens
    session = conversation(first.at_s or 0.0, 1 + number, turns, system)
    return replace(session, turns=tuple(replace(it, tenant=str(number)) for it in session.turns))


def fleet_plan(engines: Sequence[CalibratedEngine], costs: Mapping[str, FittedCost]) -> FleetScenario:
    """The engines behind one gateway, each with its own costs."""
    pools = tuple(
        EnginePool(1, costs[it.name].step, it.shape, it.role, it.shape.max_num_seqs, name=it.name)
        for it in engines
    )
    return FleetScenario(pools, split=SplitRule.ALWAYS)


def fitted(engines: Sequence[CalibratedEngine]) -> dict[str, FittedCost]:
    """The costs that fit best."""
    return {it.name: it.fit.fitted for it in engines}


def drawn(engines: Sequence[CalibratedEngine], number: int) -> dict[str, FittedCost]:
    """Other costs that fit about as well."""
    return {it.name: it.fit.draws[number % len(it.fit.draws)] for it in engines}


def answers(
    engines: Sequence[CalibratedEngine], costs: Mapping[str, FittedCost], traffic: SimulatedTraffic
) -> tuple[list[Answer], bool]:
    """The answers that clients would get, and whether the fleet was saturated."""
    served = SimulatedFleet(fleet_plan(engines, costs)).run(traffic)
    return [_answer(it, costs) for it in served if it.answered], is_saturated(served)


def _answer(served: SimulatedRequest, costs: Mapping[str, FittedCost]) -> Answer:
    front_end_s = sum(_front_end_s(it.worker, costs) for it in served.attempts)
    first_s, last_s = served.ttft_s + front_end_s, served.e2e_s + front_end_s
    return Answer(int(served.request.tenant), served.arrived_s, first_s, last_s, served.output_tokens)


def _front_end_s(engine: str, costs: Mapping[str, FittedCost]) -> float:
    """Engines are numbered within their pool, which has the engine's name here."""
    return costs[engine.rpartition("-")[0]].front_end_s


def carried(engines: Sequence[CalibratedEngine], traffic: SimulatedTraffic) -> float:
    """How many times as fast the traffic may come before the fleet is saturated, within some percent.

    The turns of a session come one by one whether or not the ones before are answered: clients that wait
    for answers saturate nothing.
    """
    costs = fitted(engines)
    last_s = max(it.at_s for it in traffic.sessions) + 1e-9
    apart_s = last_s / len(traffic.sessions)
    singles = [
        Session(it.at_s + number * apart_s, (turn,))
        for it in traffic.sessions
        for number, turn in enumerate(it.turns)
    ]
    longer = [_shifted(it, copy, last_s) for copy in range(-(-ENOUGH // traffic.requests)) for it in singles]

    def keeps_up(factor: float) -> bool:
        faster = SimulatedTraffic([Session(it.at_s / factor, it.turns) for it in longer])
        return not answers(engines, costs, faster)[1]

    low, high = 1 / FARTHEST, FARTHEST
    while high / low > PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps_up(middle) else (low, middle)
    return low


def _shifted(session: Session, copy: int, last_s: float) -> Session:
    """The same later, with texts of its own but the same system prompts."""
    turns = tuple(
        replace(
            turn,
            prompt=tuple(
                replace(it, text=it.text + copy * COPY if it.text > 0 else it.text) for it in turn.prompt
            ),
        )
        for turn in session.turns
    )
    return Session(copy * last_s + session.at_s, turns)
