"""A fleet on this machine, started and stopped as a user does it, and what the plants must know of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from phasewise.benchmark.workload.prompts import write_text

PHASEWISE = (sys.executable, "-m", "phasewise.cli")
GATEWAY_PORT, ENGINE_PORT = 19080, 19100
NAME = "planted"
IDLE_WITHIN_S, ANSWERS_WITHIN_S = 60.0, 30.0
MOST_LOGPROBS = 100
"""Lets a client ask for chunks of many kilobytes; without such a client it changes nothing."""


class CommandFailed(Exception):
    """A command of the run did not do its work; the message says which, and what it printed."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One running engine; its processes share the session `pid`."""

    name: str
    url: str
    steps_url: str
    pid: int
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """What runs now."""

    url: str
    model: str
    engines: tuple[Engine, ...]

    def wait_until_idle(self) -> None:
        """Return when no engine has anything left to do: one case must not slow the next one down."""
        give_up_s = time.monotonic() + IDLE_WITHIN_S
        while any(under_way(engine.url) for engine in self.engines):
            if time.monotonic() > give_up_s:
                raise CommandFailed("the engine goes on with requests that nobody waits for any more")
            time.sleep(0.5)


@contextlib.contextmanager
def running_fleet(
    levers: str, replicas: int, *, fresh: bool, logprobs: bool, flags: Sequence[str] = ()
) -> Iterator[Fleet]:
    """Real engines with these levers behind a gateway; unless fresh ones are wanted, they are warm.

    `logprobs` tells that some will be asked for; `flags` are more of the engine's own.
    """
    words = ", ".join(f"'{word}'" for word in ("--max-logprobs", MOST_LOGPROBS, *flags))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.yaml"
        path.write_text(
            f"version: 1\nname: {NAME}\nfirst_engine_port: {ENGINE_PORT}\n"
            f"pools:\n  - {{name: main, replicas: {replicas}, cores: 1, levers: {{{levers}}},\n"
            f"     engine_flags: [{words}]}}\n"
            f"gateway: {{port: {GATEWAY_PORT}}}\n"
        )
        # What another engine has compiled before would warm a fresh one.
        compiled = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled"} if fresh else {}
        run("up", str(path), "--detach", "--no-engine-keys", env=compiled)
        try:
            fleet = _fleet(json.loads(run("status", NAME, "--json"))["fleets"][0])
            if not fresh:
                for engine in fleet.engines:
                    warm_up(engine.url, fleet.model, logprobs=logprobs)
            yield fleet
        finally:
            run("down", NAME)


def warm_up(engine_url: str, model: str, *, logprobs: bool) -> None:
    """Let an engine do for the first time what takes long the first time.

    That is a long prompt, and logprobs, whose code is compiled when they are first asked for: once for a
    request alone and once for several.
    """
    asked = {"logprobs": True, "top_logprobs": MOST_LOGPROBS}
    for fields in ({}, asked, {"n": 2, **asked}) if logprobs else ({},):
        prompt = write_text(700, Random(len(fields)))
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 8, **fields}
        request = urllib.request.Request(
            f"{engine_url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=120).close()


def _fleet(state: dict[str, Any]) -> Fleet:
    engines = tuple(
        Engine(it["name"], it["url"], it["steps_url"], it["process"]["pid"], tuple(it["cores"]))
        for it in state["engines"]
    )
    return Fleet(state["gateway"]["url"], state["model"], engines)


def run(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """A phasewise command, with more in its environment if wanted; its stdout."""
    done = subprocess.run(
        [*PHASEWISE, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )
    if done.returncode != 0:
        raise CommandFailed(f"phasewise {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def counters(engine_url: str) -> str:
    """An engine's metrics as it prints them."""
    with urllib.request.urlopen(f"{engine_url}/metrics", timeout=30) as reply:
        return str(reply.read(), "utf-8")


def under_way(engine_url: str) -> float:
    """How many requests run or wait there."""
    found = re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)", counters(engine_url), re.M)
    return sum(map(float, found))


def wait_for(url: str) -> None:
    """Return when something answers there."""
    give_up_s = time.monotonic() + ANSWERS_WITHIN_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10):
            return
        if time.monotonic() > give_up_s:
            raise CommandFailed(f"nothing answers at {url}")
        time.sleep(0.2)
