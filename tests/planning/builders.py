"""Small traffic for the demo engine, and engines that meet a goal by a formula instead of a simulation."""

from __future__ import annotations

from phasewise.benchmark.workload.arrivals import OpenLoop
from phasewise.benchmark.workload.presets import PRESETS, PresetName
from phasewise.core.slo import Slo
from phasewise.planning.candidates import FleetCandidate, Space
from phasewise.planning.fleet_plan import BLOCK_TOKENS, EngineFigures, traffic_of
from phasewise.planning.trials import CandidateTrial, CandidateTrials, Goal
from phasewise.simulator.hosts import LinkSpeed
from phasewise.simulator.requests import EngineShape, preset

SLO = Slo(3.0, 0.1)


def make_engine(kv_tokens=None, max_num_seqs=256):
    demo = EngineShape()
    return EngineFigures(
        preset("cpu-demo"),
        kv_tokens or demo.total_blocks * demo.block_size,
        demo.max_num_batched_tokens,
        max_num_seqs,
        demo.max_model_len,
        LinkSpeed(),
        modelled=False,
    )


def make_traffic(rate=1.5, requests=120, kind=PresetName.CHAT, seed=1):
    return traffic_of(PRESETS[kind], OpenLoop(rate), requests, None, None, seed)


def make_trials(traffic=None, slo=SLO, caution=0.0, engine=None, attainment=0.95):
    goal = Goal(slo, attainment, caution)
    return CandidateTrials(engine or make_engine(), traffic or make_traffic(), goal, BLOCK_TOKENS)


def make_space(trials):
    return Space(trials.engine, trials.traffic, trials.goal.slo)


def by_formula(prefill_load, decode_load):
    """An attempt: each phase has a load to carry, and engines share their time, or have one phase each.

    Longer chunks speed mixed engines' prefill up and slow their decode down, as they do in steps.
    """

    def attempt(candidate: FleetCandidate) -> CandidateTrial:
        if candidate.prefill:
            prefill, decode = candidate.prefill, candidate.engines - candidate.prefill
        else:
            share = {128: 0.3, 512: 0.5, 2048: 0.8}[candidate.max_num_batched_tokens]
            prefill, decode = candidate.engines * share, candidate.engines * (1.1 - share)
        prefill_missed = max(0.0, 1 - prefill / prefill_load)
        decode_missed = max(0.0, 1 - decode / decode_load)
        missed = prefill_missed + decode_missed
        return CandidateTrial(candidate, not missed, 1 - missed / 2, prefill_missed > decode_missed)

    return attempt
