"""Six choices on two real engines: mixed or disaggregated, planned from a calibration, then measured.

Two prompt mixes at three loads. A choice is the arrangement in which more requests meet the objective, in the
simulator and then measured with the same lengths and arrivals.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kv_transfers.fleets import Arm, Layout, gateway, real_engines
from kv_transfers.load import until_idle

from phasewise.benchmark.workload.arrivals import OpenLoop
from phasewise.benchmark.workload.presets import PRESETS, PresetName, with_lengths
from phasewise.core.slo import Slo
from phasewise.costs.fit.step import decoding, prefilling
from phasewise.diagnosis.gather.costs_file import load_fit
from phasewise.planning.candidates import FleetCandidate
from phasewise.planning.disaggregation import compare
from phasewise.planning.figures import figures_of
from phasewise.planning.fleet_plan import BLOCK_TOKENS, EngineFigures, traffic_of
from phasewise.planning.trials import CandidateTrials, Choice, Goal
from phasewise.simulator.hosts import LinkSpeed
from phasewise.simulator.requests import EngineShape
from phasewise.simulator.traffic import SimulatedTraffic

LOADS = (1.2, 1.5, 1.8)
"""Of the most that the better arrangement carries by the simulator: below that both meet the objective."""
BLOCK_S = 35.0
SEED = 24
CALIBRATE_MINUTES = 1.5
KINDS = {
    Layout.MIXED: (Arm.MIXED, FleetCandidate(2, 0, 2048, 256)),
    Layout.DISAGGREGATED: (Arm.DISAGGREGATED, FleetCandidate(2, 1, 2048, 256)),
}


@dataclass(frozen=True)
class Mix:
    """Requests that are alike, and what is good enough for them, in times of what they take alone."""

    name: str
    prompt_tokens: int
    output_tokens: int
    ttft_prompts: float
    tpot_steps: float

    def slo(self, engine: EngineFigures) -> Slo:
        """By this engine's own prefill and decode: the same objectives on slow machines and fast ones."""
        prefill_s = engine.cost(prefilling(self.prompt_tokens)) + engine.front_end_s
        step_s = engine.cost(decoding([self.prompt_tokens + self.output_tokens // 2]))
        return Slo(round(self.ttft_prompts * prefill_s, 3), round(self.tpot_steps * step_s, 4))

    def traffic(self, rate: float, requests: int) -> SimulatedTraffic:
        """What `bench` sends with these lengths and this seed."""
        shape = with_lengths(PRESETS[PresetName.CHAT], self.prompt_tokens, self.output_tokens, None, None)
        return traffic_of(shape, OpenLoop(rate), requests, None, None, SEED)


MIXES = (
    Mix("short prompts, long answers", 128, 160, 15.0, 1.6),
    Mix("long prompts, short answers", 1600, 48, 5.0, 1.6),
)


@dataclass
class RealChoice:
    """One choice: the share within the objective, mixed and disaggregated, planned and measured."""

    mix: str
    load: float
    rate: float
    requests: int
    slo: Slo
    planned: dict[str, float]
    measured: dict[str, float]

    @property
    def right(self) -> bool:
        """Whether the plan has the direction of what was measured."""
        planned, measured = (
            it[Layout.DISAGGREGATED] - it[Layout.MIXED] for it in (self.planned, self.measured)
        )
        return planned * measured > 0


def real_choices(home: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Calibrate, plan, measure."""
    os.environ.setdefault("PHASEWISE_HOME", str(home))
    choices: list[RealChoice] = []
    for layout in KINDS:
        with real_engines(layout) as engines:
            if not choices:
                choices = planned(calibrated(engines.urls))
                say(f"planned: {json.dumps([asdict(it) for it in choices])}")
            for number, choice in enumerate(choices):
                with gateway(engines, KINDS[layout][0]) as url:
                    asyncio.run(until_idle(engines.urls))
                    choice.measured[layout] = measured(url, choice)
                say(f"{layout}, choice {number + 1}: {choice.measured[layout]:.3f} within the objective")
    right = sum(it.right for it in choices)
    return {
        "real_choices": len(choices),
        "real_right": right,
        "real": [asdict(it) | {"right": it.right} for it in choices],
    }


def calibrated(urls: list[str]) -> EngineFigures:
    """The first engine's step times, while the second one is probed too."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.json" for number in range(len(urls))]
        command = [sys.executable, "-m", "phasewise.cli", "engine", "calibrate", "--seed", str(SEED)]
        command += ["--minutes", str(CALIBRATE_MINUTES)]
        running = [
            subprocess.Popen([*command, url, "--save", str(file)], stdout=subprocess.DEVNULL)
            for url, file in zip(urls, files, strict=True)
        ]
        if any(it.wait() for it in running):
            raise SystemExit("the engines could not be calibrated")
        fit, shape = load_fit(files[0]), EngineShape()
    return EngineFigures(
        fit.cost,
        shape.total_blocks * shape.block_size,
        shape.max_num_batched_tokens,
        shape.max_num_seqs,
        shape.max_model_len,
        LinkSpeed(),
        modelled=False,
        front_end_s=fit.fitted.front_end_s,
    )


def planned(engine: EngineFigures) -> list[RealChoice]:
    """What the simulator says of each choice."""
    found = []
    for mix in MIXES:
        slo = mix.slo(engine)
        trials = CandidateTrials(engine, mix.traffic(1.0, 300), Goal(slo), BLOCK_TOKENS)
        carried = compare(trials, 2, Choice(None, None))
        most = max(carried.mixed_per_s, carried.disaggregated_per_s)
        if not most:
            raise SystemExit(f"two engines cannot meet the objective of {mix.name}: calibrate again")
        for load in LOADS:
            rate = round(load * most, 3)
            requests = max(16, round(rate * BLOCK_S))
            own = trials.with_traffic(mix.traffic(rate, requests))
            shares = {
                str(layout): figures_of(own.run(own.plan(it)), slo, engine.front_end_s).attained
                for layout, (_, it) in KINDS.items()
            }
            found.append(RealChoice(mix.name, load, rate, requests, slo, shares, {}))
    return found


def measured(url: str, choice: RealChoice) -> float:
    """The share within the objective, as clients see it."""
    mix = next(it for it in MIXES if it.name == choice.mix)
    arguments = {
        "--rate": choice.rate,
        "--requests": choice.requests,
        "--prompt-tokens": mix.prompt_tokens,
        "--output-tokens": mix.output_tokens,
        "--slo": f"ttft={choice.slo.ttft_s:g}s,tpot={choice.slo.tpot_s * 1000:g}ms",
        "--seed": SEED,
        "--warm-up": 0,
    }
    command = [sys.executable, "-m", "phasewise.cli", "bench", url, "--json"]
    command += [str(it) for pair in arguments.items() for it in pair]
    # It ends with 1 where its own clock was late by milliseconds: it has no core of its own here.
    said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return float(json.loads(said.stdout)["goodput"]["share"])
