"""Whether it pays to disaggregate prefill and decode, and from which load and prompt length on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from statistics import fmean

from phasewise.planning.candidates import MOST_ENGINES, Space
from phasewise.planning.trials import CandidateTrial, CandidateTrials, Choice, faster, most_load
from phasewise.simulator.traffic import Content, Session, SessionTurn, SimulatedTraffic, tokens_of

LOADS, PROMPTS = (0.5, 2.0), (0.5, 2.0)
"""Multiples of the number of engines, and of the length of prompts, that are tried too."""
SCANNED_REQUESTS = 1_000
RESOLUTION, SCAN_RESOLUTION = 1.015, 1.03
"""Loads closer together than this are not distinguished."""


class Pays(StrEnum):
    """Whether disaggregation carries more load with as many engines."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class PoolComparison:
    """The load that so many engines carry at the goal, in requests per second."""

    engines: int
    prompt_tokens: float
    mixed_per_s: float
    disaggregated_per_s: float
    resolution: float = RESOLUTION

    @property
    def ratio(self) -> float:
        """How many times as much a disaggregated fleet carries; 1 if neither carries anything."""
        if not self.mixed_per_s:
            return inf if self.disaggregated_per_s else 1.0
        return self.disaggregated_per_s / self.mixed_per_s

    @property
    def pays(self) -> Pays:
        """Undecided where the loads are closer than they were searched for."""
        if 1 / self.resolution <= self.ratio <= self.resolution:
            return Pays.UNDECIDED
        return Pays.YES if self.ratio > 1 else Pays.NO


def compare(
    trials: CandidateTrials, engines: int, choice: Choice, begin: float = 1.0, resolution: float = RESOLUTION
) -> PoolComparison:
    """How much load both kinds of fleets carry. No margin is kept: it would favour neither."""
    traffic = trials.traffic
    space = Space(trials.engine, traffic, trials.goal.slo)
    bare = replace(trials, goal=replace(trials.goal, caution=0.0))
    per_s = traffic.requests / max(traffic.sessions[-1].at_s - traffic.sessions[0].at_s, 1e-9)

    best = choice.best

    def carried(found: CandidateTrial | None, *, disaggregated: bool) -> float:
        if space.hopeless(trials.goal.attainment):
            return 0.0
        cap = found.candidate.max_num_seqs if found else space.caps[0]
        row = space.candidates(engines, cap, disaggregated=disaggregated)
        begin_at = space.begin_at(row, found.candidate if found else None)
        first = begin * best.candidate.engines / found.candidate.engines if best and found else begin
        return per_s * most_load(
            row, begin_at, lambda load: bare.with_traffic(faster(traffic, load)), first, resolution
        )

    return PoolComparison(
        engines,
        fmean(tokens_of(turn.prompt) for turn in traffic.turns),
        carried(choice.mixed, disaggregated=False),
        carried(choice.disaggregated, disaggregated=True),
        resolution,
    )


def scan(trials: CandidateTrials, engines: int, choice: Choice) -> list[PoolComparison]:
    """Fewer and more engines, then shorter and longer prompts, on a part of the traffic."""
    sample = trials.with_traffic(SimulatedTraffic(trials.traffic.sessions[:SCANNED_REQUESTS]))
    slo, longest = trials.goal.slo, trials.engine.max_model_len
    sizes = [(size, times) for times in LOADS if 2 <= (size := round(engines * times)) <= MOST_ENGINES]
    found = [compare(sample, size, choice, times, SCAN_RESOLUTION) for size, times in sizes]
    work_s = sum(Space(trials.engine, sample.traffic, slo).work_s)
    for factor in PROMPTS:
        traffic = with_longer_prompts(sample.traffic, factor, longest, trials.block_tokens)
        begin = work_s / sum(Space(trials.engine, traffic, slo).work_s)
        found.append(compare(sample.with_traffic(traffic), engines, choice, begin, SCAN_RESOLUTION))
    return found


def pays_from(points: Sequence[PoolComparison], what: str) -> float | None:
    """From where on disaggregation pays at every further point; None if it does not at the last one."""
    start = None
    for point in sorted(points, key=lambda point: getattr(point, what), reverse=True):
        if point.pays is not Pays.YES:
            break
        start = getattr(point, what)
    return start


def with_longer_prompts(
    traffic: SimulatedTraffic, factor: float, longest: int, block_tokens: int
) -> SimulatedTraffic:
    """Prompts so many times as long, up to the `longest` with their answers. What began alike still does."""

    def turn(each: SessionTurn) -> SessionTurn:
        fitting = (longest - each.output_tokens - 1) / tokens_of(each.prompt)
        by = min(factor, max(fitting, 1.0))
        prompt = tuple(Content(content.text, max(1, int(content.tokens * by))) for content in each.prompt)
        blocks = (tokens_of(prompt) + each.output_tokens) // block_tokens if each.keys else 0
        last = len(each.keys) - 1
        keys = tuple(hash((each.keys[min(int(at / by), last)], at)) for at in range(blocks))
        return replace(each, prompt=prompt, keys=keys)

    return SimulatedTraffic(
        [Session(session.at_s, tuple(map(turn, session.turns))) for session in traffic.sessions]
    )
