"""Is what applications really send served, by default, as the engine itself serves it?

    python benchmarks/ordinary.py [--kinds code,images] [--quick] [--json]

A gateway with default settings and no keys stands in front of fake engines. Each kind of traffic
(applications/kinds.py) comes 500 at once (40 of the images of 5 MB, 100 of the prompts of 200,000 tokens):
to the engines directly, to a gateway that has just started (cold), to the same once more (warm), and to one
on asyncio's own loop that measures how long each callback takes (hostile/watched_gateway.py). Last, 500
streams are open while 20 requests per second go to the gateway and 20 to the engine.

The last line is one JSON object: kinds; requests through the gateway; rejected (not 200; why, is in
`by_kind`); wrong (another text, log-probabilities, end or usage than the engine says directly); slow (kinds
whose TTFT at the 99th percentile is above the engine's by more than the processor time of such a request,
times as many as came at once); stall_max_ms, the loop's longest callback in thread CPU time (`by_kind` says
which); steady_above_ms, how much the 99th percentile of TTFT beside the open streams is above the engine's
(target: 20); keys_ready_s, from the start with 10,000 keys to the first 200 (target: 3).
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import psutil
import uvloop
from applications import kinds, sending
from applications.kinds import KINDS, MODEL, Kind, Request
from applications.sending import Answer, burst
from script import command_line, interpreter, print_record, say
from stress.processes import fake_engines, free_port, running, steady_steps, wait_until_ready
from stress.streams import ask, chat_body

from phasewise.clients.host import allow_many_streams
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.statistics import quantile

COST = steady_steps(0.005)
SHAPE = {"max_num_seqs": 2048, "max_num_batched_tokens": 10_000_000, "block_size": 256}
SHAPE |= {"total_blocks": 300_000, "max_model_len": 262_144}
STREAMS_MODEL = "streams-model"
OPEN_STREAMS, STEADY_S, RATE_PER_S = 500, 60.0, 20.0
STREAMED_TOKENS = 100_000
STEADY_KINDS = ("code", "prose", "prose_escaped", "tools", "logprobs", "unknown_fields", "n_of_4")
QUICK = {"at_once": 8, "engines": 8, "idle_connections": 100, "keys": 500, "silence_s": 1.0}
QUICK_STREAMS, QUICK_STEADY_S = 20, 2.0
PATIENCE = Timeouts(connect_s=60.0, head_s=600.0, idle_s=600.0)
P99 = 0.99


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway process. `ready_s` is from its start to its first 200."""

    url: str
    pid: int
    ready_s: float

    def cpu_s(self) -> float:
        """Processor time of the process and its children."""
        process = psutil.Process(self.pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return sum(spent.user + spent.system for spent in times)


def main() -> None:
    """Send every kind, and print the record."""
    parser = command_line(__doc__, quick="few of each kind, to see that it runs")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which kinds, separated by commas")
    options = parser.parse_args()
    allow_many_streams()
    chosen = {name: KINDS[name] for name in options.kinds.split(",")}
    if options.quick:
        chosen = {name: smaller(kind) for name, kind in chosen.items()}
    record = uvloop.run(run(chosen, quick=options.quick))
    print_record(record, options)


def smaller(kind: Kind) -> Kind:
    """The same kind in its short form."""
    limits = {name: min(most, getattr(kind, name)) for name, most in QUICK.items()}
    return replace(kind, **limits)


async def run(chosen: Mapping[str, Kind], *, quick: bool) -> dict[str, Any]:
    """All kinds one after the other, then the steady load."""
    by_kind: dict[str, dict[str, Any]] = {}
    with fake_engines(int(QUICK["engines"]) if quick else 2, COST, SHAPE) as engines:
        for group in groups(chosen, quick=quick):
            measured = await measure(group, engines, quick=quick)
            by_kind |= measured
            for name, figures in measured.items():
                say(f"{name}: {json.dumps(figures)}")
        streams, seconds = (QUICK_STREAMS, QUICK_STEADY_S) if quick else (OPEN_STREAMS, STEADY_S)
        steady = await measure_steady(engines[0], streams, seconds)
    every = [*by_kind.values(), steady]
    return {
        "kinds": len(by_kind),
        "requests": sum(of["requests"] for of in every),
        "rejected": sum(sum(of["rejected"].values()) for of in every),
        "wrong": sum(of["wrong"] for of in every),
        "slow": [name for name, of in by_kind.items() if of["slow"]],
        "stall_max_ms": max((of["stall_ms"] for of in by_kind.values()), default=0.0),
        "steady_above_ms": steady["above_ms"],
        "keys_ready_s": next((of["ready_s"] for name, of in by_kind.items() if chosen[name].keys), None),
        "by_kind": by_kind,
        "steady": steady,
        "quick": quick,
        "python": interpreter(),
    }


# --- bursts -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Seen:
    """What came back for one kind: directly, and through gateways."""

    requests: list[Request]
    direct: list[Answer]
    through: list[list[Answer]] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """What each burst through the gateway took of the processor; not measured with the callbacks."""


def groups(chosen: Mapping[str, Kind], *, quick: bool) -> list[dict[str, Kind]]:
    """Kinds that share a gateway: none, but in the short form all that can."""
    alike = {name: kind for name, kind in chosen.items() if quick and not kind.keys}
    return [
        *([alike] if alike else []),
        *({name: kind} for name, kind in chosen.items() if name not in alike),
    ]


async def measure(
    group: Mapping[str, Kind], shared: Sequence[str], *, quick: bool
) -> dict[str, dict[str, Any]]:
    """Kinds that share a gateway: directly, cold and warm, and on a loop whose callbacks are measured."""
    seen: dict[str, Seen] = {}
    first = next(iter(group.values()))
    settings = kinds.key_settings(first.keys) if first.keys else {}
    with ExitStack() as stack:
        own = first.engines > len(shared)
        urls = stack.enter_context(fake_engines(first.engines, COST, SHAPE)) if own else shared
        for name, kind in group.items():
            requests = [kind.make(number) for number in range(kind.at_once)]
            seen[name] = Seen(requests, await burst(urls, requests))
            if refused := [answer for answer in seen[name].direct if answer.status != 200]:
                raise SystemExit(f"error: the engine itself rejects {name}: {refused[0].rejection()}")
        with served(urls, settings) as gateway:
            for name, kind in group.items():
                # Two minutes of silence are as silent in a gateway that has just started.
                for _ in range(1 if kind.silence_s or quick else 2):
                    before_s = gateway.cpu_s()
                    seen[name].through.append(await surrounded(kind, gateway.url, urls, seen[name].requests))
                    seen[name].cpu_s.append(gateway.cpu_s() - before_s)
        if quick and first.keys:
            longest: dict[str, Any] = {"longest_s": 0.0, "longest": "not measured"}
        else:
            stalls = Path(stack.enter_context(tempfile.TemporaryDirectory()), "stalls.json")
            with served(urls, settings, stalls=stalls) as watched:
                for name, kind in group.items():
                    seen[name].through.append(await surrounded(kind, watched.url, urls, seen[name].requests))
            longest = json.loads(stalls.read_text())  # noqa: ASYNC240 - nothing else runs
    stalled = {"stall_ms": round(longest["longest_s"] * 1e3, 1), "stalled_by": longest["longest"]}
    ready = {"ready_s": round(gateway.ready_s, 2)}
    return {name: {**figures(kind, seen[name]), **stalled, **ready} for name, kind in group.items()}


async def surrounded(
    kind: Kind, url: str, engines: Sequence[str], requests: Sequence[Request]
) -> list[Answer]:
    """A burst of a kind with what is around it."""
    fault(engines, kind.silence_s)
    async with sending.idle_connections(url, kind.idle_connections):
        answers = await burst([url], requests)
    fault(engines, 0.0)
    return answers


def figures(kind: Kind, seen: Seen) -> dict[str, Any]:
    """What is printed of a kind."""
    direct_s = p99_s(seen.direct)
    above_s = [p99_s(arm) - kind.silence_s - direct_s for arm in seen.through[: len(seen.cpu_s)]]
    return {
        **judged(seen.through, [answer.meaning() for answer in seen.direct]),
        "slow": any(above > spent for above, spent in zip(above_s, seen.cpu_s, strict=True)),
        "direct_p99_ms": round(direct_s * 1e3, 1),
        "above_ms": [round(above * 1e3, 1) for above in above_s],
        "cpu_ms": [round(spent / kind.at_once * 1e3, 2) for spent in seen.cpu_s],
    }


def judged(arms: Sequence[Sequence[Answer]], expected: Sequence[Any]) -> dict[str, Any]:
    """What was rejected, and what was answered otherwise than by the engine."""
    pairs = [(answer, meant) for arm in arms for answer, meant in zip(arm, expected, strict=True)]
    rejected = Counter(filter(None, (answer.rejection() for answer, _ in pairs)))
    wrong = sum(answer.status == 200 and answer.meaning() != meant for answer, meant in pairs)
    return {"requests": len(pairs), "rejected": dict(rejected.most_common()), "wrong": wrong}


def p99_s(answers: Sequence[Answer]) -> float:
    """TTFT of those that were served; of plain answers all of the answer."""
    served_s = [answer.ttft_s for answer in answers if answer.status == 200]
    return quantile(served_s, P99) if served_s else 0.0


def fault(engines: Sequence[str], silence_s: float) -> None:
    """Let requests reach these engines so late, or clear that."""
    body = json.dumps({"kind": "slow", "delay_s": silence_s}).encode() if silence_s else None
    for engine in engines:
        request = UrlRequest(f"{engine}/fake/fault", body, method="POST" if silence_s else "DELETE")
        with urlopen(request, timeout=60):
            pass


# --- the steady load --------------------------------------------------------------------------------------


async def measure_steady(engine: str, streams: int, seconds: float) -> dict[str, Any]:
    """Requests at a fixed rate, to the engine and through the gateway in turn, beside open streams."""
    requests = [
        KINDS[STEADY_KINDS[number % len(STEADY_KINDS)]].make(2 * number + 1)
        for number in range(int(seconds * RATE_PER_S))
    ]
    slow = COST | {"floor_s": 0.2}
    with (
        # A worker without `slots` gets 256 requests at once, vLLM's default: for 500 it takes two.
        fake_engines(2, slow, SHAPE, model=STREAMS_MODEL) as streaming,
        served([engine], {}, streaming) as gateway,
        open_streams(gateway.url, streams),
    ):
        spent_s = gateway.cpu_s()
        through, direct = await asyncio.gather(
            at_rate(gateway.url, requests, 0.0), at_rate(engine, requests, 0.5 / RATE_PER_S)
        )
        spent_s = gateway.cpu_s() - spent_s
    above_s = p99_s(through) - p99_s(direct)
    return {
        **judged([through], [answer.meaning() for answer in direct]),
        "above_ms": round(above_s * 1e3, 1),
        "direct_p99_ms": round(p99_s(direct) * 1e3, 1),
        "gateway_cpu_share": round(spent_s / seconds, 2),
        "streams": streams,
    }


async def at_rate(url: str, requests: Sequence[Request], after_s: float) -> list[Answer]:
    """Send them one after the other, each at its time."""
    began_s = time.monotonic() + after_s

    async def at_its_time(number: int, request: Request) -> Answer:
        await asyncio.sleep(began_s + number / RATE_PER_S - time.monotonic())
        return await sending.send(url, request)

    return await asyncio.gather(*(at_its_time(*numbered) for numbered in enumerate(requests)))


@contextmanager
def open_streams(url: str, count: int) -> Iterator[None]:
    """A process of its own reads so many long answers until the block is left."""
    context = multiprocessing.get_context("spawn")
    begun, over = context.Event(), context.Event()
    process = context.Process(target=_stream, args=(url, count, begun, over), daemon=True)
    process.start()
    try:
        if not begun.wait(120):
            raise SystemExit("error: not all streams began within two minutes")
        yield
    finally:
        over.set()
        process.join(30)


def _stream(url: str, count: int, begun: Event, over: Event) -> None:
    allow_many_streams()
    uvloop.run(_stream_all(url, count, begun, over))


async def _stream_all(url: str, count: int, begun: Event, over: Event) -> None:
    client, open_now = HttpClient(url, PATIENCE), set()

    async def read(number: int) -> None:
        body = chat_body(STREAMS_MODEL, f"stream {number}", STREAMED_TOKENS)
        await ask(client, body, lambda _: open_now.add(number))

    tasks = [asyncio.create_task(read(number)) for number in range(count)]
    while not over.is_set():
        if len(open_now) == count:
            begun.set()
        await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    client.close()


# --- the gateway ------------------------------------------------------------------------------------------


@contextmanager
def served(
    urls: Sequence[str],
    settings: Mapping[str, Any],
    streaming: Sequence[str] = (),
    *,
    stalls: Path | None = None,
) -> Iterator[Served]:
    """A gateway with default settings; at its end it writes its longest callback to `stalls`."""
    port = free_port()
    workers = [{"name": f"e{index}", "url": url, "model": MODEL} for index, url in enumerate(urls)]
    workers += [
        {"name": f"s{index}", "url": url, "model": STREAMS_MODEL} for index, url in enumerate(streaming)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, log = folder / "gateway.yaml", folder / "gateway.log"
        file.write_text(json.dumps({"gateway": {"port": port, **settings}, "workers": workers}))
        command = [sys.executable, "-m", "phasewise.cli", "gateway", str(file)]
        if stalls is not None:
            script = Path(__file__).parent / "hostile" / "watched_gateway.py"
            command = [sys.executable, str(script), str(file), str(stalls), "callbacks"]
        with log.open("wb") as written:
            began_s = time.monotonic()
            with running(command, stderr=written) as process:
                url = f"http://127.0.0.1:{port}"
                wait_until_ready(url, process, log)
                yield Served(url, process.pid, time.monotonic() - began_s)


if __name__ == "__main__":
    main()
