"""Do `phasewise bench` and `vllm bench serve` see the same engine?

    python benchmarks/bench_crosscheck.py [--rounds 5] [--quick] [--json]

Both put the same load on one real engine in turn, V P P V ...: prompts of the same length as the engine
counts them, outputs of fixed length, as many streams at once, a cold prefix cache. For each metric the ratio
of medians (phasewise / vllm) is averaged over neighbouring runs and held against the noise: how much two runs
of the *same* tool in a round differ from each other. Where the tools define a metric differently is told in
docs/explanation/measuring.md. The one difference that can be undone here, the role chunk that vllm counts as
the first token and the gap of nearly zero after it, is also shown undone (`itl_ratio_without_role_gap`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, median
from urllib.request import Request, urlopen

ROOT = Path(__file__).parent.parent
HOME = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
MODEL = "smollm2-135m"
METRICS = ("ttft", "tpot", "itl", "e2e")
FLEET_NAME = "crosscheck"


@dataclass(frozen=True)
class Load:
    """What both tools are asked to do."""

    prompt_tokens: int
    output_tokens: int
    concurrency: int
    requests: int


@dataclass(frozen=True)
class Seen:
    """Medians of one run in seconds, by metric, and the mean prompt as the engine counted it."""

    medians_s: dict[str, float]
    prompt_tokens: float


def main() -> None:
    """Run the rounds and print a line per run, then one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of two runs of either tool")
    parser.add_argument("--quick", action="store_true", help="one short round: proves that the script runs")
    parser.add_argument("--json", action="store_true", help="print only the closing JSON object")
    options = parser.parse_args()
    load = Load(256, 32, 4, 32)
    rounds = options.rounds
    if options.quick:
        load, rounds = Load(128, 8, 2, 4), 1
    runs: dict[str, list[Seen]] = {"vllm": [], "phasewise": []}
    with running_engine() as url:
        template_tokens = count_tokens(url, "")
        order = ["vllm", "phasewise", "phasewise", "vllm"] * rounds
        # The first run warms the engine's code paths and is thrown away.
        run_phasewise(url, load)
        for number, tool in enumerate(order, 1):
            if tool == "vllm":
                seen = run_vllm(url, load, template_tokens, seed=number)
            else:
                seen = run_phasewise(url, load)
            runs[tool].append(seen)
            if not options.json:
                figures = "  ".join(f"{name} {seen.medians_s[name] * 1000:8.1f} ms" for name in METRICS)
                print(
                    f"{number:2}/{len(order)} {tool:9} {figures}  prompts {seen.prompt_tokens:.1f}",
                    flush=True,
                )
    print(json.dumps(summary(runs, load, options.quick)))


def summary(runs: dict[str, list[Seen]], load: Load, quick: bool) -> dict[str, object]:
    """Ratios with the noise they are to be held against."""
    result: dict[str, object] = {}
    noise = {name: aa_noise(runs, name) for name in METRICS}
    ratios = {name: ratio(runs, name) for name in METRICS}
    for name in METRICS:
        result[f"{name}_ratio"] = round(ratios[name], 4)
    result["itl_ratio_without_role_gap"] = round(ratio(runs, "itl_without_role_gap"), 4)
    result["aa_noise"] = {name: round(value, 4) for name, value in noise.items()}
    result["within_noise"] = {name: abs(log(ratios[name])) <= noise[name] for name in METRICS}
    result["prompt_tokens"] = {tool: mean(seen.prompt_tokens for seen in done) for tool, done in runs.items()}
    return result | {"runs_per_tool": len(runs["vllm"]), "load": vars(load), "quick": quick}


def ratio(runs: dict[str, list[Seen]], name: str) -> float:
    """The mean ratio of phasewise to vllm over neighbouring runs, on a log scale."""
    neighbours = zip(runs["vllm"], runs["phasewise"], strict=True)
    return exp(mean(log(ours.medians_s[name] / theirs.medians_s[name]) for theirs, ours in neighbours))


