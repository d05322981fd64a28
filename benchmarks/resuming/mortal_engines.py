"""Fake engines that can be killed: each a process on a port of its own, started again on the same port.

Whom to kill, and when, is the scenarios' matter.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stress.processes import free_port

STEP_S = 0.008
"""Of every step: a stream of 60 tokens is under way for half a second, long enough to be hit."""
READY_WITHIN_S = 60.0

ENGINE = """
import sys
import uvloop
from phasewise.costs.fit.step import StepCost
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import run_engines
cost = StepCost(floor_s=float(sys.argv[2]), knee_tokens=10**9, beyond_knee_s_per_token=0,
                attention_s_per_token_pair=0, kv_read_s_per_token=0, per_request_s=0)
uvloop.run(run_engines(1, FakeEngineConfig(port=int(sys.argv[1]), cost=cost), lambda engines: None))
"""


class MortalEngine:
    """One engine process."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin a life; it serves a moment later."""
        if self._process is not None:
            self._process.wait()
        self._process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, str(self.port), str(STEP_S)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self, *, wait: bool = True) -> None:
        """kill -9."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            if wait:
                self._process.wait()
                self._process = None

    @property
    def serves(self) -> bool:
        """Whether it answers; a fake death leaves a process that does not."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                return True
        except OSError:
            return False

    def wait_until_ready(self) -> None:
        """Return when it answers."""
        deadline_s = time.monotonic() + READY_WITHIN_S
        while not self.serves:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"the engine at {self.url} did not start")
            time.sleep(0.05)

    def inject(self, kind: str, **options: Any) -> None:  # noqa: ANN401 - what a fault is made of
        """Tell it what is to go wrong."""
        self._post(json.dumps({"kind": kind, **options}).encode(), "POST")

    def _post(self, data: bytes | None, method: str) -> None:
        request = urllib.request.Request(f"{self.url}/fake/fault", data, method=method)
        with urllib.request.urlopen(request, timeout=10):
            pass


def start_anew(engines: Sequence[MortalEngine]) -> None:
    """Give each a new life, whatever became of it, and return when all of them serve."""
    for engine in engines:
        engine.kill()
        engine.start()
    for engine in engines:
        engine.wait_until_ready()


@contextmanager
def mortal_engines(count: int) -> Iterator[list[MortalEngine]]:
    """So many engines that serve, until the block is left."""
    engines = [MortalEngine() for _ in range(count)]
    try:
        start_anew(engines)
        yield engines
    finally:
        for engine in engines:
            engine.kill()
