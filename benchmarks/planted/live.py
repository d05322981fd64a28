"""One run on a real engine: the trouble, the traffic, and the verdict that a user would get then."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phasewise.fleet.config import phasewise_home
from phasewise.fleet.local.run_files import find_admin_key

from .cases import Draw, Trouble
from .fleet import GATEWAY_PORT, PHASEWISE, CommandFailed, Fleet, counters, run, wait_for
from .processes import cpu_hogs, end, running, stopping

HERE = Path(__file__).resolve().parent
PROXY_PORT, PROXIED_GATEWAY_PORT = 19200, GATEWAY_PORT + 1
STEPS_OFFSET = 10_000
LONGER_THAN_ANY_WINDOW_S = 120.0
GENERATOR_STARTS_S = 2.0
LOOK_BACK_S = 60.0
NOWHERE = "http://127.0.0.1:9"
"""Nothing listens there: an engine whose recorder is said to be there has none."""

Verdict = dict[str, Any]


def judge_live(
    drawn: Draw, fleet: Fleet, settle_s: float, window_s: float, evidence: Path | None = None
) -> Verdict:
    """Plant the cause, let the traffic flow, ask for the verdict."""
    fleet.wait_until_idle()
    if drawn.case.by_generator:
        return _ask_generator(drawn, fleet, window_s)
    with _troubled(drawn, fleet) as url, _traffic(drawn, fleet, url):
        time.sleep(settle_s)
        before = {engine.name: counters(engine.url) for engine in fleet.engines} if evidence else {}
        began_s = time.time()
        of = (fleet.engines[0].url, "--steps-url", NOWHERE) if drawn.case.stock else (url,)
        said = run(
            "diagnose", *of, "--window", str(window_s), "--slo", drawn.case.slo, "--json", "--exit-zero"
        )
        verdict: Verdict = json.loads(said)
        if evidence:
            _keep(evidence, verdict, fleet, url, began_s, before)
    return verdict


def _ask_generator(drawn: Draw, fleet: Fleet, window_s: float) -> Verdict:
    """The load generator tells of itself, and is stopped for a while every few seconds as it sends."""
    (line,) = drawn.traffic
    command = _command(line, drawn, fleet, fleet.url, lasting_s=window_s)
    process = subprocess.Popen(
        [*command, "--slo", drawn.case.slo, "--diagnose", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that it can be stopped without us
    )
    try:
        time.sleep(GENERATOR_STARTS_S)
        with stopping(lambda: process.pid, drawn.values["stop"] / 1000, drawn.values["run"] / 1000):
            out, err = process.communicate()
    finally:
        end(process)
    try:
        verdict: Verdict = json.loads(out)["diagnosis"]
    except (json.JSONDecodeError, KeyError):
        raise CommandFailed(f"phasewise bench --diagnose failed:\n{out}{err}") from None
    return verdict


@contextlib.contextmanager
def _troubled(drawn: Draw, fleet: Fleet) -> Iterator[str]:
    """The case's trouble; yields the address that clients use."""
    values, trouble = drawn.values, drawn.case.trouble
    if trouble is Trouble.CPU_HOGS:
        with cpu_hogs(values["hogs"], fleet.engines[0].cores):
            yield fleet.url
    elif trouble is Trouble.PAUSED_ENGINE:
        with stopping(lambda: fleet.engines[0].pid, values["stop"] / 1000, values["run"] / 1000):
            yield fleet.url
    elif trouble is Trouble.SLOW_PROXY:
        with proxied_gateway(fleet, values["delay"]) as url:
            yield url
    else:
        yield fleet.url


@contextlib.contextmanager
def proxied_gateway(fleet: Fleet, delay_ms: int) -> Iterator[str]:
    """Another gateway, with a slow proxy on its way to the same engine, though not to the step recorder."""
    (engine,) = fleet.engines
    port, steps_port = (int(url.rpartition(":")[2]) for url in (engine.url, engine.steps_url))
    routes = (f"{PROXY_PORT}:{port}:{delay_ms}", f"{PROXY_PORT + STEPS_OFFSET}:{steps_port}:0")
    url = f"http://127.0.0.1:{PROXIED_GATEWAY_PORT}"
    proxied = f"http://127.0.0.1:{PROXY_PORT}"
    gateway = (*PHASEWISE, "gateway", proxied, "--port", str(PROXIED_GATEWAY_PORT))
    with running((sys.executable, str(HERE / "proxy.py"), *routes)):
        wait_for(f"{proxied}/health")
        with running(gateway):
            wait_for(f"{url}/health")
            yield url


@contextlib.contextmanager
def _traffic(drawn: Draw, fleet: Fleet, url: str) -> Iterator[None]:
    """Every client of the case, kept off the engines' cores where there is another one."""
    taken = {core for engine in fleet.engines for core in engine.cores}
    spare = sorted(os.sched_getaffinity(0) - taken)
    with contextlib.ExitStack() as stack:
        for line in drawn.traffic:
            stack.enter_context(running(_command(line, drawn, fleet, url), spare))
        yield


def _command(
    line: str, drawn: Draw, fleet: Fleet, url: str, lasting_s: float = LONGER_THAN_ANY_WINDOW_S
) -> list[str]:
    kind, *options = line.split()
    # Two generators of one case must not send the same words.
    seed = str(drawn.seed * 10 + drawn.traffic.index(line))
    if kind == "bench":
        lasting = ["--duration", str(lasting_s), "--seed", seed]
        return [*PHASEWISE, "bench", url, *options, *lasting]
    client = [sys.executable, str(HERE / "client.py"), kind, "--url", url, "--model", fleet.model]
    return [*client, *options, "--seed", seed]


def _keep(
    path: Path, verdict: Verdict, fleet: Fleet, url: str, began_s: float, before: dict[str, str]
) -> None:
    """The raw evidence of a run, for whoever doubts a verdict: no prompt stands in any of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "verdict": verdict,
        "began_unix_s": began_s,
        "timelines": _admin_lines(
            f"{url}/phasewise/v1/requests?since_unix_s={began_s - LOOK_BACK_S:.3f}&limit=2000"
        ),
        "steps": {
            engine.name: _lines(
                f"{engine.steps_url}/steps?since=0&limit=20000&since_unix_s={began_s - LOOK_BACK_S:.3f}"
            )
            for engine in fleet.engines
        },
        "metrics_before": before,
        "metrics_after": {engine.name: counters(engine.url) for engine in fleet.engines},
    }
    path.write_text(json.dumps(record))


def _lines(url: str, headers: dict[str, str] | None = None) -> list[Any]:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=30) as reply:
        return [json.loads(line) for line in reply.read().splitlines() if line]


def _admin_lines(url: str) -> list[Any]:
    key = find_admin_key(url, phasewise_home(os.environ))
    return _lines(url, {"authorization": f"Bearer {key}"})