def aa_noise(runs: dict[str, list[Seen]], name: str) -> float:
    """How much a tool differs from itself within a round: root mean square of the log ratios."""
    logs = [
        log(first.medians_s[name] / second.medians_s[name])
        for done in runs.values()
        for first, second in zip(done[::2], done[1::2], strict=True)
    ]
    return sqrt(mean(value * value for value in logs))


def run_phasewise(url: str, load: Load) -> Seen:
    """One run of ours."""
    command = [sys.executable, "-m", "phasewise.cli", "bench", url, "--json", "--warm-up", "0"]
    lengths = ["--prompt-tokens", str(load.prompt_tokens), "--output-tokens", str(load.output_tokens)]
    amount = ["--concurrency", str(load.concurrency), "--requests", str(load.requests)]
    done = subprocess.run([*command, *lengths, *amount], capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    if report["succeeded"] != load.requests:
        raise SystemExit(f"phasewise bench: {report['succeeded']} of {load.requests} answered\n{done.stderr}")
    itl_s = report["itl_pooled_s"]["p50"]
    medians_s = {
        "ttft": report["ttft_s"]["p50"],
        "tpot": report["tpot_s"]["p50"],
        "itl": itl_s,
        "itl_without_role_gap": itl_s,
        "e2e": report["e2e_s"]["p50"],
    }
    return Seen(medians_s, report["prompt_tokens"]["mean"])


def run_vllm(url: str, load: Load, template_tokens: int, seed: int) -> Seen:
    """One run of vLLM's own tool, which counts a prompt's length without the template."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(str(HOME / "engine" / "bin" / "python"), "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
            *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", url),
            *("--model", MODEL, "--tokenizer", str(HOME / "models" / MODEL), "--dataset-name", "random"),
            *("--random-input-len", str(load.prompt_tokens - template_tokens)),
            *("--random-output-len", str(load.output_tokens), "--num-prompts", str(load.requests)),
            *("--max-concurrency", str(load.concurrency), "--ignore-eos", "--temperature", "0"),
            *("--seed", str(seed), "--save-result", "--save-detailed"),
            *("--result-dir", folder, "--result-filename", "result.json", "--disable-tqdm"),
        ]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        path = Path(folder) / "result.json"
        if done.returncode != 0 or not path.exists():
            raise SystemExit(f"vllm bench serve failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        result = json.loads(path.read_text())
    if result["completed"] != load.requests:
        raise SystemExit(f"vllm bench serve: {result['completed']} of {load.requests} answered")
    ends_s = [ttft_s + sum(gaps) for ttft_s, gaps in zip(result["ttfts"], result["itls"], strict=True)]
    tpots_s = [sum(gaps) / (load.output_tokens - 1) for gaps in result["itls"]]
    medians_s = {
        "ttft": median(result["ttfts"]),
        "tpot": median(tpots_s),
        "itl": median(gap for gaps in result["itls"] for gap in gaps),
        # The first gap lies between the chunk that opens the role and the first content.
        "itl_without_role_gap": median(gap for gaps in result["itls"] for gap in gaps[1:]),
        "e2e": median(ends_s),
    }
    return Seen(medians_s, mean(result["input_lens"]))


def count_tokens(url: str, text: str) -> int:
    """What the engine counts for a user's message, template included."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}]}).encode()
    request = Request(f"{url}/tokenize", body, {"content-type": "application/json"})
    with urlopen(request) as reply:
        return int(json.load(reply)["count"])


@contextmanager
def running_engine() -> Iterator[str]:
    """One real engine with the demo model, started and stopped by phasewise; its own address."""
    environment = {**os.environ, "PHASEWISE_HOME": str(HOME)}
    phasewise = [sys.executable, "-m", "phasewise.cli"]
    up = [
        *phasewise,
        "up",
        "--detach",
        "--no-engine-keys",
        "--json",
        "--name",
        FLEET_NAME,
        "--port",
        "18180",
        "--engine-port",
        "18181",
    ]
    started = subprocess.run(up, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    try:
        yield json.loads(started.stdout)["engines"][0]["url"]
    finally:
        subprocess.run(
            [*phasewise, "down", "--name", FLEET_NAME], env=environment, check=False, stdout=sys.stderr
        )


if __name__ == "__main__":
    main()
