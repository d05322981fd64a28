"""Compares `phasewise bench` with `vllm bench serve` under the same load, and runs the latter."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any

import orjson

from phasewise.benchmark.compare.compare import void
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.target import count_prompt_tokens, find_target
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.benchmark.workload.plan import PlanSpec
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.benchmark.workload.prompts import Message
from phasewise.clients.http_client import HttpClient
from phasewise.core import latency
from phasewise.core.errors import MeasurementError
from phasewise.core.timeline import Outcome

METRICS = ("ttft", "tpot", "itl", "e2e")
FEWEST_REQUESTS, MOST_REQUESTS = 8, 512
KEPT_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class BenchLoad:
    """What both tools are asked to do: whole prompts of this length, in a closed loop."""

    prompt_tokens: int = 256
    output_tokens: int = 32
    concurrency: int = 4
    requests: int = 32

    @property
    def plan(self) -> PlanSpec:
        """The same for our own load generator."""
        shape = Shape(
            about="the load of both tools",
            prompt=Lengths.fixed(self.prompt_tokens),
            output=Lengths.fixed(self.output_tokens),
        )
        return PlanSpec(source=shape, load=ClosedLoop(self.concurrency), requests=self.requests)

    def lasting(self, seconds: float, request_s: float) -> BenchLoad:
        """As many requests as last about this long, if each adds `request_s`."""
        rounds = round(seconds / max(request_s, 1e-3) / self.concurrency)
        requests = min(max(rounds * self.concurrency, FEWEST_REQUESTS), MOST_REQUESTS)
        return replace(self, requests=requests)


@dataclass(frozen=True, slots=True)
class ToolRun:
    """The medians of one run in seconds, by metric, and the mean prompt. A `void` run was late."""

    medians_s: Mapping[str, float]
    prompt_tokens: float
    void: bool = False


def ratio(vllm: Sequence[ToolRun], phasewise: Sequence[ToolRun], metric: str) -> float:
    """The mean ratio of phasewise to vllm over neighbouring runs, on a log scale."""
    pairs = zip(vllm, phasewise, strict=True)
    return exp(fmean(log(ours.medians_s[metric] / theirs.medians_s[metric]) for theirs, ours in pairs))


def noise(vllm: Sequence[ToolRun], phasewise: Sequence[ToolRun], metric: str) -> float:
    """How much a tool differs from itself within a round: root mean square of the log ratios."""
    logs = [
        log(first.medians_s[metric] / second.medians_s[metric])
        for done in (vllm, phasewise)
        for first, second in zip(done[::2], done[1::2], strict=True)
    ]
    return sqrt(fmean(value * value for value in logs))


def own_run(run: BenchRun) -> ToolRun:
    """A run of our load generator; every request must have been answered."""
    if run.unsent or any(timeline.outcome is not Outcome.SUCCEEDED for timeline in run.timelines):
        raise MeasurementError("not every request of a run was answered", hint="read the engine's log")
    itl_s = median(gap_s for timeline in run.timelines for gap_s in latency.chunk_gaps_s(timeline))
    medians_s = {"itl": itl_s, "itl_without_role_gap": itl_s}
    for metric, reading in (("ttft", latency.ttft_s), ("tpot", latency.tpot_s), ("e2e", latency.e2e_s)):
        medians_s[metric] = median(reading(timeline) or 0.0 for timeline in run.timelines)
    prompts = (timeline.prompt_tokens or 0 for timeline in run.timelines)
    return ToolRun(medians_s, fmean(prompts), bool(void(run)))


@dataclass(frozen=True, slots=True)
class VllmBench:
    """vLLM's own load generator, from the engine's environment."""

    python: Path
    tokenizer: str

    async def run(self, url: str, load: BenchLoad, seed: int) -> ToolRun:
        """One run; its process ends with it, whatever happens."""
        model, template_tokens = await _model_and_template(url)
        with tempfile.TemporaryDirectory(prefix="phasewise-vllm-bench-") as folder:
            process = await asyncio.create_subprocess_exec(
                *(str(self.python), "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
                *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", url),
                *("--model", model, "--tokenizer", self.tokenizer, "--dataset-name", "random"),
                # It counts a prompt's length without the template.
                *("--random-input-len", str(load.prompt_tokens - template_tokens)),
                *("--random-output-len", str(load.output_tokens), "--num-prompts", str(load.requests)),
                *("--max-concurrency", str(load.concurrency), "--ignore-eos", "--temperature", "0"),
                *("--seed", str(seed), "--save-result", "--save-detailed", "--disable-tqdm"),
                *("--result-dir", folder, "--result-filename", "result.json"),
                env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                printed, _ = await process.communicate()
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            file = Path(folder) / "result.json"
            if process.returncode != 0 or not file.exists():
                words = " ".join(printed.decode(errors="replace").split())[-KEPT_CHARACTERS:]
                raise MeasurementError(
                    f"`vllm bench serve` failed: {words}",
                    hint="run `vllm bench serve --help` in the engine's environment: it may lack packages",
                )
            return _vllm_run(orjson.loads(file.read_bytes()), load)


def _vllm_run(result: Mapping[str, Any], load: BenchLoad) -> ToolRun:
    if result["completed"] != load.requests:
        raise MeasurementError(
            f"`vllm bench serve` got {result['completed']} of {load.requests} answers",
            hint="read the engine's log",
        )
    itls_s: list[list[float]] = result["itls"]
    medians_s = {
        "ttft": median(result["ttfts"]),
        "tpot": median(sum(gaps) / (load.output_tokens - 1) for gaps in itls_s),
        "itl": median(gap for gaps in itls_s for gap in gaps),
        # The first gap lies between the chunk that opens the role and the first content.
        "itl_without_role_gap": median(gap for gaps in itls_s for gap in gaps[1:]),
        "e2e": median(ttft + sum(gaps) for ttft, gaps in zip(result["ttfts"], itls_s, strict=True)),
    }
    return ToolRun(medians_s, fmean(result["input_lens"]))


async def _model_and_template(url: str) -> tuple[str, int]:
    """The served model, and how many tokens its template adds to a user's message."""
    client = HttpClient(url)
    try:
        target = await find_target(client)
        counted = await count_prompt_tokens(client, target, [Message("user", "")])
    finally:
        client.close()
    if counted is None:
        raise MeasurementError("the engine counts no tokens of an empty chat", hint="use a chat model")
    return target.model, counted
