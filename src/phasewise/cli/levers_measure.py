"""`phasewise levers --measure`: measures every serving lever, off and on, on this machine with this model."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from signal import SIGHUP, SIGTERM

import psutil

from phasewise.cli.measuring import measure_with_view
from phasewise.cli.outputs import Interrupts
from phasewise.clients import event_loop
from phasewise.clients.host import allow_many_streams
from phasewise.experiments.lever_runs.circumstances import Circumstances, circumstances
from phasewise.experiments.lever_runs.engine_facts import read_facts
from phasewise.experiments.lever_runs.engines import running_engines
from phasewise.experiments.lever_runs.launch import (
    GPU_SHARE,
    EngineSize,
    FleetLauncher,
    handicapped,
    model_or_quantized,
    own_context_tokens,
    shared_gpu_flags,
    size_here,
)
from phasewise.experiments.lever_runs.measure import LeverRun, LeverTools, StoppedEarly
from phasewise.experiments.lever_runs.outputs import OutputReader
from phasewise.experiments.lever_runs.paging import PAGED_TRAFFIC
from phasewise.experiments.levers.agenda import (
    Effort,
    left_to_do,
    measurable,
    seconds_left,
)
from phasewise.experiments.levers.cases import BASE
from phasewise.experiments.levers.catalogue import MARGIN, Case, digest
from phasewise.experiments.levers.results import Results, ResultsFile, open_results
from phasewise.fleet.config import byte_size, phasewise_home
from phasewise.fleet.engines.command import DEFAULT_CPU_KV_BYTES
from phasewise.fleet.engines.demo_model import DEMO_MODELS, resolve_model
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.fleet.engines.model_config_file import CONFIG_FILE
from phasewise.fleet.engines.quantized_model import source_digest
from phasewise.fleet.local.placement import this_machine
from phasewise.loadgen.run import BenchRun
from phasewise.loadgen.session import RunSpec
from phasewise.report.console import err

ENGINE_MEMORY_BYTES = 2.5 * 2**30
"""What an engine on a CPU needs besides its KV cache."""
MOST_ENGINES = 3


def measure_levers(
    cases: tuple[Case, ...],
    effort: Effort,
    model: str,
    engine: EngineEnvironment,
    size: EngineSize,
    *,
    seed: int,
    again: bool,
) -> tuple[Results, bool]:
    """What was measured now and in earlier runs, and whether it is all; False after Ctrl-C."""
    home = phasewise_home(os.environ)
    file = open_results(home, _circumstances(model, home, engine, size, effort, seed), again=again)
    if again:
        file.forget(cases)
    _greet(cases, effort, file)
    allow_many_streams()
    finished = event_loop.run(_measure(cases, effort, file, home))
    return file.results, finished


def _circumstances(
    model: str, home: Path, engine: EngineEnvironment, asked: EngineSize, effort: Effort, seed: int
) -> Circumstances:
    source = resolve_model(model, home)
    # A folder is recorded by its full path, so that results of two folders of the same name stay apart.
    identity = model if model in DEMO_MODELS else source
    folder = Path(source)
    return circumstances(
        identity,
        source_digest(folder)[:12] if (folder / CONFIG_FILE).is_file() else "",
        engine,
        size_here(asked, this_machine(engine.device), own_context_tokens(model, home, os.environ)),
        effort=effort.name,
        pairs=effort.pairs,
        seed=seed,
        # Noise floors and paging are measured on the base engine, rows against it.
        rules_digest=digest(effort, MARGIN, BASE.levers, PAGED_TRAFFIC.key, GPU_SHARE),
    )


def _greet(cases: tuple[Case, ...], effort: Effort, file: ResultsFile) -> None:
    here = measurable(cases, file.results)
    rows = sum(len(case.rows) for case in here)
    left = sum(len(left_to_do(case, file.results)) for case in here)
    if left < rows:
        _say(f"continuing {file.path}: {rows - left} of {rows} rows are done (--again repeats them)")
    minutes = seconds_left(cases, effort, file.results) / 60
    _say(f"{left} rows to measure, about {max(minutes, 1):.0f} min")


async def _measure(cases: tuple[Case, ...], effort: Effort, file: ResultsFile, home: Path) -> bool:
    """Measure with live progress; False after Ctrl-C."""
    interrupts = Interrupts()

    async def measure(url: str, spec: RunSpec, label: str) -> BenchRun:
        return await measure_with_view(url, spec, label, interrupts)

    outputs = OutputReader(file.results.circumstances.seed)
    tools = LeverTools(measure, handicapped, outputs.compare, read_facts, _say, interrupts.forgives)
    # SIGTERM and SIGHUP also stop the engines, so that none is left behind.
    ends = interrupts.handled(SIGTERM, SIGHUP)
    with ends, tempfile.TemporaryDirectory(prefix="phasewise-levers-") as scratch:
        try:
            where = file.results.circumstances
            model_of = model_or_quantized(where.model, home, _say)
            launcher = FleetLauncher(
                home, Path(scratch), model_of, shared_gpu_flags(where.device), where.engine
            )
            one_by_one = where.device != "cpu"
            async with running_engines(
                launcher.launch, _most_engines(file), _say, one_by_one=one_by_one
            ) as engines:
                await LeverRun(cases, effort, file, engines, tools).run()
        except StoppedEarly:
            return False
        except asyncio.CancelledError:
            if not interrupts.forgives():
                raise
            return False
    return True


def _most_engines(file: ResultsFile) -> int:
    where = file.results.circumstances
    if where.device != "cpu":
        return 2
    kv_cache_memory_bytes = where.engine.kv_cache_memory_bytes
    kv_bytes = DEFAULT_CPU_KV_BYTES if kv_cache_memory_bytes is None else byte_size(kv_cache_memory_bytes)
    return max(
        2, min(MOST_ENGINES, int(psutil.virtual_memory().available / (ENGINE_MEMORY_BYTES + kv_bytes)))
    )


def _say(words: str) -> None:
    err.print(words, soft_wrap=True, markup=False)
