"""Where an engine's two processes should run when one core is left over: measured by moving a running engine.

Starts one engine with the demo model, keeps some streams running, and sends prompts of about 200 tokens that
share no prefix, while front end and core process are moved between three arrangements in turn. Compared are
the client's TTFT, the part of it the engine does not account for (queue and prefill taken off), and the TPOT.

    python benchmarks/engine_placement.py [--rounds 8] [--prompts 8] [--streams 4] [--quick] [--json]
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from script import command_line
from stress.processes import real_engine

WORDS = (
    "river",
    "stone",
    "cloud",
    "garden",
    "winter",
    "music",
    "paper",
    "engine",
    "bridge",
    "silver",
    "window",
)
PROMPT_WORDS = 150
OUTPUT_TOKENS = 12
FLEET = "placement-bench"
# (cores of the front end, cores of the core process); 0 is the engine's own, 1 the spare one
ARRANGEMENTS = {
    "both on the engine's core": ((0,), (0,)),
    "both on either core": ((0, 1), (0, 1)),
    "front end on the spare core": ((1,), (0,)),
}


def processes_of(leader: int) -> tuple[list[int], list[int]]:
    """The front end's processes and the core's, of the session that `leader` began."""
    front: list[int] = []
    core: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if session == leader:
            (core if title.startswith(b"VLLM::EngineCore") else front).append(int(folder.name))
    return front, core


def move(pids: list[int], cores: tuple[int, ...]) -> None:
    """Let every thread of these processes run on these cores only."""
    for pid in pids:
        for thread in (Path("/proc") / str(pid) / "task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)


def streamed(port: int, model: str, prompt: str, tokens: int) -> dict[str, float]:
    """One streamed answer: the client's and the engine's view of it, in ms."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    sent_s = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    arrivals_s, last = [], {}
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            last = json.loads(line[6:])
            if last["choices"] and last["choices"][0]["delta"].get("content"):
                arrivals_s.append(time.perf_counter())
    connection.close()
    ttft_ms = (arrivals_s[0] - sent_s) * 1e3
    engine_ms = last["metrics"]["queue_time_ms"] + last["metrics"]["time_to_first_token_ms"]
    tpot_ms = (arrivals_s[-1] - arrivals_s[0]) * 1e3 / (last["usage"]["completion_tokens"] - 1)
    return {"ttft_ms": ttft_ms, "unaccounted_ms": ttft_ms - engine_ms, "tpot_ms": tpot_ms}


def keep_streaming(port: int, model: str) -> None:
    """Stories one after the other, for ever."""
    while True:
        streamed(port, model, f"Tell me story number {random.random()}", 400)


@contextmanager
def background(streams: int, port: int, model: str) -> Iterator[None]:
    """Streams that keep the engine busy."""
    workers = [
        multiprocessing.Process(target=keep_streaming, args=(port, model), daemon=True)
        for _ in range(streams)
    ]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def measure(state: dict[str, Any], rounds: int, prompts: int) -> dict[str, list[dict[str, float]]]:
    """Every arrangement in every round, so that what else the machine does falls on all alike."""
    engine, model, rng = state["engines"][0], state["model"], random.Random(1)
    port = int(engine["url"].rpartition(":")[2])
    front, core = processes_of(engine["process"]["pid"])
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in ARRANGEMENTS}
    for _ in range(rounds):
        for name, (front_cores, core_cores) in ARRANGEMENTS.items():
            move(front, front_cores)
            move(core, core_cores)
            for number in range(prompts + 1):
                prompt = " ".join(rng.choice(WORDS) for _ in range(PROMPT_WORDS))
                answer = streamed(port, model, prompt, OUTPUT_TOKENS)
                if number:  # the first falls into the move
                    seen[name].append(answer)
    return seen


def summary(seen: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Medians, and the 90th percentile of TTFT."""
    result = {}
    for name, answers in seen.items():
        ttfts = sorted(answer["ttft_ms"] for answer in answers)
        result[name] = {
            "n": len(answers),
            **{key: round(statistics.median(answer[key] for answer in answers), 1) for key in answers[0]},
            "ttft_p90_ms": round(ttfts[int(0.9 * (len(ttfts) - 1))], 1),
        }
    return result


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__, quick="one short round, to see that it runs")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--streams", type=int, default=4)
    options = parser.parse_args()
    rounds, prompts = (1, 2) if options.quick else (options.rounds, options.prompts)
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("needs two cores")
    with real_engine(FLEET) as state:
        port = int(state["engines"][0]["url"].rpartition(":")[2])
        with background(options.streams, port, state["model"]):
            time.sleep(2.0)
            result = summary(measure(state, rounds, prompts))
    if options.json:
        print(json.dumps({"streams": options.streams, "arrangements": result}))
        return
    print(
        f"{options.streams} streams running; medians over {next(iter(result.values()))['n']:.0f} prompts each"
    )
    for name, row in result.items():
        print(
            f"{name:28} TTFT {row['ttft_ms']:6.1f} ms (p90 {row['ttft_p90_ms']:6.1f}), "
            f"unaccounted {row['unaccounted_ms']:5.1f} ms, TPOT {row['tpot_ms']:5.1f} ms"
        )


if __name__ == "__main__":
    main()
